"""The process of case rpc-child-process-after-channel: makes calls on a channel while it starts children and a worker pool,
and prints what happened as JSON. Run by test_chassis_server.py as `python -m tests.wire.chassis_children STEPS`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import grpc

from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.grpc_server import GrpcServer

_AT_ONCE = 20


async def _echo(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    return request


def _work(number: int) -> int:
    return number + os.getpid() * 0


async def run(every_ms: int, count: int, command: str, pool_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {"calls_answered": 0, "calls_failed": 0, "forks_without_exec": 0}

    # fork() runs these; fork and exec in one step (what subprocess does) does not.
    def forked() -> None:
        found["forks_without_exec"] += 1

    os.register_at_fork(before=forked)
    async with GrpcServer(codes={}) as server:
        handler: Any = grpc.unary_unary_rpc_method_handler(_echo)
        server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", {"Call": handler})])
        port = server.listen("127.0.0.1:0")
        await server.start(["test.Echo"])
        async with open_channel(f"127.0.0.1:{port}") as channel:
            echo: Any = channel.unary_unary("/test.Echo/Call")
            await echo(b"x", timeout=10)
            is_done = asyncio.Event()

            async def call_all_the_time() -> None:
                while not is_done.is_set():
                    try:
                        await echo(b"x", timeout=10)
                        found["calls_answered"] += 1
                    except grpc.aio.AioRpcError:
                        found["calls_failed"] += 1
                    await asyncio.sleep(every_ms / 1000)

            async def child() -> int:
                return await (await asyncio.create_subprocess_exec(command)).wait()

            async with asyncio.TaskGroup() as group:
                group.create_task(call_all_the_time())
                began = time.monotonic()
                codes: list[int] = []
                while len(codes) < count:
                    codes += await asyncio.gather(*(child() for _ in range(min(_AT_ONCE, count - len(codes)))))
                found["children_took_s"] = time.monotonic() - began
                context = multiprocessing.get_context("spawn")
                loop = asyncio.get_running_loop()
                with ProcessPoolExecutor(pool_size, mp_context=context) as executor:
                    answers = await asyncio.gather(*(loop.run_in_executor(executor, _work, n) for n in range(8)))
                is_done.set()
    found |= {
        "children": len(codes),
        "children_with_code_0": codes.count(0),
        "pool_start_method": context.get_start_method(),
        "pool_answers": len(answers),
        "fork_support": os.environ.get("GRPC_ENABLE_FORK_SUPPORT"),
    }
    return found


def main() -> None:
    _, calls, children, pool = json.loads(sys.argv[1])
    found = asyncio.run(run(calls["every_ms"], children["count"], children["command"], pool["size"]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
