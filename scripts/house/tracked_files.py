"""Looks through every tracked file for things that belong to one machine: its folders, its package mirrors.

A clone elsewhere must not depend on them, and a reader learns nothing from them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parent.parent.parent

# Hosts of package registries and mirrors. A client's own configuration names them, this tree does not; nor do these patterns, which keep a
# letter of each in a class of its own so that they do not find themselves.
_HOSTS = [
    r"registr[y]\.(npmjs|yarnpkg)",
    r"pyp[i]\.(org|io)",
    r"pythonhoste[d]\.",
    r"\b(deb|ftp\.\w+|security|snapshot|archive)\.debia[n]\.",
    r"archive\.ubunt[u]\.",
    r"proxy\.golan[g]\.",
    r"index\.crate[s]\.|static\.crate[s]\.",
    r"\bghc[r]\.io",
    r"\bqua[y]\.io",
    r"registry-1\.docke[r]|index\.docke[r]",
]
# Folders of the machine on which something was written. A sandbox's /workspace is part of the product.
_FOLDERS = [
    r"/wor[k]/(main|shared|brief)\b",
    r"(?<![\w/.-])(\.\./)*shared/(design|style|facts|cases|hooks)\b",
    r"/(home|Users)/(?!agent\b|user\b)[a-z]\w+/",
    r"/root/\.(pyenv|cargo|cache|npm)\b",
]
_PATTERN = re.compile("|".join(f"(?:{text})" for text in [*_HOSTS, *_FOLDERS]))


def found_in(text: str) -> list[tuple[int, str]]:
    """Line numbers (from 1) and what was found there."""
    return [(text.count("\n", 0, match.start()) + 1, match[0]) for match in _PATTERN.finditer(text)]


def tracked_files(repo: Path) -> list[Path]:
    """The files that git tracks and that are there."""
    command = ["git", "-c", f"safe.directory={repo}", "-C", str(repo), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout.decode()
    return [path for name in listed.split("\0") if name and (path := repo / name).is_file()]


def main() -> int:
    failed = 0
    for path in tracked_files(REPO):
        for line, words in found_in(path.read_text(errors="replace")):
            failed += 1
            print(f"{path.relative_to(REPO)}:{line}: names {words!r}, which belongs to one machine; take it out")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
