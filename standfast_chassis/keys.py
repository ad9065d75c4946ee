"""An Ed25519 key of a process, and signed tokens (compact JWS, alg "Ed25519") of named kinds.

It says which key signed which bytes as which kind. What a token's content is worth is decided elsewhere.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from standfast_chassis.canonical_json import JsonValue, canonical_json, sha256_hex
from standfast_chassis.errors import KeyFileError, TokenRejectedError

__all__ = ["PublicKey", "SigningKey", "TokenKind", "canonical_json", "sha256_hex", "verify", "verify_claims"]

_ALGORITHM = "Ed25519"
_PAYLOAD_MAX_BYTES = 4 * 1024 * 1024


class TokenKind(StrEnum):
    """The `typ` of a token. A token of one kind is refused where another is expected."""

    ATTACH = "standfast-attach+jws"
    ADMISSION = "standfast-admission+jws"
    EVIDENCE = "standfast-evidence+jws"
    ACTIVATION_REPORT = "standfast-activation-report+jws"
    OBSERVATION = "standfast-observation+jws"
    RECEIPT = "standfast-receipt+jws"
    COUNTERSIGNATURE = "standfast-countersignature+jws"
    MANIFEST = "standfast-manifest+jws"
    REQUEST = "standfast-request+jws"
    SANDBOX = "standfast-sandbox+jws"
    STORE_READING = "standfast-store-reading+jws"
    PROBE = "standfast-probe+jws"


class _Registry(jws.JWSRegistry):
    # The library's default of 128 kB is less than an evidence with many probes.
    max_payload_length = _PAYLOAD_MAX_BYTES


_registry = _Registry(algorithms=[_ALGORITHM])


@lru_cache(maxsize=256)
def _imported(x: str) -> tuple[OKPKey, str]:
    """The library's object for a public key, and its thumbprint: they cost as much as a signature's check, and keys are few."""
    key = OKPKey.import_key({"crv": "Ed25519", "kty": "OKP", "x": x})
    return key, str(key.thumbprint())


@dataclass(frozen=True)
class PublicKey:
    """`jwk`: {"crv": "Ed25519", "kty": "OKP", "x": ...}. `thumbprint`: RFC 7638, SHA-256, 43 base64url characters."""

    jwk: Mapping[str, str] = field(hash=False)
    thumbprint: str

    @classmethod
    def from_jwk(cls, jwk: Mapping[str, Any] | str) -> PublicKey:
        """Raises TokenRejectedError when it is not an Ed25519 public key. A private part is dropped."""
        try:
            found = json.loads(jwk) if isinstance(jwk, str) else dict(jwk)
            public = {name: found[name] for name in ("crv", "kty", "x")}
            if public["kty"] != "OKP" or public["crv"] != "Ed25519":
                raise ValueError(f"expected an OKP key on Ed25519, found {public['kty']} on {public['crv']}")
            if not isinstance(public["x"], str):
                raise ValueError(f"expected x as text, found {type(public['x']).__name__}")
            thumbprint = _imported(public["x"])[1]
        except (ValueError, KeyError, TypeError, JoseError) as error:
            raise TokenRejectedError(f"Not an Ed25519 public key in JWK form: {error!r}.") from error
        return cls(public, thumbprint)

    def jwk_text(self) -> str:
        return canonical_json(dict(self.jwk)).decode()


class SigningKey:
    """A private key. It never appears in a repr, and leaves the process only into its file."""

    def __init__(self, key: OKPKey) -> None:
        self._key = key
        self.public = PublicKey.from_jwk(key.as_dict(private=False))

    def __repr__(self) -> str:
        return f"SigningKey({self.public.thumbprint})"

    @classmethod
    def generate(cls) -> SigningKey:
        """A key that exists in memory only."""
        return cls(OKPKey.generate_key("Ed25519"))

    @classmethod
    def load_or_create(cls, folder: Path, name: str = "signing-key.pem") -> SigningKey:
        """The key in `folder/name` (PKCS #8, mode 0600); made atomically when there is none. Raises KeyFileError.

        Two processes that start at once get the same key: the file is linked into place, and the loser reads it.
        """
        path = folder / name
        try:
            if not path.exists():
                _create(path, OKPKey.generate_key("Ed25519").as_pem(private=True))
            found = path.stat()
            if found.st_mode & 0o077:
                raise KeyFileError(
                    f"{path}: expected mode 0600, found {stat.filemode(found.st_mode)}: others can read the private "
                    f"key. If nobody has, `chmod 600 {path}`; else delete it and register anew.",
                    {"path": path},
                )
            key = OKPKey.import_key(path.read_bytes())
        except OSError as error:
            raise KeyFileError(
                f"{path}: cannot be read or made ({error.strerror}). Check the folder's owner and mode.",
                {"path": path},
            ) from error
        except (ValueError, JoseError) as error:
            raise KeyFileError(
                f"{path}: expected an Ed25519 private key in PEM form, found something else. Restore it from a "
                "backup, or delete it and register anew.",
                {"path": path},
            ) from error
        if key.curve_name != "Ed25519" or not key.is_private:
            raise KeyFileError(f"{path}: expected an Ed25519 private key, found another kind.", {"path": path})
        return cls(key)

    def sign(self, payload: bytes | Mapping[str, JsonValue], kind: TokenKind) -> str:
        """A compact JWS over the bytes, or over the canonical JSON of the mapping."""
        raw = payload if isinstance(payload, bytes) else canonical_json(payload)
        if len(raw) > _PAYLOAD_MAX_BYTES:
            raise ValueError(f"a payload of {len(raw)} bytes; at most {_PAYLOAD_MAX_BYTES} can be signed")
        header = {"alg": _ALGORITHM, "kid": self.public.thumbprint, "typ": kind.value}
        token: str = jws.serialize_compact(header, raw, self._key, registry=_registry)
        return token


def verify(token: str, key: PublicKey, kind: TokenKind) -> bytes:
    """The signed bytes. Raises TokenRejectedError unless `key` signed them as a token of this `kind`."""
    try:
        found = jws.deserialize_compact(token, _imported(key.jwk["x"])[0], registry=_registry)
    except (JoseError, ValueError) as error:
        raise TokenRejectedError(
            f"Expected a {kind.value} signed by {key.thumbprint}; its signature or form does not hold "
            f"({type(error).__name__}).",
            {"expected_kind": kind.value, "expected_key": key.thumbprint},
        ) from error
    header = found.headers()
    expected = {"alg": _ALGORITHM, "kid": key.thumbprint, "typ": kind.value}
    if header != expected:
        raise TokenRejectedError(
            f"Expected a {kind.value} of key {key.thumbprint}, found typ {header.get('typ')!r} of key "
            f"{header.get('kid')!r}.",
            {"expected_kind": kind.value, "found_kind": header.get("typ"), "expected_key": key.thumbprint},
        )
    assert found.payload is not None
    return bytes(found.payload)


def verify_claims(token: str, key: PublicKey, kind: TokenKind) -> dict[str, Any]:
    """As verify(), for a payload that is a JSON object."""
    try:
        claims = json.loads(verify(token, key, kind))
    except ValueError as error:
        raise TokenRejectedError(f"The {kind.value} is signed, but its payload is not JSON.") from error
    if not isinstance(claims, dict):
        raise TokenRejectedError(f"The {kind.value} is signed, but its payload is not a JSON object.")
    return claims


def _create(path: Path, pem: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # unlike rename, never replaces a key that another process has just made
        except FileExistsError:
            return
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        draft.unlink(missing_ok=True)
