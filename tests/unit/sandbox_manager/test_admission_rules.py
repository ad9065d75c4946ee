"""Claims, locators, expectations, and evidence against the manifest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.attestors.manifest import CliPin, Manifest, compare, items_of
from sandbox_manager.core.claims import Claim, ClaimedTurn, ClaimRuling, rule_on_claim
from sandbox_manager.core.errors import (
    ConversationBusyError,
    ConversationExistsError,
    LegacyConversationError,
    LocatorMismatchError,
    LocatorRequiredError,
    MessageChangedError,
    StoreBehindError,
    TurnElsewhereError,
)
from sandbox_manager.core.locators import Expect, LabelledContainer, check_expectation, resolve_locator
from sandbox_manager.core.values import Verdict
from tests.unit.sandbox_manager.settled_turn import LOCATOR, OTHER_SESSION, digest

INPUTS = Path(__file__).parents[2] / "cases" / "inputs"

# --- claims --------------------------------------------------------------------------------------------------------------------------
CLAIM = Claim("turn-1", digest("charge the card"), 15, "runner-1")
HELD = ClaimedTurn("turn-1", CLAIM.message_digest, 15, "runner-1", "127.0.0.1:1", is_open=True, runner_alive=True)
OTHER = replace(HELD, turn_id="turn-0")


def test_a_turn_that_nobody_has_is_claimed() -> None:
    assert rule_on_claim(CLAIM, None, None) is ClaimRuling.NEW


@pytest.mark.parametrize(
    ("same", "ruling"),
    [
        ({}, ClaimRuling.SAME),
        ({"runner_alive": False}, ClaimRuling.SAME),
        ({"runner_id": "runner-2", "runner_alive": False}, ClaimRuling.ADOPTED),
        ({"is_open": False}, ClaimRuling.FINISHED),
        ({"is_open": False, "runner_id": "runner-2"}, ClaimRuling.FINISHED),
    ],
)
def test_the_same_turn_never_runs_twice(same: dict[str, Any], ruling: ClaimRuling) -> None:
    """Case rpc-double-submission: attached to while it runs, answered from the record afterwards."""
    assert rule_on_claim(CLAIM, replace(HELD, **same), None) is ruling
    assert rule_on_claim(CLAIM, replace(HELD, **same), OTHER) is ruling


def test_a_turn_at_another_runner_is_there() -> None:
    with pytest.raises(TurnElsewhereError) as refused:
        rule_on_claim(CLAIM, replace(HELD, runner_id="runner-2"), None)
    assert refused.value.metadata["address"] == "127.0.0.1:1"


@pytest.mark.parametrize("change", [{"message_digest": digest("x")}, {"message_length": 1}])
@pytest.mark.parametrize("is_open", [True, False])
def test_the_same_turn_with_another_message_is_refused(change: dict[str, Any], is_open: bool) -> None:
    with pytest.raises(MessageChangedError):
        rule_on_claim(CLAIM, replace(HELD, is_open=is_open, **change), None)


def test_one_prompt_is_unresolved_at_a_time() -> None:
    """Case file-two-writers: the second is refused while the first runs."""
    with pytest.raises(ConversationBusyError):
        rule_on_claim(CLAIM, None, replace(OTHER, runner_id="runner-2"))
    assert (
        rule_on_claim(CLAIM, None, replace(OTHER, runner_id="runner-2", runner_alive=False))
        is ClaimRuling.RESOLVE_FIRST
    )
    assert rule_on_claim(CLAIM, None, OTHER) is ClaimRuling.RESOLVE_FIRST


# --- locators ------------------------------------------------------------------------------------------------------------------------
def test_the_saved_locator_is_used_where_none_is_given() -> None:
    """Case identity-request-vs-stored."""
    assert json.loads((INPUTS / "identity-request-vs-stored.json").read_text())["steps"][1]["request_locator"] is None
    assert resolve_locator(None, LOCATOR, settled_turns=1) == LOCATOR
    assert resolve_locator(LOCATOR, LOCATOR, settled_turns=1) == LOCATOR
    assert resolve_locator(None, None, settled_turns=0) is None


@pytest.mark.parametrize(
    "requested",
    [
        replace(LOCATOR, native_session_id=OTHER_SESSION),
        replace(LOCATOR, cwd="/x"),
        replace(LOCATOR, store="x"),
        replace(LOCATOR, agent="codex"),
    ],
)
def test_a_requested_locator_that_differs_is_refused(requested: Any) -> None:
    with pytest.raises(LocatorMismatchError):
        resolve_locator(requested, LOCATOR, settled_turns=1)


def test_a_locator_of_a_conversation_without_one_is_refused() -> None:
    with pytest.raises(LocatorMismatchError):
        resolve_locator(LOCATOR, None, settled_turns=0)
    for requested in (None, LOCATOR):
        with pytest.raises(LocatorRequiredError):
            resolve_locator(requested, None, settled_turns=3)


@pytest.mark.parametrize(
    ("expect", "is_known", "error"),
    [
        (Expect.NEW, False, None),
        (Expect.NEW, True, ConversationExistsError),
        (Expect.CONTINUE, True, None),
        (Expect.CONTINUE, False, LegacyConversationError),
        (Expect.UNSET, True, None),
        (Expect.UNSET, False, None),
    ],
)
def test_what_the_client_expects_must_be_so(expect: Expect, is_known: bool, error: type[Exception] | None) -> None:
    if error is None:
        check_expectation(expect, is_known=is_known)
        return
    with pytest.raises(error):
        check_expectation(expect, is_known=is_known)


@pytest.mark.parametrize("expect", Expect)
def test_a_container_that_the_manager_does_not_know_is_never_a_silent_new(expect: Expect) -> None:
    unknown = (LabelledContainer("c9", "host-1"),)
    with pytest.raises(StoreBehindError) as refused:
        check_expectation(expect, is_known=False, unknown_containers=unknown)
    assert refused.value.metadata["container_id"] == "c9"


# --- evidence ------------------------------------------------------------------------------------------------------------------------
MANIFEST = Manifest(
    protocol_version="1",
    accepted_images=("image-1", "image-0"),
    supervisor_version="1.0.0",
    supervisor_digest="s" * 64,
    clis=(CliPin("claude-code", "2.1.220", "c" * 64),),
    helper="http-agent-live-bridge=4",
)
EVIDENCE = {
    "protocol_version": "1",
    "image_id": "image-0",
    "supervisor.version": "1.0.0",
    "supervisor.digest": "s" * 64,
    "helper": "http-agent-live-bridge=4",
    "cli.claude-code.version": "2.1.220",
    "cli.claude-code.digest": "c" * 64,
    "cli.claude-code.updater": "off",
}


def test_evidence_that_is_as_the_manifest_names_it_has_nothing_against_it() -> None:
    assert compare(MANIFEST, EVIDENCE) == ()
    assert compare(MANIFEST, {**EVIDENCE, "more": "x"}) == ()


@pytest.mark.parametrize("item", [item.name for item in items_of(MANIFEST)])
def test_each_item_is_demanded(item: str) -> None:
    for evidence in ({k: v for k, v in EVIDENCE.items() if k != item}, {**EVIDENCE, item: ""}):
        (reason,) = compare(MANIFEST, evidence)
        code = "HELPER_VERSION_MISMATCH" if item == "helper" else "EVIDENCE_MISSING"
        assert (reason.code, reason.weighs) == (code, Verdict.UNPROVEN)
        assert item in reason.expected


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ("protocol_version", "EVIDENCE_CONTRADICTED"),
        ("image_id", "IMAGE_RETIRED"),
        ("supervisor.version", "EVIDENCE_CONTRADICTED"),
        ("supervisor.digest", "EVIDENCE_CONTRADICTED"),
        ("helper", "HELPER_VERSION_MISMATCH"),
        ("cli.claude-code.version", "CLI_VERSION_MISMATCH"),
        ("cli.claude-code.digest", "CLI_VERSION_MISMATCH"),
        ("cli.claude-code.updater", "UPDATER_ENABLED"),
    ],
)
def test_each_item_must_be_equal(item: str, code: str) -> None:
    (reason,) = compare(MANIFEST, {**EVIDENCE, item: "something else"})
    assert (reason.code, reason.weighs) == (code, Verdict.CONTRADICTED)
    assert reason.found == f"{item} = something else"


@pytest.mark.parametrize(
    "found", ["http-agent-live-bridge=3", "http-agent-live-bridge=5", "http-agent-live-bridge", None]
)
def test_another_helper_than_version_4_and_none_at_all_are_refused_by_its_name(found: str | None) -> None:
    evidence = {name: value for name, value in EVIDENCE.items() if name != "helper"}
    (reason,) = compare(MANIFEST, evidence if found is None else {**evidence, "helper": found})
    assert reason.code == "HELPER_VERSION_MISMATCH"
    assert reason.weighs is (Verdict.UNPROVEN if found is None else Verdict.CONTRADICTED)


def test_the_helper_is_demanded_only_where_the_manifest_names_one() -> None:
    without = {k: v for k, v in EVIDENCE.items() if k != "helper"}
    assert compare(replace(MANIFEST, helper=None), without) == ()


def test_case_host_old_helper_or_self_updated_cli() -> None:
    found = {}
    for record in json.loads((INPUTS / "host-old-helper-or-self-updated-cli.json").read_text())["records"]:
        evidence = {
            **EVIDENCE,
            "helper": record["helper"],
            "cli.claude-code.version": record["claude"],
            "cli.claude-code.updater": record["updater"],
        }
        found[record["id"]] = [reason.code for reason in compare(MANIFEST, evidence)]
    assert found == {
        "a1": [],
        "a2": ["HELPER_VERSION_MISMATCH"],
        "a3": ["CLI_VERSION_MISMATCH"],
        "a4": ["UPDATER_ENABLED"],
    }
