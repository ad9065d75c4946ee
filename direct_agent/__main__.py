"""`python -m direct_agent`: the agent on a stdio, for programs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from direct_agent.assembly import assemble, open_session, open_transport
from direct_agent.loop.agent import Agent
from direct_agent.settings import VERSION, Settings, SettingsError, from_arguments, parser
from direct_agent.stdio.program import Program
from direct_agent.stdio.streams import LinesIn, LinesOut

EXIT_SETTINGS = 2
EXIT_FAULT = 1


async def _run(settings: Settings, environment: Mapping[str, str]) -> int:
    out = LinesOut(sys.stdout.fileno())
    about = {
        "agent": "direct",
        "version": VERSION,
        "model": settings.endpoint.model,
        "permission_mode": settings.permissions.mode.value,
    }
    async with open_transport(settings, environment) as transport:

        def open_agent(audience: LinesOut) -> Agent:
            session = open_session(settings)
            try:
                return assemble(settings, session, transport, audience, environment)
            except BaseException:
                session.close()
                raise

        program = Program(LinesIn(sys.stdin.fileno()), out, open_agent, about)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, program.leave)
        await program.run()
    await asyncio.to_thread(out.close)
    return EXIT_FAULT if program.has_crashed or out.is_lost else 0


def main(argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    try:
        settings = from_arguments(parser("python -m direct_agent").parse_args(argv))
        return asyncio.run(_run(settings, os.environ if environment is None else environment))
    except SettingsError as error:
        print(f"direct: {error}", file=sys.stderr)
        return EXIT_SETTINGS


if __name__ == "__main__":
    # Without waiting for the thread that may still read stdin.
    code = main()
    sys.stdout.flush()
    os._exit(code)
