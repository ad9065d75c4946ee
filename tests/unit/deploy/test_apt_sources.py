"""The machine's own apt sources are read in both of their forms, and only Debian's suites of the wanted release are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.release.apt_sources import AptSource, debian_sources, parse_deb822, parse_one_line

DEB822 = """\
# a comment
Types: deb deb-src
# a comment inside
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://other.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""


def test_stanzas_give_one_source_for_each_suite_and_leave_out_what_is_off_or_source_code() -> None:
    assert parse_deb822(DEB822) == [
        AptSource("http://mirror.example/debian", "bookworm", ("main", "contrib")),
        AptSource("http://mirror.example/debian", "bookworm-updates", ("main", "contrib")),
        AptSource("http://other.example/debian-security", "bookworm-security", ("main",)),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deb http://m.example/debian bookworm main", [AptSource("http://m.example/debian", "bookworm", ("main",))]),
        (
            "deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian/ bookworm main non-free # why",
            [AptSource("http://m.example/debian", "bookworm", ("main", "non-free"))],
        ),
        ("# deb http://m.example/debian bookworm main", []),
        ("deb-src http://m.example/debian bookworm main", []),
        ("deb http://m.example/flat ./", []),
        ("", []),
    ],
)
def test_a_line_gives_a_source_or_nothing(line: str, expected: list[AptSource]) -> None:
    assert parse_one_line(line) == expected


def test_only_main_of_the_wanted_release_is_taken_its_own_suite_first(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / "debian.sources").write_text(DEB822)
    (folder / "vendor.list").write_text("deb http://vendor.example/apt nodistro main\n")
    (folder / "switched-off.sources.disabled").write_text(DEB822)
    (tmp_path / "sources.list").write_text("deb http://m.example/debian trixie main\n")
    assert [source.line for source in debian_sources("bookworm", tmp_path)] == [
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
        "deb http://other.example/debian-security bookworm-security main",
    ]
    assert debian_sources("forky", tmp_path) == []


def test_updates_without_the_suite_itself_are_no_source(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://m.example/debian bookworm-updates main\n")
    assert debian_sources("bookworm", tmp_path) == []
