"""Runs the calls of one accepted answer: each ends with exactly one stored result, and nothing changes before it is recorded.

Neighbouring reads run together, at most eight at once; everything else runs alone, in the order of the calls. For each call:
arguments, permission, repetition check, then the work. A change call reads its targets, records all its intents, and only then writes;
a call that may change something in another way is recorded as started first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from direct_agent.intents.observe import DiskWitness
from direct_agent.intents.pending import PendingCalls
from direct_agent.intents.record import encode
from direct_agent.intents.verify import prove
from direct_agent.loop.ports import Audience
from direct_agent.loop.requests import Permission, Requests
from direct_agent.loop.tool_texts import (
    INTERRUPTED,
    NOT_RECORDED,
    REPAIRED_ALREADY,
    cancelled_before,
    not_started,
    repetition_refused,
    result,
)
from direct_agent.ports import Cancellation
from direct_agent.session.errors import SessionWriteError
from direct_agent.tools.arguments import parse
from direct_agent.tools.disk import Disk
from direct_agent.tools.errors import PathError, ToolError
from direct_agent.tools.permissions import Permissions, Ruling
from direct_agent.tools.port import Arguments, Change, ChangeTool, PlainTool, ToolSpec
from direct_agent.tools.toolbox import Toolbox
from direct_agent.transcript import RunState, ToolCall, ToolResult

PARALLEL_MAX = 8


class CallRecords(Protocol):
    """Makes durable what must be before something is done. Each raises SessionWriteError; then it must not be done."""

    async def started(self, call: ToolCall) -> None: ...

    async def intents(self, call: ToolCall, intents: Sequence[str]) -> None: ...

    async def results(self, results: Sequence[ToolResult]) -> None: ...


class ToolRuns:
    """Implements ToolRunner. `pending` are the calls of an interrupted turn whose outcome nobody knows."""

    def __init__(
        self,
        toolbox: Toolbox,
        disk: Disk,
        witness: DiskWitness,
        permissions: Permissions,
        requests: Requests,
        records: CallRecords,
        audience: Audience,
        *,
        pending: PendingCalls | None = None,
    ) -> None:
        self.pending = pending or PendingCalls()
        self._toolbox = toolbox
        self._disk = disk
        self._witness = witness
        self._permissions = permissions
        self._requests = requests
        self._records = records
        self._audience = audience

    async def run(self, calls: Sequence[ToolCall], cancel: Cancellation) -> tuple[ToolResult, ...]:
        """Raises SessionWriteError when a result could not be stored; then no later call was started."""
        done: list[ToolResult] = []
        for group in self._groups(calls):
            if cancel.is_set():
                results = [cancelled_before(call) for call in group]
            elif len(group) == 1:
                results = [await self._one(group[0], cancel)]
            else:
                results = await self._together(group, cancel)
            await self._records.results(results)
            for each in results:
                self._say_result(each)
            done += results
        return tuple(done)

    def _groups(self, calls: Sequence[ToolCall]) -> list[list[ToolCall]]:
        groups: list[list[ToolCall]] = []
        is_open = False
        for call in calls:
            spec = self._spec(call.name)
            is_read = spec is not None and spec.is_read_only
            if is_read and is_open:
                groups[-1].append(call)
            else:
                groups.append([call])
            is_open = is_read
        return groups

    def _spec(self, name: str) -> ToolSpec | None:
        tool = self._toolbox.plain.get(name) or self._toolbox.changes.get(name)
        return tool.spec if tool is not None else None

    async def _together(self, calls: Sequence[ToolCall], cancel: Cancellation) -> list[ToolResult]:
        room = asyncio.Semaphore(PARALLEL_MAX)

        async def one(call: ToolCall) -> ToolResult:
            async with room:
                return cancelled_before(call) if cancel.is_set() else await self._one(call, cancel)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in calls]
        return [task.result() for task in tasks]

    async def _one(self, call: ToolCall, cancel: Cancellation) -> ToolResult:
        try:
            return await self._checked(call, cancel)
        except SessionWriteError:
            # The result cannot be stored either; the turn ends there. Nothing was changed.
            return not_started(call, NOT_RECORDED)
        except ToolError as refused:
            # The tool gave its answer, and the answer is no: that is an outcome, and a known one.
            return result(call, str(refused), RunState.COMPLETED, is_error=True)

    async def _checked(self, call: ToolCall, cancel: Cancellation) -> ToolResult:
        plain, change = self._toolbox.plain.get(call.name), self._toolbox.changes.get(call.name)
        tool = plain or change
        if tool is None:
            known = ", ".join(spec.name for spec in self._toolbox.specs)
            raise ToolError(f"expected one of the tools {known}, found {call.name[:100]!r}")
        arguments = parse(tool.spec, call.arguments)
        refusal = await self._permitted(call, tool, arguments, cancel)
        if refusal is not None:
            return refusal
        if not tool.spec.is_read_only:
            repeated = await self._repetition(call)
            if repeated is not None:
                return repeated
        if change is not None:
            return await self._change(call, change, arguments, cancel)
        assert plain is not None
        return await self._plain(call, plain, arguments, cancel)

    async def _permitted(
        self, call: ToolCall, tool: PlainTool | ChangeTool, arguments: Arguments, cancel: Cancellation
    ) -> ToolResult | None:
        """None when it may run."""
        named = tool.subjects(arguments)
        is_path = bool(named) and call.name != "shell"
        subjects = await asyncio.to_thread(self._led_to, named) if is_path else named
        ruling = self._permissions.rule(call.name, subjects, is_read_only=tool.spec.is_read_only)
        if ruling is Ruling.RUN:
            return None
        if ruling is Ruling.REFUSE:
            return not_started(call, "refused: the permission rules of this session do not allow it; it was not run")
        asked = asyncio.ensure_future(
            self._requests.permission(Permission(call.call_id, call.name, subjects, call.arguments))
        )
        if not await _first(asked, cancel):
            return cancelled_before(call)
        answer = asked.result()
        if answer.allow:
            return None
        said = f": {answer.message}" if answer.message else ""
        return not_started(call, f"the person refused this call{said}; it was not run")

    def _led_to(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Each path as named and as it really leads, relative to the workspace."""
        workspace = self._disk.workspace
        found: dict[str, None] = {}
        for path in paths:
            found[workspace.relative(path)] = None
            try:
                with workspace.walk(path) as place:
                    found["/".join(place.resolved) or "."] = None
            except PathError:
                continue  # the tool itself says what is wrong with it
        return tuple(found)

    async def _repetition(self, call: ToolCall) -> ToolResult | None:
        """The answer for a call that is pending with an unknown outcome; None for a new one. Looks at the disk anew."""
        same = self.pending.same_as(call)
        if not same:
            return None
        proofs = [await asyncio.to_thread(prove, one.intents, self._witness.look) for one in same]
        if all(proof.is_satisfied for proof in proofs):
            return result(call, REPAIRED_ALREADY, RunState.COMPLETED)
        return repetition_refused(call, proofs)

    async def _change(self, call: ToolCall, tool: ChangeTool, arguments: Arguments, cancel: Cancellation) -> ToolResult:
        self._say_call(call)
        changes = await asyncio.to_thread(tool.plan, arguments)
        needed = [change for change in changes if change.is_needed]
        if cancel.is_set():
            return cancelled_before(call)
        if needed:
            await self._records.intents(call, [encode(self._witness.intent(change)) for change in needed])
            failure = await self._put(needed)
            if failure is not None:
                return result(call, failure, RunState.COMPLETED, is_error=True)
        return result(call, tool.report(changes), RunState.COMPLETED)

    async def _put(self, changes: Sequence[Change]) -> str | None:
        """Writes them one by one; a text says what stopped it and what is already written."""
        written: list[str] = []
        try:
            for change in changes:
                await asyncio.to_thread(self._disk.check_unchanged, change)
            for change in changes:
                await asyncio.to_thread(self._disk.put, change)
                written.append(change.path)
        except (ToolError, OSError) as error:
            said = str(error) if isinstance(error, ToolError) else "the disk refused a write"
            done = f" Already written: {', '.join(written)}." if written else " Nothing was written."
            return f"{said}.{done}"
        return None

    async def _plain(self, call: ToolCall, tool: PlainTool, arguments: Arguments, cancel: Cancellation) -> ToolResult:
        if not tool.spec.is_read_only:
            await self._records.started(call)
        if cancel.is_set():
            return cancelled_before(call)
        self._say_call(call)
        work = asyncio.ensure_future(tool.run(arguments))
        if not await _first(work, cancel):
            return result(call, INTERRUPTED, RunState.UNKNOWN, is_error=True)
        try:
            output = work.result()
        except ToolError as refused:
            return result(call, str(refused), RunState.COMPLETED, is_error=True)
        return result(call, output.text, RunState.COMPLETED, is_error=output.is_error)

    def _say_call(self, call: ToolCall) -> None:
        self._audience.say({"type": "tool_started", "call_id": call.call_id, "tool": call.name})

    def _say_result(self, each: ToolResult) -> None:
        self._audience.say(
            {
                "type": "tool_result",
                "call_id": each.call_id,
                "tool": each.name,
                "text": each.output,
                "state": each.state.value if each.state else None,
                "is_error": each.is_error,
            }
        )


async def _first(work: asyncio.Future[Any], cancel: Cancellation) -> bool:
    """Whether the work came first. Otherwise it was cancelled, and is over when this returns."""
    cancelled = asyncio.ensure_future(cancel.wait())
    try:
        await asyncio.wait({work, cancelled}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        cancelled.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
    return not work.cancelled()
