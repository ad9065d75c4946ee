"""What a turn that was not saved may have left in the native store, from its observation: the next proof must be able to explain it."""

from __future__ import annotations

from dataclasses import replace

from sandbox_manager.adapters.store_port import Change, Conversation, Delete, Update
from sandbox_manager.core.records import ActivationRecord
from sandbox_manager.core.values import Observation


def what_it_left(found: Conversation, activation: ActivationRecord, observation: Observation | None) -> list[Change]:
    """The change of the turn's leftover. A message that was never forwarded has left nothing."""
    for one in found.leftovers:
        if one.activation_id != activation.activation_id:
            continue
        if observation is None:
            return []
        if not observation.forwarded:
            return [Delete(one)]
        tap = observation.tap
        # Without a native end the CLI may have written more than it came to print.
        was_read_whole = tap.end is not None and not observation.tap_gap
        admitted = replace(one.admitted, texts=tap.assistant if was_read_whole else None, printed=tap.printed)
        return [Update(replace(one, admitted=admitted))]
    return []
