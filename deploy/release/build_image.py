"""`scripts/build_image`: builds the sandbox image, has it measure itself, writes the release manifest."""

from __future__ import annotations

import sys

import docker
from docker.errors import DockerException

from deploy.release.arguments import agent_names, cache_folder, parser
from deploy.release.context import REPO
from deploy.release.errors import BuildError
from deploy.release.manifest import manifest_of, read_manifest, release_sha, write_manifest
from deploy.release.measure import measured_image
from deploy.release.pins import chosen_pins
from deploy.release.sandbox_image import built_image

_ENGINE_TIMEOUT_S = 900


def main() -> int:
    arguments = parser("scripts/build_image", __doc__.partition(": ")[2], "release-manifest.json")
    arguments.add_argument("--tag", default="standfast/sandbox:dev", help="name of the image (default: %(default)s)")
    arguments.add_argument(
        "--base",
        default="auto",
        metavar="auto|debootstrap|IMAGE",
        help="auto: a base image the engine has, else debootstrap from this machine's apt mirror (root on Debian), else a public image",
    )
    given = arguments.parse_args()
    try:
        pins = chosen_pins(agent_names(given.agents))
        try:
            client = docker.from_env(timeout=_ENGINE_TIMEOUT_S)
        except DockerException as error:
            raise BuildError(f"no engine answers ({error}); start one with scripts/engine start") from error
        image_id, is_new = built_image(client, pins, given.tag, given.base, cache_folder())
        measured = measured_image(client, image_id, pins)
        manifest = manifest_of(image_id, measured, release_sha(REPO), read_manifest(given.manifest))
        write_manifest(given.manifest, manifest)
    except BuildError as error:
        print(f"build_image: {error}", file=sys.stderr)
        return 1
    print(f"build_image: {given.tag} is {image_id} ({'built' if is_new else 'unchanged'}); manifest: {given.manifest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
