"""The runner's own record of a conversation's native locator. Pure.

    (none) --verify--> VERIFIED --save, on the manager's Confirmed answer--> SAVED --verify (the same one)--> SAVED + VERIFIED
                          |                                                    ^                                     |
                          +--discard--> (none)                                 +------------save or discard----------+

Decides two things. Only SAVED is ever sent in a request. A saved locator is never replaced by another one: a mismatch
raises and changes nothing, whatever the turn's outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.core.errors import LocatorMismatchError, LocatorRecordError
from runner.core.values import NativeLocator


@dataclass(frozen=True, slots=True)
class LocatorRecord:
    """`verified` belongs to `verified_by`, the turn whose verdict it rests on; both are None, or neither."""

    saved: NativeLocator | None = None
    verified: NativeLocator | None = None
    verified_by: str | None = None

    @property
    def to_send(self) -> NativeLocator | None:
        """The locator that a request may carry."""
        return self.saved

    def check(self, locator: NativeLocator, *, source: str) -> None:
        """Raises LocatorMismatchError when `locator` (said by `source`) is not the saved one."""
        if self.saved is not None and self.saved != locator:
            raise _mismatch(self.saved, locator, source)

    def verify(self, turn_id: str, locator: NativeLocator) -> LocatorRecord:
        """The runner's own verdict on this turn is Confirmed, for this locator."""
        self.check(locator, source="the turn's own evidence")
        return replace(self, verified=locator, verified_by=turn_id)

    def save(self, turn_id: str, confirmed: NativeLocator) -> LocatorRecord:
        """The manager confirmed `confirmed` for this turn. Raises unless it is what this runner verified for it."""
        if self.verified is None or self.verified_by != turn_id:
            raise LocatorRecordError(f"turn {turn_id} has no VERIFIED locator, so none can become SAVED")
        if confirmed != self.verified:
            raise _mismatch(self.verified, confirmed, "the manager's settlement")
        self.check(confirmed, source="the manager's settlement")
        return LocatorRecord(saved=confirmed)

    def discard(self, turn_id: str) -> LocatorRecord:
        """The turn was not confirmed: what it verified is dropped, what is saved stays."""
        return replace(self, verified=None, verified_by=None) if self.verified_by == turn_id else self


def _mismatch(expected: NativeLocator, observed: NativeLocator, source: str) -> LocatorMismatchError:
    fields = [
        name
        for name in ("agent", "native_session_id", "cwd", "store")
        if getattr(expected, name) != getattr(observed, name)
    ]
    return LocatorMismatchError(
        f"Expected the locator of native session {expected.native_session_id}, found {observed.native_session_id} from "
        f"{source}; they differ in {', '.join(fields)}. Nothing was sent or overwritten.",
        {
            "expected": expected.native_session_id,
            "observed": observed.native_session_id,
            "fields": ",".join(fields),
            "source": source,
        },
    )
