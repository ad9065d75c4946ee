"""The relay's observation in the words of the host agent's own: pure translation."""

from __future__ import annotations

from sandbox_manager.core.values import RelayFindings
from sandbox_manager.host.relay.activation import RelayObservation


def findings_of(seen: RelayObservation) -> RelayFindings:
    """`unread` when an answer could not be read: it says why a text may be missing, and excuses nothing."""
    return RelayFindings(
        requests=seen.requests,
        delivered_text_digests=seen.delivered_text_sha256,
        unread=seen.unread > 0 or seen.is_overflowed,
        statuses=tuple(status for status, count in seen.statuses for _ in range(count)),
    )
