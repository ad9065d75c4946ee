"""What differs between the two servers. Everything that is not here is the same for both (observed on the pinned versions)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Flavour:
    """One server program. `prefix` begins its variables, `user` is its basic-auth user.

    `ends_cut_streams`: a stream without a finish reason ends its turn by itself; the other asks again without delay or limit.
    `closes_turns`: `session.turn.close` brackets each turn.
    """

    name: str
    version: str
    prefix: str
    user: str
    ends_cut_streams: bool
    closes_turns: bool


OPENCODE = Flavour("opencode", "1.18.33", "OPENCODE", "opencode", ends_cut_streams=False, closes_turns=False)
KILO = Flavour("kilo", "7.7.7", "KILO", "kilo", ends_cut_streams=True, closes_turns=True)
FLAVOURS = {one.name: one for one in (OPENCODE, KILO)}
