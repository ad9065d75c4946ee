"""Keys and tokens: what was signed by whom as what, and nothing else passes."""

from __future__ import annotations

import base64
import hashlib
import json
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from joserfc import jws
from joserfc.jwk import OctKey, OKPKey

from standfast_chassis.errors import KeyFileError, TokenRejectedError
from standfast_chassis.keys import PublicKey, SigningKey, TokenKind, canonical_json, sha256_hex, verify, verify_claims


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()


def test_what_was_signed_comes_back_byte_for_byte(key: SigningKey) -> None:
    raw = bytes(range(256))
    assert verify(key.sign(raw, TokenKind.RECEIPT), key.public, TokenKind.RECEIPT) == raw
    assert verify(key.sign(b"", TokenKind.RECEIPT), key.public, TokenKind.RECEIPT) == b""
    token = key.sign({"b": 1, "a": ["ü", None]}, TokenKind.ADMISSION)
    assert verify(token, key.public, TokenKind.ADMISSION) == '{"a":["ü",null],"b":1}'.encode()
    assert verify_claims(token, key.public, TokenKind.ADMISSION) == {"a": ["ü", None], "b": 1}


def test_the_header_names_algorithm_key_and_kind_and_nothing_warns(key: SigningKey) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        token = key.sign(b"x", TokenKind.ATTACH)
        verify(token, key.public, TokenKind.ATTACH)
    head = token.split(".")[0]
    assert json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4))) == {
        "alg": "Ed25519",
        "kid": key.public.thumbprint,
        "typ": "standfast-attach+jws",
    }


@pytest.mark.parametrize("kind", [kind for kind in TokenKind if kind is not TokenKind.ADMISSION])
def test_a_token_of_one_kind_is_refused_as_another(key: SigningKey, kind: TokenKind) -> None:
    with pytest.raises(TokenRejectedError) as caught:
        verify(key.sign(b"{}", kind), key.public, TokenKind.ADMISSION)
    assert caught.value.metadata["found_kind"] == kind.value


def test_another_key_is_refused(key: SigningKey) -> None:
    with pytest.raises(TokenRejectedError):
        verify(SigningKey.generate().sign(b"x", TokenKind.RECEIPT), key.public, TokenKind.RECEIPT)


def _flip(token: str, part: int) -> str:
    parts = token.split(".")
    middle = len(parts[part]) // 2
    parts[part] = parts[part][:middle] + ("A" if parts[part][middle] != "A" else "B") + parts[part][middle + 1 :]
    return ".".join(parts)


FORGERIES: dict[str, Callable[[SigningKey, str], str]] = {
    "header changed": lambda _, token: _flip(token, 0),
    "payload changed": lambda _, token: _flip(token, 1),
    "signature changed": lambda _, token: _flip(token, 2),
    "signature left out": lambda _, token: token.rsplit(".", 1)[0] + ".",
    "not a token": lambda _, __: "hello",
    "empty": lambda _, __: "",
    "not ASCII": lambda _, token: token + "ü",
    "a fourth part": lambda _, token: token + ".AAAA",
    "alg none": lambda _, token: "eyJhbGciOiJub25lIn0." + token.split(".")[1] + ".",
    "HMAC with the public key": lambda key, _: jws.serialize_compact(
        {"alg": "HS256", "kid": key.public.thumbprint, "typ": TokenKind.RECEIPT.value},
        b"x",
        OctKey.import_key(key.public.jwk_text().encode()),
    ),
}


@pytest.mark.parametrize("name", list(FORGERIES))
def test_a_forged_token_is_refused(key: SigningKey, name: str) -> None:
    forged = FORGERIES[name](key, key.sign(b'{"a":1}', TokenKind.RECEIPT))
    with pytest.raises(TokenRejectedError):
        verify(forged, key.public, TokenKind.RECEIPT)


