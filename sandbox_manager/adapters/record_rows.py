"""Records to rows and back. A field is a column: text, whole number, truth value, or JSON where it is a value object.

The shape comes from the record's own annotations, so a new field is a new column and a migration, and nothing else.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from sandbox_manager.core import codec

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Column:
    """One field. `kind` is the type behind an optional one."""

    name: str
    kind: Any
    is_optional: bool

    @property
    def sql_type(self) -> type[str] | type[int]:
        """As sqlite-utils names column types."""
        return int if self.kind in (int, bool) else str

    def to_sql(self, value: Any) -> str | int | None:
        """The stored value."""
        if value is None:
            return None
        if self.kind is bool:
            return int(value)
        if self.kind in (str, int):
            return typing.cast(str | int, value)
        if issubclass(self.kind, Enum):
            return str(value.value)
        return codec.encode(value).decode("ascii")

    def from_sql(self, stored: Any) -> Any:
        """The field's value. Raises CodecError or ValueError for what nobody here has written."""
        if stored is None:
            return None
        if self.kind is bool:
            return bool(stored)
        if self.kind in (str, int):
            return stored
        if issubclass(self.kind, Enum):
            return self.kind(stored)
        return codec.decode(self.kind, str(stored).encode("ascii"))


_COLUMNS: dict[type[Any], tuple[Column, ...]] = {}


def columns(record_type: type[Any]) -> tuple[Column, ...]:
    """A record type's columns, in the order of its fields."""
    found = _COLUMNS.get(record_type)
    if found is None:
        # Resolving annotations is slow beside making a row; they never change.
        hints = typing.get_type_hints(record_type)
        found = tuple(_column(field.name, hints[field.name]) for field in dataclasses.fields(record_type))
        _COLUMNS[record_type] = found
    return found


def to_row(record: Any) -> dict[str, str | int | None]:
    """The row of a record."""
    return {column.name: column.to_sql(getattr(record, column.name)) for column in columns(type(record))}


def from_row(record_type: type[R], row: Mapping[str, Any]) -> R:
    """The record in a row. Columns that the record does not have are left alone."""
    return record_type(**{column.name: column.from_sql(row[column.name]) for column in columns(record_type)})


def _column(name: str, hint: Any) -> Column:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return Column(name, kinds[0], is_optional=True)
    return Column(name, hint, is_optional=False)
