"""Reads the release manifest: what a host of this release must show. How evidence is compared with it: attestors/manifest.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_manager.attestors.manifest import CliPin, Manifest, items_of
from sandbox_manager.core.refusals import ManifestError
from standfast_chassis.build_info import BuildInfo
from standfast_chassis.canonical_json import sha256_hex


@dataclass(frozen=True, slots=True)
class ReleaseManifest:
    """`pins` is what evidence is compared with; the image ids in it are this release's and earlier ones with equal pins."""

    release_sha: str
    image_id: str
    pins: Manifest

    @property
    def accepted_images(self) -> tuple[str, ...]:
        """Image ids that this release opens."""
        return self.pins.accepted_images


def load_manifest(path: Path) -> ReleaseManifest:
    """The manifest in a file. Raises ManifestError that says what to do."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise _unusable(path, "no such file") from error
    except OSError as error:
        raise _unusable(path, error.strerror or "it cannot be read") from error
    except ValueError as error:
        raise _unusable(path, "something that is not JSON") from error
    try:
        return _read(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unusable(path, f"a field that is missing or of another kind ({error})") from error


def pins_digest(manifest: ReleaseManifest, build: BuildInfo) -> str:
    """Digest of all that a host's evidence is compared with."""
    pins = manifest.pins
    items = [f"release_sha {build.release_sha or 'unknown'}"]
    items += [f"{item.name} {' '.join(item.accepted)}" for item in items_of(pins)]
    return sha256_hex("\n".join(items).encode())


def _read(found: dict[str, Any]) -> ReleaseManifest:
    supervisor = found["supervisor"]
    helper = found.get("helper")
    return ReleaseManifest(
        release_sha=_text(found["release_sha"]),
        image_id=_text(found["image_id"]),
        pins=Manifest(
            protocol_version=str(int(found["protocol_version"])),
            accepted_images=tuple(_text(one) for one in found["accepted_image_ids"]),
            supervisor_version=_text(supervisor["version"]),
            supervisor_digest=_text(supervisor["digest"]),
            clis=tuple(
                CliPin(_text(name), _text(pin["version"]), _text(pin["digest"]))
                for name, pin in sorted(found["agents"].items())
            ),
            helper=None if helper is None else _text(helper),
        ),
    )


def _text(found: object) -> str:
    if not isinstance(found, str) or not found:
        raise ValueError(f"expected a text, found {type(found).__name__}")
    return found


def _unusable(path: Path, found: str) -> ManifestError:
    return ManifestError(
        f"{path}: expected a release manifest (JSON with release_sha, protocol_version, image_id, accepted_image_ids, "
        f"supervisor, agents), found {found}. Make one with scripts/build_image (docker) or scripts/local_tools (local), "
        "and name it with --manifest.",
        {"path": path, "found": found},
    )
