"""The runner's own verdict on identity, from what its own driver saw: handshake, every raw root frame, the end. Pure.

It knows nothing of the store, the supervisor's tap or the manager's opinion: the two sides share test vectors, no code.

    CONTRADICTED, as soon as one is seen and for good: a handshake or a root frame named another session; the CLI said
                  that it left the session.
    UNPROVEN      while something is missing: the handshake was refused, no frame that must name the session came before
                  our content, there was no native end, or bytes are missing.
    CONFIRMED     everything that named a session named the expected one, and the turn has its native end.
"""

from __future__ import annotations

from runner.core.events import (
    ContentBeforeIdentity,
    Fact,
    HandshakeAnswered,
    HandshakeRefused,
    MessageStarted,
    NativeTurnEnded,
    Normalised,
    SessionReset,
    SessionSeen,
)
from runner.core.verdict import Judgement, Verdict

SESSION_DIFFERS = "NATIVE_SESSION_MISMATCH"
SESSION_WAS_RESET = "NATIVE_SESSION_RESET"
HANDSHAKE_REFUSED = "HANDSHAKE_REFUSED"
OUTPUT_GAP = "OUTPUT_GAP"
CONTENT_BEFORE_IDENTITY = "CONTENT_BEFORE_IDENTITY"
SESSION_NOT_NAMED = "SESSION_NOT_NAMED"
NO_NATIVE_END = "NO_NATIVE_END"


class IdentityJudge:
    """One activation. Feed every event, in order.

    `expected` is the native session id that was resumed or chosen; None where the CLI names a session that begins in its
    handshake: the first one it names there is the expected one from then on. `naming` are the kinds of frames of which
    one must name the session before content.
    `checks` False: it confirms whatever comes, for the test that shows that the manager's side holds alone.
    """

    def __init__(self, expected: str | None, *, naming: frozenset[str], checks: bool = True) -> None:
        self.expected = expected
        self._naming = naming
        self._checks = checks
        self._contradiction: Judgement | None = None
        self._named: str | None = None
        self._is_named = False
        self._is_opened = False
        self._content_first = False
        self._handshake_refused = False
        self._ended = False
        self._gap = False

    @property
    def contradiction(self) -> Judgement | None:
        """The first contradiction; from then on nothing of this turn may be passed on as confirmed or saved."""
        return self._contradiction

    def observe(self, body: Fact | Normalised) -> None:
        """Takes one event of the driver. Normalised events say nothing about identity."""
        match body:
            case HandshakeAnswered(session_id=str() as session_id):
                self.expected = self.expected or session_id
                self._compare(session_id)
            case HandshakeRefused():
                self._handshake_refused = True
            case SessionSeen(session_id, source, opens_turn):
                self._compare(session_id)
                self._is_opened = self._is_opened or opens_turn
                self._is_named = self._is_named or opens_turn or source in self._naming
            case SessionReset(new_session_id):
                self._contradict(SESSION_WAS_RESET, new_session_id)
            case MessageStarted():
                # What named the session before was another turn of the process, unless it was asked for with our message.
                self._is_named = self._is_opened
            case ContentBeforeIdentity():
                self._content_first = True
            case NativeTurnEnded():
                self._ended = True
            case _:
                pass

    def observe_gap(self) -> None:
        """Bytes of the CLI's output are missing: something may have been named in them."""
        self._gap = True

    def verdict(self) -> Judgement:
        """The verdict on what was seen so far. Final once the native end was seen."""
        expected = self.expected or ""
        if not self._checks:
            return Judgement(Verdict.CONFIRMED, None, expected, expected)
        if self._contradiction is not None:
            return self._contradiction
        reason = self._what_is_missing()
        if reason is not None:
            return Judgement(Verdict.UNPROVEN, reason, expected, self._named)
        return Judgement(Verdict.CONFIRMED, None, expected, self._named)

    def _what_is_missing(self) -> str | None:
        if self._handshake_refused:
            return HANDSHAKE_REFUSED
        if self._gap:
            return OUTPUT_GAP
        if self._content_first:
            return CONTENT_BEFORE_IDENTITY
        if not self._ended:
            return NO_NATIVE_END
        if not self._is_named or self.expected is None:
            return SESSION_NOT_NAMED
        return None

    def _compare(self, session_id: str) -> None:
        self._named = session_id
        if session_id != self.expected:
            self._contradict(SESSION_DIFFERS, session_id)

    def _contradict(self, reason: str, observed: str | None) -> None:
        if self._contradiction is None and self._checks:
            self._contradiction = Judgement(Verdict.CONTRADICTED, reason, self.expected or "", observed)
