"""Reads the machine's own apt sources, so that a base system comes from the mirror the machine uses and from no other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AptSource:
    """One binary source: a mirror, a suite of it, its components."""

    uri: str
    suite: str
    components: tuple[str, ...]

    @property
    def line(self) -> str:
        """The source in one-line form, for a sources.list. The keyring is the one of the system that reads it."""
        return f"deb {self.uri} {self.suite} {' '.join(self.components)}"


def parse_one_line(text: str) -> list[AptSource]:
    """The `deb` lines of a *.list file."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)((?:\s+[^\s#]+)*)", line)
        if match and match[3].split():
            found.append(AptSource(match[1].rstrip("/"), match[2], tuple(match[3].split())))
    return found


def parse_deb822(text: str) -> list[AptSource]:
    """The stanzas of a *.sources file that are of type deb and not disabled."""
    found = []
    # A comment line may stand anywhere, also inside a stanza.
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", plain):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1] in (" ", "\t"):
                fields[name] = fields.get(name, "") + " " + line.strip()
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
            continue
        components = tuple(fields.get("components", "").split())
        found += [
            AptSource(uri.rstrip("/"), suite, components)
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
            if components
        ]
    return found


def debian_sources(codename: str, apt_folder: Path = Path("/etc/apt")) -> list[AptSource]:
    """The machine's sources of a Debian release: its suite first, then its updates and security suites; `main` only.

    Other vendors' suites are left out. An empty list means: this machine has no source for that release.
    """
    found: list[AptSource] = []
    for path in [apt_folder / "sources.list", *sorted((apt_folder / "sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        if path.suffix == ".sources":
            found += parse_deb822(path.read_text())
        elif path.suffix == ".list":
            found += parse_one_line(path.read_text())
    suites = (codename, f"{codename}-updates", f"{codename}-security")
    wanted = {}
    for suite in suites:
        for source in found:
            if source.suite == suite and "main" in source.components and suite not in wanted:
                wanted[suite] = AptSource(source.uri, suite, ("main",))
    return list(wanted.values()) if codename in wanted else []
