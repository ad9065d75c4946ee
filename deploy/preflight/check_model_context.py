"""Asks a gateway whether the model behind it sees its history: five groups of questions, one call each a repetition.

The calls are real and billed. Each is one request, never retried. The key is read from the file that
CLOUD_AGENT_TEST_API_KEY_FILE names; CLOUD_AGENT_TEST_PROXY may name a proxy.

Exit: 0 the history was recalled and thinking was seen, 1 recall or the protocol failed, 2 wrong usage,
3 only thinking was absent.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import random
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.preflight.gateway import CallLimits, asked, endpoint_of
from deploy.preflight.key_file import PROXY_VARIABLE, PreflightUsageError, read_key
from deploy.preflight.questions import GROUPS, Words, questions
from deploy.preflight.report import as_json, show
from deploy.preflight.result import Call, PreflightResult
from deploy.release.pins import load_pins
from direct_agent.adapters.http_transport import Credential, HttpTransport, Timeouts, x_api_key
from standfast_chassis.secret_mask import SecretMask

DEFAULT_MODEL = "deepseek-v4-flash"
DEFAULT_REPETITIONS = 3
_NAMES = ("Mirella", "Tobias", "Yuki", "Ottoline", "Rashid", "Henrike", "Calder", "Bronwen")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    arguments = _parser().parse_args(argv)
    err = Console(stderr=True)
    try:
        gateway = gateway_of(arguments.url)
        key = read_key()
        if arguments.result is not None and not arguments.result.parent.is_dir():
            raise PreflightUsageError(f"the folder of --result does not exist: {arguments.result.parent}")
    except PreflightUsageError as error:
        err.print(f"check_model_context: {error}", markup=False, highlight=False)
        return 2
    mask = SecretMask()
    mask.register(key, "key")
    count = arguments.repetitions * len(GROUPS)
    err.print(
        f"{count} calls to {arguments.model} at {gateway} follow. They are real and the provider bills them.",
        markup=False,
    )
    limits = CallLimits(arguments.call_timeout, min(arguments.call_timeout, CallLimits().idle_s))
    credential = Credential(lambda: key) if arguments.auth == "bearer" else x_api_key(lambda: key)
    calls = asyncio.run(_calls(arguments, credential, limits, err))
    pins = {name: pin.version for name, pin in load_pins().items()}
    result = PreflightResult(gateway, arguments.model, pins, time.time(), calls)
    report = as_json(result, mask.text)
    if arguments.result is not None:
        arguments.result.write_text(report + "\n")
    if arguments.json:
        print(report)
    else:
        show(result, Console(), mask.text)
    return result.exit_code


def gateway_of(url: str) -> str:
    """Scheme, host and port of the address. Raises PreflightUsageError for one that a key must not be sent to."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise PreflightUsageError("the URL cannot be read") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PreflightUsageError("expected a URL like https://gateway.example.com")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise PreflightUsageError("the URL must hold no credential, query or fragment")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise PreflightUsageError("http:// would send the key in clear text: only https, or a loopback address")
    return f"{parts.scheme}://{parts.hostname}{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _calls(
    arguments: argparse.Namespace, credential: Credential, limits: CallLimits, console: Console
) -> list[Call]:
    endpoint = endpoint_of(arguments.url, arguments.model)
    timeouts = Timeouts(idle_s=limits.idle_s)
    calls: list[Call] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=arguments.json and not console.is_terminal) as progress:
        task = progress.add_task("asking", total=arguments.repetitions * len(GROUPS))
        async with HttpTransport(
            credential, timeouts, proxy=os.environ.get(PROXY_VARIABLE) or None, user_agent="standfast-preflight"
        ) as transport:
            for repetition in range(1, arguments.repetitions + 1):
                for question in questions(_words()):
                    calls.append(await asked(endpoint, transport, question, repetition, limits))
                    progress.advance(task)
    return calls


def _words() -> Words:
    """Words of one repetition, so that no cache knows the answers."""
    chance = random.SystemRandom()
    old, new = chance.sample(range(1000, 10_000), 2)
    files = tuple(f"{name}_{secrets.token_hex(2)}.txt" for name in ("alpha", "birch", "cedar"))
    return Words(
        chance.choice(_NAMES), f"tangerine-{secrets.token_hex(3)}", (files[0], files[1], files[2]), str(old), str(new)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.preflight.check_model_context",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="base address of the gateway, Messages protocol")
    parser.add_argument(
        "--repetitions", type=_positive, default=DEFAULT_REPETITIONS, metavar="N", help="default: 3, so 15 calls"
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--auth", choices=("x-api-key", "bearer"), default="x-api-key", help="how the key is sent")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument(
        "--result", type=Path, metavar="FILE", help="also keep the JSON result, for a later look at what has changed"
    )
    parser.add_argument(
        "--call-timeout", type=_positive, default=600, metavar="S", help="seconds a call may take; default: 600"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError("expected a number from 1 to 10000")
    return value


if __name__ == "__main__":
    sys.exit(main())