def test_an_extra_header_is_refused(key: SigningKey) -> None:
    private = OKPKey.generate_key("Ed25519")
    public = PublicKey.from_jwk(private.as_dict(private=False))
    header = {"alg": "Ed25519", "kid": public.thumbprint, "typ": TokenKind.RECEIPT.value, "cty": "x"}
    token = jws.serialize_compact(header, b"x", private, algorithms=["Ed25519"])
    with pytest.raises(TokenRejectedError):
        verify(token, public, TokenKind.RECEIPT)


@pytest.mark.parametrize("payload", [b"not json", b"[1]", b"\xff"])
def test_claims_must_be_a_json_object(key: SigningKey, payload: bytes) -> None:
    with pytest.raises(TokenRejectedError):
        verify_claims(key.sign(payload, TokenKind.REQUEST), key.public, TokenKind.REQUEST)


def test_a_large_evidence_can_be_signed(key: SigningKey) -> None:
    raw = b"x" * 3_000_000
    assert verify(key.sign(raw, TokenKind.EVIDENCE), key.public, TokenKind.EVIDENCE) == raw
    with pytest.raises(ValueError, match="at most"):
        key.sign(b"x" * 5_000_000, TokenKind.EVIDENCE)


def test_a_public_key_travels_as_jwk_without_its_private_part(key: SigningKey) -> None:
    assert PublicKey.from_jwk(key.public.jwk_text()) == key.public
    private = OKPKey.generate_key("Ed25519").as_dict(private=True)
    assert set(PublicKey.from_jwk(private).jwk) == {"crv", "kty", "x"}
    expected = hashlib.sha256(key.public.jwk_text().encode()).digest()
    assert key.public.thumbprint == base64.urlsafe_b64encode(expected).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "jwk", ["", "[]", "{}", {"kty": "OKP", "crv": "X25519", "x": "AAAA"}, {"kty": "OKP", "crv": "Ed25519", "x": "AA"}]
)
def test_what_is_not_an_ed25519_key_is_refused(jwk: Any) -> None:
    with pytest.raises(TokenRejectedError):
        PublicKey.from_jwk(jwk)


def test_the_key_file_is_private_kept_and_never_printed(tmp_path: Path) -> None:
    first = SigningKey.load_or_create(tmp_path)
    path = tmp_path / "signing-key.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["signing-key.pem"]
    assert SigningKey.load_or_create(tmp_path).public == first.public
    assert repr(first) == f"SigningKey({first.public.thumbprint})"


def _thumbprint(folder: str) -> str:
    return SigningKey.load_or_create(Path(folder)).public.thumbprint


def test_callers_that_race_get_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(_thumbprint, [str(tmp_path)] * 64))) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["signing-key.pem"]


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    SigningKey.load_or_create(tmp_path)
    (tmp_path / "signing-key.pem").chmod(0o640)
    with pytest.raises(KeyFileError, match="0600"):
        SigningKey.load_or_create(tmp_path)


def _p256() -> bytes:
    return generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.mark.parametrize("content", [b"", b"rubbish", _p256(), OKPKey.generate_key("Ed25519").as_pem(private=False)])
def test_a_file_with_something_else_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "signing-key.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError):
        SigningKey.load_or_create(tmp_path)
    assert path.read_bytes() == content


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="missing"):
        SigningKey.load_or_create(tmp_path / "missing")


def test_equal_values_have_one_digest_and_different_ones_another() -> None:
    assert sha256_hex({"b": [1, True, None], "a": "ü"}) == sha256_hex({"a": "ü", "b": (1, True, None)})
    assert sha256_hex({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()
    assert sha256_hex(b"raw") == hashlib.sha256(b"raw").hexdigest()
    assert len({sha256_hex(value) for value in ("1", 1, True, None, [1], {"1": 1}, "", [], {})}) == 9
    assert canonical_json({"z": "\u2028\x00/", "é": 1}) == '{"z":"\u2028\\u0000/","é":1}'.encode()


@pytest.mark.parametrize("value", [1.5, float("nan"), {1: 2}, {"a": {"b": 2.0}}, "\ud800", [b"x"], {"a": {1, 2}}])
def test_a_value_without_one_form_has_no_digest(value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|no canonical|lone surrogate|text keys"):
        sha256_hex([value])
