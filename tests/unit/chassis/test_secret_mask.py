"""Case sec-secret-in-command-line-and-logs, and every form in which a secret is found."""

from __future__ import annotations

import base64
import io
import json
import logging
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog

from standfast_chassis.logs import configure_logs, log_context
from standfast_chassis.secret_mask import MaskingStream, SecretMask

CASES = Path(__file__).parents[2] / "cases"
CASE = next(
    case
    for case in json.loads((CASES / "cases.json").read_text())
    if case["id"] == "sec-secret-in-command-line-and-logs"
)
SECRET: str = CASE["given"]["secret"]
INPUT = json.loads((CASES / CASE["input"]).read_text())


@pytest.fixture
def mask() -> SecretMask:
    made = SecretMask()
    made.register(SECRET, "API_KEY")
    return made


@pytest.fixture
def log(mask: SecretMask) -> Iterator[io.StringIO]:
    out = io.StringIO()
    configure_logs("test", mask, stream=out, pretty=False)
    yield out
    logging.captureWarnings(capture=False)


def test_the_cases_log_lines_name_the_key_and_do_not_hold_it(log: io.StringIO) -> None:
    logger = structlog.get_logger("test")
    for line in INPUT["log_lines"]:
        logger.info(line)
    logger.info("argv", argv=INPUT["bad_argv"])
    assert log.getvalue().count(SECRET) == CASE["expected"]["occurrences"]["logs"] == 0
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert lines[0]["event"] == INPUT["log_lines"][0]
    assert lines[1]["event"] == "provider said: invalid key [masked:API_KEY]"
    assert lines[2]["argv"][3] == "API_KEY=[masked:API_KEY]"


def test_a_secret_split_over_two_reads_is_masked(mask: SecretMask) -> None:
    stream = MaskingStream(mask)
    out = b"".join(stream.feed(read.encode()) for read in INPUT["agent_output_reads"]) + stream.close()
    assert out == b"API_KEY=[masked:API_KEY]\n"


