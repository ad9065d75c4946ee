"""A RESTORED turn in a stopped container against `docker start` and the CLI's own resume by hand, in turn.

By hand: `docker start`, `docker exec claude --resume`, the native initialize, the message. Both send the same messages, so both resume
histories of equal length. On `local` there is no container to start: there it is told what the CLI's own resume costs, and not judged.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from standfast_lab.bare_claude import QUIET_ENVIRONMENT, BareClaude, bare_environment
from standfast_lab.bench.bare_turns import FLAGS, bare_turn
from standfast_lab.bench.figures import Figure, median, summed_up
from standfast_lab.bench.hand_container import EXECUTABLE, HOME, MODEL_PORT, HandContainer
from standfast_lab.bench.site import Site
from standfast_lab.bench.turns import timed_turn

_WARM_UP = 1
_CONVERSATION = "bench-restored"


@dataclass(frozen=True, slots=True)
class Restored:
    """Milliseconds from the beginning. `ready`: the CLI answered its initialize (by hand only)."""

    first_ms: float
    ended_ms: float
    ready_ms: float


class ByHand:
    """The bare thing, in a container or plainly. `run` starts all that does not run, resumes, asks one message and stops all."""

    def __init__(self, site: Site, executable: Path, container: HandContainer | None) -> None:
        self._site = site
        self._executable = executable
        self._container = container
        self._session_id = str(uuid.uuid4())
        self._is_begun = False
        self._home, self._workspace = site.folder / "hand-home", site.folder / "hand-workspace"
        for folder in (self._home, self._workspace):
            folder.mkdir(exist_ok=True)

    async def run(self, message: str) -> Restored:
        """One resume (the first time: one start) and one turn."""
        begun = time.perf_counter()
        if self._container is not None:
            await self._container.start()
            await self._container.open_model_port()
        async with self._cli() as cli:
            await cli.control("initialize")
            ready = (time.perf_counter() - begun) * 1000
            turn = await bare_turn(cli, message, None, self._session_id)
            await cli.close()
        self._is_begun = True
        if self._container is not None:
            await self._container.kill()
        return Restored(ready + turn.first_ms, ready + turn.ended_ms, ready)

    def _cli(self) -> BareClaude:
        if self._container is None:
            return BareClaude(
                self._executable,
                workspace=self._workspace,
                environment=bare_environment(self._home, self._site.lab.base_url),
                session_id=self._session_id,
                is_resume=self._is_begun,
                flags=FLAGS,
            )
        environment = {
            "HOME": HOME,
            "TMPDIR": "/run/slots/1",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "ANTHROPIC_API_KEY": "lab",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{MODEL_PORT}",
            **QUIET_ENVIRONMENT,
        }
        return BareClaude(
            Path(EXECUTABLE),
            workspace=self._workspace,
            environment=None,
            session_id=self._session_id,
            is_resume=self._is_begun,
            flags=FLAGS,
            launcher=self._container.exec_argv(environment, []),
        )


async def restored_figures(
    site: Site, executable: Path, image: str | None, rounds: int, progress: Callable[[int], None]
) -> list[Figure]:
    """Takes pairs in turn. Only what follows the warm-up counts."""
    ours: list[Restored] = []
    bare: list[Restored] = []
    async with AsyncExitStack() as stack:
        container = None
        if image is not None:
            container = await stack.enter_async_context(HandContainer(image, site.folder / "hand", site.lab.port))
        by_hand = ByHand(site, executable, container)
        await timed_turn(site.client, _CONVERSATION, "the first message", "NEW")
        await by_hand.run("the first message")
        for number in range(-_WARM_UP, rounds):
            message = f"message {number + _WARM_UP} after a stop"
            await site.client.stop_conversation(_CONVERSATION)
            turn = await timed_turn(site.client, _CONVERSATION, message, "RESTORED")
            hand = await by_hand.run(message)
            if number >= 0:
                ours.append(Restored(turn.first_ms, turn.ended_ms, turn.first_ms))
                bare.append(hand)
                progress(number + 1)
    goal = None if image is None else 1.10
    against = "the CLI's own resume" if image is None else "docker start + the CLI's own resume by hand"
    figures = []
    for what, mine, theirs in (
        ("first content event", [t.first_ms for t in ours], [t.first_ms for t in bare]),
        ("end of the native turn", [t.ended_ms for t in ours], [t.ended_ms for t in bare]),
    ):
        figures.append(
            Figure(
                "restored",
                f"RESTORED, {what}, over {against}",
                median(mine) / median(theirs),
                "x",
                goal,
                detail=summed_up("ours", mine)
                | summed_up("bare", theirs)
                | {"bare_initialized_median_ms": round(median([t.ready_ms for t in bare]), 3)},
            )
        )
    return figures
