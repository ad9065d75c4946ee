"""A text file's bytes as text and back, in the encoding that it has. Pure."""

from __future__ import annotations

import codecs
import hashlib
from dataclasses import dataclass

NEW_FILE_ENCODING = "utf-8"

_BY_MARK = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_MARKS = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}


@dataclass(frozen=True, slots=True)
class TextFile:
    """Decoded text, and the encoding that a write keeps: utf-8, utf-8-sig, utf-16-le or utf-16-be (both with their mark)."""

    text: str
    encoding: str

    @property
    def digest(self) -> str:
        return text_digest(self.text)


def text_digest(text: str) -> str:
    """sha256 hex of the decoded text, over its UTF-8 bytes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def decode(content: bytes) -> TextFile | None:
    """None for what is no text: bytes that are not UTF-8, or hold NUL, and have no UTF-16 mark."""
    for mark, encoding in _BY_MARK:
        if content.startswith(mark):
            try:
                return TextFile(content[len(mark) :].decode("utf-8" if encoding == "utf-8-sig" else encoding), encoding)
            except UnicodeDecodeError:
                return None
    if b"\x00" in content:
        return None
    try:
        return TextFile(content.decode("utf-8"), NEW_FILE_ENCODING)
    except UnicodeDecodeError:
        return None


def encode(text: str, encoding: str) -> bytes:
    """The bytes of `text`, with the mark that the encoding has. Raises UnicodeEncodeError for half surrogate pairs."""
    if encoding in _MARKS:
        return _MARKS[encoding] + text.encode(encoding)
    return text.encode(encoding)
