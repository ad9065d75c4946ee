from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import pytest

from sandbox_manager.host.relay.activation import TEXT_DIGESTS_MAX, ActivationLedger
from sandbox_manager.host.relay.answer import AnswerFacts, StreamedAnswer, UnreadableError, text_sha256
from sandbox_manager.host.relay.errors import ProviderKeyError, RelayError
from sandbox_manager.host.relay.messages import MessagesReader
from sandbox_manager.host.relay.upstream import KeyStyle, ProviderKey, Upstream


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def read(*events: bytes) -> list[str]:
    texts: list[str] = []
    answer = StreamedAnswer(MessagesReader(AnswerFacts(), texts.append))
    for item in events:
        answer.feed(item)
    answer.close()
    return texts


def block(*pieces: str) -> list[bytes]:
    return [
        event(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": piece}) for piece in pieces),
        event(type="content_block_stop", index=0),
    ]


def test_a_text_digest_is_the_sha256_of_its_utf8() -> None:
    assert text_sha256("grüße") == hashlib.sha256("grüße".encode()).hexdigest()


def test_a_surrogate_pair_shared_by_two_deltas_is_one_character() -> None:
    assert read(*block("a\ud83d", "", "\ude00b")) == [hashlib.sha256("a😀b".encode()).hexdigest()]


def test_a_lone_surrogate_has_a_digest_and_it_is_the_whole_texts() -> None:
    (digest,) = read(*block("a\ud83d", "b"))
    assert digest == text_sha256("a\ud83db") == hashlib.sha256(b"a\xed\xa0\xbdb").hexdigest()


def test_a_block_without_its_end_is_not_delivered() -> None:
    assert read(*block("half")[:-1]) == []


def test_a_block_that_starts_with_text_counts_it() -> None:
    first = event(type="content_block_start", index=0, content_block={"type": "text", "text": "be"})
    assert read(first, *block("gun")[1:]) == [text_sha256("begun")]


def test_events_of_no_known_form_are_unreadable() -> None:
    with pytest.raises(UnreadableError):
        read(b"data: {}x\n\n")
    with pytest.raises(UnreadableError):
        read(event(type="content_block_stop"))


def test_a_ledger_is_bounded_and_says_when_it_is_full() -> None:
    ledger = ActivationLedger("a", None, outside=0)
    for _ in range(TEXT_DIGESTS_MAX):
        ledger.delivered("d")
    assert not ledger.observe().is_overflowed
    ledger.delivered("d")
    assert ledger.observe().is_overflowed
    assert len(ledger.observe().delivered_text_sha256) == TEXT_DIGESTS_MAX


def test_a_key_does_not_show_itself() -> None:
    key = ProviderKey("sk-very-secret")
    assert "very" not in repr(key) + str(key) + repr(Upstream("http://h", key)) + str(vars(type(key)))
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_a_key_is_read_from_a_file_or_taken_out_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text(" sk-1 \n")
    assert ProviderKey.from_file(path).reveal() == b"sk-1"
    monkeypatch.setenv("A_KEY", "sk-2\n")
    assert ProviderKey.from_environment("A_KEY").reveal() == b"sk-2"
    with pytest.raises(ProviderKeyError, match="A_KEY is not set"):
        ProviderKey.from_environment("A_KEY")


@pytest.mark.parametrize("content", [b"", b"two words", b"a\nb", b"\xff\xfe", b"x" * 9000])
def test_a_file_that_holds_no_key_is_refused_without_quoting_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ProviderKeyError) as caught:
        ProviderKey.from_file(path)
    assert "two words" not in str(caught.value)
    with pytest.raises(ProviderKeyError, match="cannot be read"):
        ProviderKey.from_file(tmp_path / "missing")


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "http://user:pw@h", "http://h/?a=b", "http://h/#f", "h:80"])
def test_a_base_url_that_cannot_be_used_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(RelayError) as caught:
        Upstream(url, None)
    assert "pw" not in str(caught.value)


def test_an_upstream_says_where_and_with_what() -> None:
    upstream = Upstream("https://h.example/base/", ProviderKey("k"), KeyStyle.BEARER)
    assert (upstream.origin, upstream.path_prefix, upstream.address) == (
        "https://h.example",
        b"/base",
        ("h.example", 443),
    )
    assert upstream.credential_header() == (b"authorization", b"Bearer k")
    assert Upstream("http://h:81", None).credential_header() is None
