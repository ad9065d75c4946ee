"""Every reason that the manager can raise has a gRPC code, and it is the one that the contract promises."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from sandbox_manager.core import errors, refusals
from sandbox_manager.status import CODES
from standfast_chassis.errors import StandfastError

REPO = Path(__file__).parent.parent.parent.parent
PROTO = (REPO / "proto/standfast/types/v1/error_reason.proto").read_text()
PROMISED = {
    reason: code for code, reason in re.findall(r"// ([A-Z_]+)\. [^\n]*\n\s+ERROR_REASON_([A-Z_]+) = \d+;", PROTO)
}
# Of a start: no caller of an RPC sees it, so the contract does not list it.
_NOT_IN_THE_CONTRACT = {"MANIFEST_UNUSABLE"}


def raised_reasons() -> set[str]:
    """Reasons of all error classes of the manager's own modules."""
    found = set()
    for module in (errors, refusals):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, StandfastError) and kind.__module__ == module.__name__:
                found.add(kind.reason)
    # Bases and causes are never the reason of an answer; an impossible transition is a fault of ours and goes out as INTERNAL.
    return found - {"INTERNAL", "STORE_BEHIND", "ILLEGAL_TRANSITION"}


@pytest.mark.parametrize("reason", sorted(raised_reasons()))
def test_every_reason_that_is_raised_has_a_code(reason: str) -> None:
    assert reason in CODES


@pytest.mark.parametrize("reason", sorted(CODES))
def test_the_code_is_the_one_that_the_contract_promises(reason: str) -> None:
    if reason in _NOT_IN_THE_CONTRACT:
        assert reason not in PROMISED
    else:
        assert CODES[reason].name == PROMISED[reason]


def test_every_reason_named_in_the_conductor_has_a_code() -> None:
    """Reasons that are given as text to AttestationRefusedError."""
    named = set()
    for name in ("registering", "sandboxes"):
        module = importlib.import_module(f"sandbox_manager.conductor.{name}")
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in PROMISED:
                named.add(node.value)
    assert named
    assert named <= set(CODES)
