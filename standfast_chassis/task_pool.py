"""Long-lived tasks of a process (one per turn, say): owned, bounded, and contained when they crash.

Unlike an asyncio.TaskGroup, one task's crash does not end its siblings: it is logged and the slot becomes free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import structlog

from standfast_chassis.errors import TaskPoolClosedError, TaskPoolFullError

_log = structlog.get_logger("standfast.tasks")


class TaskPool:
    """`async with TaskPool("turns") as pool: pool.start(lambda: run(turn), name=turn_id)`.

    `on_crash`: called with the task's name and its exception, after it was logged; for a supervisor that must act.
    """

    def __init__(
        self,
        name: str,
        *,
        tasks_max: int = 10_000,
        close_timeout_s: float = 10.0,
        on_crash: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        self.name = name
        self._tasks_max = tasks_max
        self._close_timeout_s = close_timeout_s
        self._on_crash = on_crash
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, make: Callable[[], Coroutine[Any, Any, Any]], *, name: str) -> asyncio.Task[None]:
        """Starts `make()` as a task. Takes a function and not a coroutine, so that a refusal leaves none unawaited.

        The task returned never raises but CancelledError; cancel it, or wait for it, as needed. Raises
        TaskPoolFullError or TaskPoolClosedError.
        """
        if self._is_closing:
            raise TaskPoolClosedError(f"{self.name} is closing; {name} was not started.", {"pool": self.name})
        if len(self._tasks) >= self._tasks_max:
            raise TaskPoolFullError(
                f"{self.name} runs {len(self._tasks)} tasks, which is its bound; {name} was not started. Retry later.",
                {"pool": self.name, "tasks_max": self._tasks_max},
            )
        task = asyncio.get_running_loop().create_task(self._contained(make, name), name=f"{self.name}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancels all tasks and waits for them, for a bounded time. May be called again."""
        self._is_closing = True
        # A task that closes the pool itself must not wait for its own end.
        own = asyncio.current_task()
        tasks = {task for task in self._tasks if task is not own}
        for task in tasks:
            task.cancel("the pool is closing")
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=self._close_timeout_s)
        if late:
            _log.error(
                "tasks did not end when cancelled",
                pool=self.name,
                tasks=sorted(task.get_name() for task in late),
                waited_s=self._close_timeout_s,
            )

    async def _contained(self, make: Callable[[], Coroutine[Any, Any, Any]], name: str) -> None:
        try:
            await make()
        except Exception as error:  # noqa: BLE001 - the outermost frame of a task
            _log.exception("a task crashed", pool=self.name, task=name)
            if self._on_crash is not None:
                self._on_crash(name, error)
