"""The base of a process's settings: flags before environment before a TOML file before defaults.

    class RunnerSettings(StandfastSettings):
        listen: str = "127.0.0.1:7400"

    settings = RunnerSettings.load(flags={"listen": None}, file=Path("runner.toml"))

A variable is the field's name in upper case after STANDFAST_ (`STANDFAST_LISTEN`); a nested field is joined by two
underscores. Whatever nobody knows is an error: a misspelt setting must not be a setting left at its default.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import SecretBytes, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from standfast_chassis.errors import SettingsError

PREFIX = "STANDFAST_"
# Variables with our prefix that are not settings of any class.
_OTHER_VARIABLES = frozenset({"STANDFAST_RELEASE_SHA", "STANDFAST_CONFIG", "STANDFAST_CACHE"})
# Beginnings of names that belong to others: the lab's, the tests', and what is given to a CLI in a sandbox.
_OTHER_BEGINNINGS = ("STANDFAST_TEST_", "STANDFAST_LAB_", "STANDFAST_GUEST_", "STANDFAST_CLIENT_")


class StandfastSettings(BaseSettings):
    """Subclass it with fields. Load it with load(), which names every mistake at once, and no secret.

    `other_variables`: further STANDFAST_ variables that are allowed to be there (settings of a neighbour in the same
    environment).
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", env_nested_delimiter="__", frozen=True, validate_default=True
    )
    other_variables: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags and file both come in through load(); no .env file is read from wherever the process was started."""
        return (init_settings, env_settings, _FileSource(settings_cls))

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, file: Path | None = None) -> Self:
        """`flags`: by field name; None means not given. Raises SettingsError."""
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        wrong = [_unknown(name, cls.model_fields, "flag") for name in given if name not in cls.model_fields]
        from_file = _read(file) if file is not None else {}
        wrong += [_unknown(name, cls.model_fields, str(file)) for name in from_file if name not in cls.model_fields]
        wrong += cls._unknown_variables()
        if wrong:
            raise SettingsError("Settings that nobody knows:\n" + "\n".join(wrong))
        token = _FileSource.current.set(from_file)
        try:
            return cls(**given)
        except ValidationError as error:
            raise SettingsError(_explained(cls, error, given, from_file, file)) from None
        finally:
            _FileSource.current.reset(token)

    @classmethod
    def _unknown_variables(cls) -> list[str]:
        prefix = str(cls.model_config.get("env_prefix", PREFIX))
        known = {f"{prefix}{name}".upper() for name in cls.model_fields}
        wrong = []
        for variable in sorted(os.environ):
            if not variable.startswith(prefix) or variable in _OTHER_VARIABLES or variable in cls.other_variables:
                continue
            if variable.startswith(_OTHER_BEGINNINGS) or variable.split("__")[0] in known:
                continue
            wrong.append(_unknown(variable, known, "environment"))
        return wrong


class _FileSource(PydanticBaseSettingsSource):
    """The TOML file that load() has read, as the source behind the environment."""

    current: ClassVar[ContextVar[Mapping[str, Any] | None]] = ContextVar("settings_file", default=None)

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return (self.current.get() or {}).get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(self.current.get() or {})


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise SettingsError(f"{file}: expected a readable settings file ({error.strerror}).", {"file": file}) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: expected TOML ({error}).", {"file": file}) from error


def _unknown(name: str, known: Iterable[str], where: str) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"- {name} ({where})" + (f"; did you mean {close[0]}?" if close else "")


def _explained(
    cls: type[StandfastSettings],
    error: ValidationError,
    flags: Mapping[str, Any],
    from_file: Mapping[str, Any],
    file: Path | None,
) -> str:
    lines = []
    for one in error.errors(include_url=False):
        path = ".".join(str(part) for part in one["loc"])
        name = str(one["loc"][0]) if one["loc"] else ""
        variable = f"{cls.model_config.get('env_prefix', PREFIX)}{name}".upper()
        if name in flags:
            where = "flag"
        elif any(key.split("__")[0] == variable for key in os.environ):
            where = variable
        elif name in from_file:
            where = str(file)
        else:
            where = f"not given; set {variable}"
        field = cls.model_fields.get(name)
        is_secret = field is None or field.annotation in (SecretStr, SecretBytes) or "Secret" in str(field.annotation)
        found = "" if is_secret or one["type"] == "missing" else f"; found {one['input']!r}"
        lines.append(f"- {path} ({where}): {one['msg']}{found}")
    return "Settings with wrong values:\n" + "\n".join(lines)
