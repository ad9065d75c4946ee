"""Messages as plain values for `--json`: names as in the protos, enum values without their prefix, unknown as null.

Every field of a message is there, so that a reader need not know which are optional. Bytes are base64, times ISO 8601 in UTC.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

Plain = Any
# protobuf's stubs name a field's and an enum's descriptor in two incompatible ways, one for each of its runtimes.
FieldDescriptor = Any
EnumDescriptor = Any


def plain(message: Message) -> dict[str, Plain]:
    """A message as a dictionary."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields if _is_shown(message, field)}


def enum_word(enum: EnumDescriptor, number: int) -> str | None:
    """An enum value's name without its prefix; None for the unspecified one."""
    value = enum.values_by_number.get(number)
    if value is None:
        return str(number)
    word = value.name.removeprefix(_prefix(enum.name))
    return None if word == "UNSPECIFIED" else word


def word(message: Message, field_name: str) -> str | None:
    """The enum field of a message as a word; None for the unspecified value."""
    field = message.DESCRIPTOR.fields_by_name[field_name]
    if field.enum_type is None:
        raise TypeError(f"{field_name} is no enum field")
    return enum_word(field.enum_type, getattr(message, field_name))


def _prefix(enum_name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum_name).upper() + "_"


def _is_shown(message: Message, field: FieldDescriptor) -> bool:
    # Of a oneof only the one that is set: the others are not unknown, they are not there.
    oneof = field.containing_oneof
    is_optional_scalar = oneof is not None and len(oneof.fields) == 1
    return oneof is None or is_optional_scalar or message.HasField(field.name)


def _field(message: Message, field: FieldDescriptor) -> Plain:
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return {str(key): item for key, item in value.items()}
        return [_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(field, value)


def _value(field: FieldDescriptor, value: Any) -> Plain:
    if field.enum_type is not None:
        return enum_word(field.enum_type, value)
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    # An empty text of ours says "not known".
    return None if value == "" else value
