"""The official clients of OpenAI and Anthropic as peers: they parse what the lab provider sends and name its faults."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from standfast_lab.provider import LabProvider

TOOL = 'look [[lab:tool=Bash {"command":"ls"}]]'
USAGE = "x [[lab:usage=1200x34]]"


@pytest.fixture
async def lab() -> AsyncIterator[LabProvider]:
    async with LabProvider(api_keys=["right"]) as provider:
        yield provider
        assert provider.failures == ()


@pytest.fixture
async def openai_client(lab: LabProvider) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{lab.base_url}/v1", api_key="right", max_retries=0, timeout=10, organization=None
    ) as client:
        yield client


@pytest.fixture
async def anthropic_client(lab: LabProvider) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=lab.base_url, api_key="right", max_retries=0, timeout=10) as client:
        yield client


# --- Chat Completions -------------------------------------------------------------------------------------------------


async def chat(client: openai.AsyncOpenAI, *texts: str) -> Any:
    return await client.chat.completions.create(model="m", messages=spoken(*texts))


async def chat_stream(client: openai.AsyncOpenAI, *texts: str) -> list[Any]:
    stream: Any = await client.chat.completions.create(
        model="m", messages=spoken(*texts), stream=True, stream_options={"include_usage": True}
    )
    return [chunk async for chunk in stream]


def spoken(*texts: str) -> Any:
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


def chat_text(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def test_chat_gives_the_same_reply_whole_and_streamed(openai_client: openai.AsyncOpenAI) -> None:
    asked = ("remember: the word is plum", "noted: plum", "what is the word?")
    whole = await chat(openai_client, *asked)
    chunks = await chat_stream(openai_client, *asked)
    assert whole.choices[0].message.content == chat_text(chunks) == "the word is plum"
    assert whole.choices[0].finish_reason == "stop"
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 0


async def test_chat_streams_a_tool_call_and_takes_its_result(openai_client: openai.AsyncOpenAI) -> None:
    async with openai_client.chat.completions.stream(model="m", messages=spoken(TOOL)) as stream:
        choice = (await stream.get_final_completion()).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("Bash", {"command": "ls"})
    after: Any = [
        *spoken(TOOL),
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump(include={"id", "type", "function"})]},
        {"role": "tool", "tool_call_id": call.id, "content": "made.txt"},
    ]
    told = await openai_client.chat.completions.create(model="m", messages=after)
    assert (told.choices[0].message.content or "").startswith("echo 1")


@pytest.mark.parametrize(
    ("word", "finish", "is_empty"),
    [("empty", "stop", True), ("refusal", "content_filter", True), ("max_tokens", "length", False)],
)
async def test_chat_says_why_it_stopped(
    openai_client: openai.AsyncOpenAI, word: str, finish: str, is_empty: bool
) -> None:
    chunks = await chat_stream(openai_client, f"x [[lab:{word}]]")
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [finish]
    assert (chat_text(chunks) == "") == is_empty


async def test_chat_names_an_error_inside_the_stream(openai_client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIError, match="error inside the stream"):
        await chat_stream(openai_client, "x [[lab:error-event]]")


# --- Responses --------------------------------------------------------------------------------------------------------


async def respond(client: openai.AsyncOpenAI, *texts: str) -> Any:
    return await client.responses.create(model="m", input=spoken(*texts))


async def respond_stream(client: openai.AsyncOpenAI, *texts: str) -> list[Any]:
    stream: Any = await client.responses.create(model="m", input=spoken(*texts), stream=True)
    return [event async for event in stream]


async def test_responses_give_the_same_reply_whole_and_streamed(openai_client: openai.AsyncOpenAI) -> None:
    asked = ("remember: the word is plum", "noted: plum", "what is the word?")
    whole = await respond(openai_client, *asked)
    async with openai_client.responses.stream(model="m", input=spoken(*asked)) as stream:
        streamed = await stream.get_final_response()
    assert whole.output_text == streamed.output_text == "the word is plum"
    assert (whole.status, streamed.status) == ("completed", "completed")
    assert streamed.usage is not None
    assert streamed.usage.input_tokens == whole.usage.input_tokens > 0


async def test_responses_number_their_events_and_tell_a_text_three_times_alike(
    openai_client: openai.AsyncOpenAI,
) -> None:
    events = await respond_stream(openai_client, "[[lab:say a reply of some length]] [[lab:think=hm]]")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    (done,) = [event.text for event in events if event.type == "response.output_text.done"]
    items = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.type for item in items] == ["reasoning", "message"]
    assert deltas == done == items[1].content[0].text == events[-1].response.output_text == "a reply of some length"


async def test_responses_stream_a_tool_call_and_take_its_result(openai_client: openai.AsyncOpenAI) -> None:
    async with openai_client.responses.stream(model="m", input=spoken(TOOL)) as stream:
        (call,) = (await stream.get_final_response()).output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("Bash", {"command": "ls"})
    sent = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "made.txt"}
    after: Any = [*spoken(TOOL), sent, output]
    told = await openai_client.responses.create(model="m", input=after)
    assert told.output_text.startswith("echo 1")


@pytest.mark.parametrize(
    ("word", "status", "reason", "is_empty"),
    [
        ("empty", "completed", None, True),
        ("refusal", "incomplete", "content_filter", True),
        ("max_tokens", "incomplete", "max_output_tokens", False),
    ],
)
async def test_responses_say_why_they_stopped(
    openai_client: openai.AsyncOpenAI, word: str, status: str, reason: str | None, is_empty: bool
) -> None:
    ended = (await respond_stream(openai_client, f"x [[lab:{word}]]"))[-1].response
    assert (ended.status, ended.incomplete_details and ended.incomplete_details.reason) == (status, reason)
    assert (ended.output_text == "") == is_empty


async def test_responses_name_an_error_inside_the_stream(openai_client: openai.AsyncOpenAI) -> None:
    events = await respond_stream(openai_client, "x [[lab:error-event=rate_limit_error]]")
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "rate_limit_exceeded"


# --- what OpenAI's two protocols share --------------------------------------------------------------------------------

ERRORS = {
    "status=400": (openai.BadRequestError, None),
    "status=401": (openai.AuthenticationError, "invalid_api_key"),
    "retry-after=2": (openai.RateLimitError, "rate_limit_exceeded"),
    "status=429 type=insufficient_quota": (openai.RateLimitError, "insufficient_quota"),
    "status=500": (openai.InternalServerError, "server_error"),
    "status=529": (openai.InternalServerError, "server_is_overloaded"),
}


@pytest.mark.parametrize("ask", [chat, chat_stream, respond, respond_stream])
@pytest.mark.parametrize("word", ERRORS)
async def test_a_status_is_the_clients_own_error(openai_client: openai.AsyncOpenAI, ask: Any, word: str) -> None:
    kind, code = ERRORS[word]
    with pytest.raises(kind, match="lab: status") as raised:
        await ask(openai_client, f"x [[lab:{word}]]")
    assert raised.value.code == code
    if word.startswith("retry-after"):
        assert raised.value.response.headers["retry-after"] == "2"


@pytest.mark.parametrize("ask", [chat_stream, respond_stream])
@pytest.mark.parametrize("where", ["before-head", "after-head", "mid-text", "mid-event", "mid-chunk", "before-stop"])
async def test_a_cut_is_no_end(openai_client: openai.AsyncOpenAI, ask: Any, where: str) -> None:
    with pytest.raises(openai.APIConnectionError):
        await ask(openai_client, f"x [[lab:cut={where}]]")


@pytest.mark.parametrize("ask", [chat, respond])
async def test_a_wrong_key_is_refused_and_a_claimed_usage_is_told(lab: LabProvider, ask: Any) -> None:
    async with openai.AsyncOpenAI(base_url=f"{lab.base_url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await ask(stranger, "x")
    async with openai.AsyncOpenAI(base_url=f"{lab.base_url}/v1", api_key="right", max_retries=0) as known:
        usage = (await ask(known, USAGE)).usage.model_dump()
    assert [count for name, count in usage.items() if name in ("prompt_tokens", "input_tokens")] == [1200]
    assert usage["total_tokens"] == 1234


@pytest.mark.parametrize("ask", [chat_stream, respond_stream])
async def test_any_text_survives_both_ways(openai_client: openai.AsyncOpenAI, lab: LabProvider, ask: Any) -> None:
    text = 'q" \\ \u2028 \U0001f600 \r\n\t\x00 \u200b'
    answered = await ask(openai_client, f"x [[lab:say {text}]]")
    found = chat_text(answered) if ask is chat_stream else answered[-1].response.output_text
    assert found == text
    assert lab.log.roots()[-1]["messages"][0]["texts"] == [f"x [[lab:say {text}]]"]


# --- Messages ---------------------------------------------------------------------------------------------------------


async def test_messages_give_the_same_reply_whole_and_streamed(anthropic_client: anthropic.AsyncAnthropic) -> None:
    asked = spoken("remember: the word is plum", "noted: plum", "what is the word?")
    whole = await anthropic_client.messages.create(model="m", max_tokens=9, messages=asked)
    async with anthropic_client.messages.stream(model="m", max_tokens=9, messages=asked) as stream:
        streamed = await stream.get_final_message()
    assert [block.model_dump()["text"] for block in whole.content] == ["the word is plum"]
    assert [block.model_dump()["text"] for block in streamed.content] == ["the word is plum"]
    assert whole.stop_reason == streamed.stop_reason == "end_turn"


async def test_messages_stream_a_tool_call(anthropic_client: anthropic.AsyncAnthropic) -> None:
    async with anthropic_client.messages.stream(model="m", max_tokens=9, messages=spoken(TOOL)) as stream:
        (call,) = (await stream.get_final_message()).content
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("Bash", {"command": "ls"})


async def test_messages_name_their_errors(anthropic_client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.RateLimitError):
        await anthropic_client.messages.create(model="m", max_tokens=9, messages=spoken("x [[lab:retry-after=2]]"))
    with pytest.raises(anthropic.APIStatusError, match="error inside the stream"):
        async with anthropic_client.messages.stream(
            model="m", max_tokens=9, messages=spoken("x [[lab:error-event]]")
        ) as stream:
            await stream.get_final_message()