FORMS = {
    "plain": SECRET,
    "bearer": f"Bearer {SECRET}",
    "basic": "Basic " + base64.b64encode(f"user:{SECRET}".encode()).decode(),
    "basic_longer": "Basic " + base64.b64encode(f"user1:{SECRET}".encode()).decode(),
    "basic_longest": "Basic " + base64.b64encode(f"user12:{SECRET}".encode()).decode(),
    "base64_inside": base64.b64encode(f"x{SECRET}yz".encode()).decode(),
    "base64_url": base64.urlsafe_b64encode(f"??{SECRET}~~".encode()).decode(),
    "hex": SECRET.encode().hex(),
    "hex_upper": SECRET.encode().hex().upper(),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_each_form_is_masked_in_text_and_when_cut_anywhere(mask: SecretMask, form: str) -> None:
    text = FORMS[form]
    masked = mask.text(f"before {text} after")
    assert "[masked:API_KEY]" in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")
    raw = f"before {text} after".encode()
    for cut in range(len(raw) + 1):
        stream = MaskingStream(mask)
        assert stream.feed(raw[:cut]) + stream.feed(raw[cut:]) + stream.close() == masked.encode()


def test_a_masked_base64_text_cannot_be_decoded_to_most_of_the_secret(mask: SecretMask) -> None:
    for before in range(3):
        raw = b"u" * before + SECRET.encode() + b"tail"
        left = mask.data(base64.b64encode(raw)).split(b"[masked:API_KEY]")
        # What stays on either side holds the neighbours' bits, and at most a few of the secret's first or last byte.
        assert len(left) == 2
        assert len(left[0]) == (before * 8 + 5) // 6
        assert len(left[1]) <= 4 * 3


@pytest.mark.parametrize("secret", ['quote"and\\slash-secret', "slash/and+plus=secret", "ключ-пароль-secret"])
def test_secrets_with_special_characters_are_found_escaped(secret: str) -> None:
    mask = SecretMask()
    mask.register(secret, "S")
    for text in (json.dumps({"k": secret}), json.dumps({"k": secret}, ensure_ascii=False), quote(secret), secret):
        assert "[masked:S]" in mask.text(text)
        assert secret not in mask.text(text)
    assert "[masked:S]" in mask.text("?k=" + quote(secret, safe=""))


def test_nothing_else_is_changed_or_held_back_for_good(mask: SecretMask) -> None:
    rng = random.Random(7)
    raw = bytes(rng.randrange(256) for _ in range(20_000)) + SECRET.encode()[:-1]
    stream = MaskingStream(mask)
    out = b"".join(stream.feed(raw[start : start + 37]) for start in range(0, len(raw), 37)) + stream.close()
    assert out == raw


def test_any_cut_gives_what_the_whole_gives(mask: SecretMask) -> None:
    mask.register(SECRET + "-longer", "LONGER")
    mask.register("ab" * 6, "REPEATED")
    rng = random.Random(11)
    parts = [
        SECRET,
        SECRET + "-longer",
        SECRET[:9],
        "ab" * 7,
        "ab" * 5,
        "x",
        base64.b64encode(SECRET.encode()).decode(),
    ]
    for _ in range(300):
        raw = "".join(rng.choice(parts) for _ in range(8)).encode()
        stream, out, position = MaskingStream(mask), b"", 0
        while position < len(raw):
            step = rng.randrange(1, 20)
            out += stream.feed(raw[position : position + step])
            position += step
        assert out + stream.close() == mask.data(raw)


def test_keep_length_keeps_offsets(mask: SecretMask) -> None:
    raw = b"a" * 10 + SECRET.encode() + b"b" * 10
    stream = MaskingStream(mask, keep_length=True)
    out = stream.feed(raw[:15]) + stream.feed(raw[15:]) + stream.close()
    assert out == b"a" * 10 + b"*" * len(SECRET) + b"b" * 10


def test_a_held_piece_is_bounded(mask: SecretMask) -> None:
    stream = MaskingStream(mask)
    raw = SECRET.encode()[:-1] * 1000
    passed = len(stream.feed(raw))
    assert len(raw) - passed < max(len(form) for form in mask.forms)


def test_values_are_masked_at_every_depth_and_in_what_is_not_plain(log: io.StringIO) -> None:
    class Odd:
        def __repr__(self) -> str:
            return f"Odd({SECRET})"

    structlog.get_logger("test").info(
        "deep",
        nested={"a": [{"b": (SECRET, SECRET.encode())}], SECRET: 1},
        odd=Odd(),
        path=Path("/tmp") / SECRET,
        a_set={SECRET},
        number=7,
        nothing=None,
    )
    line = json.loads(log.getvalue())
    assert SECRET not in log.getvalue()
    assert line["nested"]["a"] == [{"b": ["[masked:API_KEY]", "[masked:API_KEY]"]}]
    assert line["odd"] == "Odd([masked:API_KEY])"
    assert (line["number"], line["nothing"]) == (7, None)


def test_exceptions_the_standard_library_and_warnings_take_the_same_way(log: io.StringIO) -> None:
    try:
        raise ValueError(f"refused: {SECRET}")
    except ValueError:
        structlog.get_logger("test").exception("caught")
        logging.getLogger("grpc").exception("from %s", SECRET)
    logging.getLogger("other").warning("header %s", {"Authorization": f"Bearer {SECRET}"}, extra={"more": SECRET})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(f"warned {SECRET}", stacklevel=1)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert SECRET not in log.getvalue()
    assert len(lines) == 4
    assert "Traceback" in lines[0]["exception"]
    assert lines[1]["event"] == "from [masked:API_KEY]"
    assert lines[2]["more"] == "[masked:API_KEY]"


def test_pretty_output_is_masked_too(mask: SecretMask) -> None:
    out = io.StringIO()
    configure_logs("test", mask, stream=out, pretty=True)
    structlog.get_logger("test").info(f"key {SECRET}", key=SECRET)
    assert SECRET not in out.getvalue()
    assert out.getvalue().count("[masked:API_KEY]") == 2


def test_context_is_on_every_line_inside_and_gone_after(log: io.StringIO) -> None:
    logger = structlog.get_logger("test")
    with log_context(tenant="local", conversation_id="c1", turn_id=None):
        logger.info("inside")
        logging.getLogger("library").warning("inside too")
    logger.info("after")
    inside, library, after = (json.loads(line) for line in log.getvalue().splitlines())
    assert inside["conversation_id"] == library["conversation_id"] == "c1"
    assert "turn_id" not in inside
    assert "conversation_id" not in after
    assert inside["service"] == library["service"] == "test"


def test_a_long_value_is_cut_after_masking(log: io.StringIO) -> None:
    structlog.get_logger("test").info("long", text="x" * 16_380 + SECRET)
    assert SECRET[:10] not in log.getvalue()
    assert len(log.getvalue()) < 20_000


def test_a_text_too_short_to_be_a_secret_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="expected at least 8") as caught:
        SecretMask().register("abc", "SHORT")
    assert "abc" not in str(caught.value)


def test_without_secrets_everything_passes_as_it_is() -> None:
    stream = MaskingStream(SecretMask())
    assert stream.feed(b"abc") + stream.close() == b"abc"
    assert SecretMask().text("abc") == "abc"
