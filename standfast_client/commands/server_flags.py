"""Flags of a server process, made from its own Settings class: one flag a field, its description as the help.

A flag is the field's name with hyphens. Secrets are never flags: an argv is readable by everyone on the machine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

CONFIG_VARIABLE = "STANDFAST_CONFIG"


def flag_of(name: str) -> str:
    """`provider_url` → `--provider-url`."""
    return "--" + name.replace("_", "-")


def parsed_flags(
    program: str, description: str, fields: Mapping[str, FieldInfo], argv: Sequence[str]
) -> tuple[dict[str, Any], Path | None]:
    """The given flags by field name, and the settings file. Wrong flags end the program with code 2, --help with 0."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        allow_abbrev=False,
        epilog="Every setting can also come from the environment as STANDFAST_NAME, or from the file of --config (TOML); flags win, then "
        "the environment. Exit codes: 0 stopped in order, 1 could not start or broke, 2 wrong settings.",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=os.environ.get(CONFIG_VARIABLE),
        help=f"settings file (TOML); also by {CONFIG_VARIABLE}",
    )
    for name, field in fields.items():
        if is_secret(field):
            continue
        text = _help(field).replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(
                flag_of(name), dest=name, action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            parser.add_argument(flag_of(name), dest=name, default=None, metavar="VALUE", help=text)
    given = vars(parser.parse_args(list(argv)))
    file = given.pop("config")
    return {name: value for name, value in given.items() if value is not None}, file


def is_secret(field: FieldInfo) -> bool:
    """True for a field whose value must not stand in an argv."""
    return "Secret" in str(field.annotation)


def _help(field: FieldInfo) -> str:
    text = (field.description or "").rstrip(".")
    if field.is_required():
        return f"{text} (required)"
    return f"{text} (default: {'none' if field.default is None else field.get_default(call_default_factory=True)})"
