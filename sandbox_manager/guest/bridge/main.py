"""Entry point. `--version` prints the helper's name, `--measure` its digest; else it serves its client on standard input and output.

    main SERVER_EXECUTABLE --flavour opencode|kilo --directory DIRECTORY [--mode auto|ask|deny] [--wire-fd N] [--retries-max N]

It ends when its input ends, on SIGTERM, when its server does, or after a turn that will have no native end; the server and its children
end with it in each case.
"""

import argparse
import asyncio
import ctypes
import json
import os
import signal
import sys
from typing import Any

from . import HELPER, PROTOCOL
from .bridge import Bridge
from .flavours import FLAVOURS
from .own_digest import own_digest
from .protocol import encode
from .server_process import ServerProcess

LINE_BYTES_MAX = 64 << 20
RETRIES_MAX = 6
_PR_SET_DUMPABLE = 4
EXIT_SERVER_LEFT = 3
EXIT_TURN_BROKEN = 4
MODES = ("auto", "ask", "deny")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="bridge", description=__doc__)
    parser.add_argument("--version", action="version", version=HELPER)
    parser.add_argument("--measure", action="store_true", help="print this program's own digest as JSON and end")
    parser.add_argument("server", nargs="?", help="the server's executable, an absolute path")
    parser.add_argument("--flavour", choices=sorted(FLAVOURS))
    parser.add_argument("--directory", help="the conversation's directory, an absolute path")
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help="what is done with a permission request")
    parser.add_argument("--wire-fd", type=int, help="the supervisor's way to the server")
    parser.add_argument("--retries-max", type=int, default=RETRIES_MAX)
    asked = parser.parse_args(argv)
    if asked.measure:
        print(json.dumps({"helper": HELPER, "protocol": PROTOCOL, "digest": own_digest()}), flush=True)
        return 0
    if asked.server is None or asked.flavour is None or asked.directory is None:
        parser.error("expected SERVER_EXECUTABLE, --flavour and --directory")
    _close_to_siblings()
    return asyncio.run(_serve(asked))


def _close_to_siblings() -> None:
    """Not to be traced: an interpreter is a readable program, so without this any tool of the same user could."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class _Output:
    """Standard output: whole lines, in order, with the client's pace as ours.

    Not asyncio's: its pipes take a socket whose other end was shut for writing, which the supervisor's is, for a closed one.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = asyncio.Lock()
        os.set_blocking(fd, False)

    async def say(self, event: dict[str, Any]) -> None:
        """Raises OSError when nobody reads any more."""
        async with self._lock:
            left = memoryview(encode(event))
            while left:
                try:
                    left = left[os.write(self._fd, left) :]
                except BlockingIOError:
                    await self._room()

    async def _room(self) -> None:
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._fd, lambda: None if room.done() else room.set_result(None))
        try:
            await room
        finally:
            loop.remove_writer(self._fd)


async def _serve(asked: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", buffering=0))
    flavour = FLAVOURS[asked.flavour]
    server = ServerProcess(flavour, asked.server, asked.directory, asked.wire_fd)
    say = _Output(1).say
    bridge = Bridge(flavour, server, dict(os.environ), say, mode=asked.mode, retries_max=asked.retries_max)
    leaving = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    watch: asyncio.Task[int] | None = None
    stop = asyncio.create_task(leaving.wait())
    broken = asyncio.create_task(bridge.broken.wait())
    code = 0
    try:
        while True:
            line = asyncio.create_task(reader.readline())
            waits: set[asyncio.Future[Any]] = {line, stop, broken, *([watch] if watch is not None else [])}
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if line not in done:
                line.cancel()
                code = EXIT_TURN_BROKEN if broken in done else EXIT_SERVER_LEFT if watch in done else 0
                break
            data = line.result()
            if not data.endswith(b"\n"):
                break  # the client is gone; half a line is no line
            # Opening takes as long as the server needs; a signal must not wait for it.
            taking = asyncio.create_task(bridge.take(data[:-1]))
            await asyncio.wait({taking, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)
                break
            taking.result()
            if watch is None and bridge.is_open:
                watch = asyncio.create_task(bridge.server_ended())
    except (OSError, ValueError):
        code = 1
    finally:
        stop.cancel()
        broken.cancel()
        if watch is not None:
            watch.cancel()
        await bridge.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
