"""What the relay saw during one activation: numbers and digests, never texts. Bounded in memory.

Text digest, the same rule as on the tap side: the SHA-256, in lower-case hex, of the UTF-8 bytes of one text's whole
(a lone surrogate, which JSON can spell, as its three-byte form). What one text is, and when it was delivered, is each
protocol's: a content block (`messages`), what a choice said (`chat`), a part of an output item (`responses`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

TEXT_DIGESTS_MAX = 10_000
MESSAGE_IDS_MAX = 10_000
MODELS_MAX = 100
STATUSES_MAX = 100


@dataclass(frozen=True)
class RelayObservation:
    """The relay's part of the observation of one activation.

    requests: model requests passed to an upstream, of whichever protocol.
    other_requests: allowed requests that call no model (token counts).
    statuses: (HTTP status, how often) of the answers to `requests`, in rising order.
    delivered_text_sha256: digests of delivered texts, in order of delivery, repeats kept.
    message_ids, models: as the upstream's answers named them, in order, without repeats.
    upstream_cuts, client_cuts: responses that ended before their end, by who left.
    unreached: requests for which no connection to the upstream came about.
    stream_errors: answers that began with status 200 and told an error.
    unread: responses with status 200 that could not be read (unknown encoding, not the protocol's form, too large):
        texts may have been delivered that `delivered_text_sha256` does not show.
    refused: requests of this slot that were refused while the activation was open.
    outside: model requests of this slot refused because no activation was open, since the activation before.
    in_flight: requests still running when the observation was taken.
    is_overflowed: a bound was reached; the lists are not complete.
    """

    activation_id: str
    requests: int
    other_requests: int
    statuses: tuple[tuple[int, int], ...]
    delivered_text_sha256: tuple[str, ...]
    message_ids: tuple[str, ...]
    models: tuple[str, ...]
    upstream_cuts: int
    client_cuts: int
    unreached: int
    stream_errors: int
    unread: int
    refused: int
    outside: int
    in_flight: int
    is_overflowed: bool


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class ActivationLedger:
    """Collects one activation's facts. What comes after `observe` is in no observation."""

    activation_id: str
    traceparent: str | None
    outside: int
    requests: int = 0
    other_requests: int = 0
    upstream_cuts: int = 0
    client_cuts: int = 0
    unreached: int = 0
    stream_errors: int = 0
    unread: int = 0
    refused: int = 0
    in_flight: int = 0
    is_overflowed: bool = False
    # Set while no model request of this activation is running.
    idle: asyncio.Event = field(default_factory=_set_event)
    _statuses: Counter[int] = field(default_factory=Counter)
    _texts: list[str] = field(default_factory=list)
    # Dicts keep the order and find repeats without a walk.
    _message_ids: dict[str, None] = field(default_factory=dict)
    _models: dict[str, None] = field(default_factory=dict)

    def answered(self, status: int) -> None:
        """An answer's head came from the upstream."""
        if status in self._statuses or len(self._statuses) < STATUSES_MAX:
            self._statuses[status] += 1
        else:
            self.is_overflowed = True

    def delivered(self, text_sha256: str) -> None:
        """A whole text was handed to the client."""
        if len(self._texts) < TEXT_DIGESTS_MAX:
            self._texts.append(text_sha256)
        else:
            self.is_overflowed = True

    def named(self, message_id: str | None, model: str | None) -> None:
        """The answer named itself and its model."""
        self._add(self._message_ids, message_id, MESSAGE_IDS_MAX)
        self._add(self._models, model, MODELS_MAX)

    def observe(self) -> RelayObservation:
        """The facts so far."""
        return RelayObservation(
            activation_id=self.activation_id,
            requests=self.requests,
            other_requests=self.other_requests,
            statuses=tuple(sorted(self._statuses.items())),
            delivered_text_sha256=tuple(self._texts),
            message_ids=tuple(self._message_ids),
            models=tuple(self._models),
            upstream_cuts=self.upstream_cuts,
            client_cuts=self.client_cuts,
            unreached=self.unreached,
            stream_errors=self.stream_errors,
            unread=self.unread,
            refused=self.refused,
            outside=self.outside,
            in_flight=self.in_flight,
            is_overflowed=self.is_overflowed,
        )

    def _add(self, known: dict[str, None], value: str | None, most: int) -> None:
        if value is None or value in known:
            return
        if len(known) < most:
            known[value] = None
        else:
            self.is_overflowed = True
