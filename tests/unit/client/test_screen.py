from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.plain import enum_word, plain, word
from standfast_client.screen.control_characters import shown
from standfast_client.screen.turn_views import JsonView, TextView


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def view(out: io.StringIO) -> tuple[TextView, io.StringIO]:
    notes = io.StringIO()
    return TextView(out, Console(file=notes, width=200)), notes


def delta(text: str, parent: str = "") -> pb.TurnEvent:
    return pb.TurnEvent(sequence=1, parent_id=parent, text_delta=pb.TextDelta(text=text))


def block(text: str, parent: str = "") -> pb.TurnEvent:
    return pb.TurnEvent(sequence=2, parent_id=parent, assistant_message=pb.AssistantMessage(text=text))


def test_on_a_terminal_pieces_appear_once_and_the_whole_block_is_not_repeated() -> None:
    out = Terminal()
    screen, _ = view(out)
    for event in (delta("hel"), delta("lo"), block("hello")):
        screen.event(event)
    assert out.getvalue() == "hello\n"


def test_a_block_that_differs_from_its_pieces_is_shown_whole() -> None:
    out = Terminal()
    screen, notes = view(out)
    for event in (delta("half of a fai"), block("the true text")):
        screen.event(event)
    assert out.getvalue() == "half of a fai\nthe true text\n"
    assert "given up" in notes.getvalue()


def test_into_a_file_only_whole_blocks_go() -> None:
    out = io.StringIO()
    screen, _ = view(out)
    for event in (delta("half of a fai"), block("one"), block("two\n")):
        screen.event(event)
    assert out.getvalue() == "one\ntwo\n"


def test_a_sub_agents_text_is_a_note_and_not_part_of_the_answer() -> None:
    out = Terminal()
    screen, notes = view(out)
    screen.event(delta("inner", parent="tool-1"))
    screen.event(block("inner text", parent="tool-1"))
    assert out.getvalue() == ""
    assert "sub-agent: inner text" in notes.getvalue()


def test_control_characters_and_markup_are_shown_and_not_obeyed() -> None:
    out = Terminal()
    screen, notes = view(out)
    screen.event(block("\x1b[2J[bold]x[/bold]\x9b\r\n"))
    warning = pb.Warning(code="W", message="\x1b[31m[red]m[/red]")
    screen.event(pb.TurnEvent(sequence=1, warning=warning))
    assert out.getvalue() == "\u241b[2J[bold]x[/bold]\\u009b\n"
    assert "\u241b[31m[red]m[/red]" in notes.getvalue()


@pytest.mark.parametrize(
    ("text", "seen"), [("a\tb\n", "a\tb\n"), ("a\rb", "a\u240db"), ("\x7f", "\u2421"), ("\u202ex", "\\u202ex")]
)
def test_only_tab_and_line_end_pass_as_they_are(text: str, seen: str) -> None:
    assert shown(text) == seen


def test_json_lines_hold_the_text_unchanged() -> None:
    out = io.StringIO()
    JsonView(out).event(block("\x1b ü\n"))
    assert json.loads(out.getvalue())["text"] == "\x1b ü\n"
    assert out.getvalue().count("\n") == 1


def test_plain_values_say_unknown_as_null_and_enums_as_words() -> None:
    turn = pb.Turn(turn_id="t", context_state=types.CONTEXT_STATE_LIVE)
    found = plain(turn)
    assert (found["context_state"], found["outcome"], found["agent"], found["locator"]) == ("LIVE", None, None, None)
    assert set(found) == {field.name for field in pb.Turn.DESCRIPTOR.fields}
    usage = plain(pb.Usage(input_tokens=0))
    assert usage == {"input_tokens": 0, "output_tokens": None, "cache_read_tokens": None, "cache_write_tokens": None}
    assert plain(pb.RawFrame(frame=b"\x00"))["frame"] == "AA=="
    assert plain(pb.Agent(capabilities={"a": "yes"}))["capabilities"] == {"a": "yes"}
    assert word(turn, "context_state") == "LIVE"


def test_every_enum_word_of_the_contract_has_lost_its_prefix() -> None:
    for file in (pb.DESCRIPTOR, types.DESCRIPTOR):
        for enum in file.enum_types_by_name.values():
            for value in enum.values:
                found = enum_word(enum, value.number)
                assert (found is None) == (value.number == 0)
                assert found is None or not found.startswith(enum.name.upper())
