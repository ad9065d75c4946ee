"""Compares the texts that a history must hold with those it holds, and names each difference by its place.

Pure. First the longest common sequence keeps what is right; then what is left over on either side is paired: the same
text in another role, the same text at another place, another text at the same place; what has no pair is missing,
doubled or unexpected.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from standfast_lab.added_texts import AddedTexts
from standfast_lab.oracle.conversation import ASSISTANT, Outcome, Place, Turn, Wanted
from standfast_lab.oracle.observed import Seen
from standfast_lab.oracle.verdict import Difference, Fault, State, Verdict

Pair = tuple[int, int]
"""(index in wanted, index in seen)"""


def compare(turns: Sequence[Turn], wanted: Sequence[Wanted], seen: Sequence[Seen], added: AddedTexts) -> Verdict:
    """Returns the verdict on one history. `turns` are the turns that `wanted` was made from; `added` is what the CLI adds."""
    kept = longest_common(wanted, seen)
    is_compacted = any(one.role == "user" and added.is_summary(one.text) for one in seen)
    if is_compacted and kept:
        # What was compacted away stands before the first text that is still there word for word.
        wanted, kept = wanted[kept[0][0] :], [(e - kept[0][0], o) for e, o in kept]
    comparison = _Comparison(turns, wanted, seen, kept, added)
    differences, additions = comparison.run()
    if not differences:
        return Verdict(State.COMPACTED if is_compacted else State.COMPLETE, additions=additions)
    lost = [d.place.turn for d in differences if d.place and d.fault is Fault.MISSING]
    turn = min(lost) if lost else min((d.place.turn for d in differences if d.place), default=1)
    return Verdict(State.MISSING if lost else State.CHANGED, turn, differences, additions)


def longest_common(wanted: Sequence[Wanted], seen: Sequence[Seen]) -> list[Pair]:
    """Returns the pairs of one longest common sequence, in order."""
    head = 0
    while head < len(wanted) and head < len(seen) and _same(wanted[head], seen[head]):
        head += 1
    tail = 0
    while tail < min(len(wanted), len(seen)) - head and _same(wanted[-1 - tail], seen[-1 - tail]):
        tail += 1
    middle_w, middle_s = wanted[head : len(wanted) - tail], seen[head : len(seen) - tail]
    rows = [[0] * (len(middle_s) + 1) for _ in range(len(middle_w) + 1)]
    for e in range(len(middle_w) - 1, -1, -1):
        for o in range(len(middle_s) - 1, -1, -1):
            same = _same(middle_w[e], middle_s[o])
            rows[e][o] = rows[e + 1][o + 1] + 1 if same else max(rows[e + 1][o], rows[e][o + 1])
    pairs = [(i, i) for i in range(head)]
    e = o = 0
    while e < len(middle_w) and o < len(middle_s):
        if _same(middle_w[e], middle_s[o]):
            pairs.append((head + e, head + o))
            e, o = e + 1, o + 1
        elif rows[e + 1][o] >= rows[e][o + 1]:
            e += 1
        else:
            o += 1
    return pairs + [(len(wanted) - tail + i, len(seen) - tail + i) for i in range(tail)]


class _Comparison:
    """The left-overs of one comparison.

    A gap is the stretch between two kept pairs, numbered by the pairs before it.
    """

    def __init__(
        self,
        turns: Sequence[Turn],
        wanted: Sequence[Wanted],
        seen: Sequence[Seen],
        kept: Sequence[Pair],
        added: AddedTexts,
    ) -> None:
        self._added = added
        self._turns, self._wanted, self._seen, self._kept = turns, wanted, seen, kept
        kept_w, kept_s = {e for e, _ in kept}, {o for _, o in kept}
        self._lost = [e for e, one in enumerate(wanted) if e not in kept_w and one.is_required]
        self._extra = [o for o in range(len(seen)) if o not in kept_s]
        self._found: list[tuple[int, Difference]] = []

    def run(self) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
        """Returns the differences in the order of the conversation, and the CLI's own additions."""
        self._take_changed_roles()
        self._take_moved()
        additions = tuple(self._seen[o].text for o in self._extra if self._is_own(o))
        self._extra = [o for o in self._extra if not self._is_own(o)]
        self._take_changed_texts()
        for o in self._extra:
            self._add_extra(o)
        for e in self._lost:
            self._found.append((e, Difference(Fault.MISSING, self._wanted[e].place)))
        return tuple(difference for _, difference in sorted(self._found, key=lambda one: one[0])), additions

    def _gap_w(self, e: int) -> int:
        return bisect_left([k for k, _ in self._kept], e)

    def _gap_s(self, o: int) -> int:
        return bisect_left([k for _, k in self._kept], o)

    def _take(self, e: int, o: int, difference: Difference) -> None:
        self._lost.remove(e)
        self._extra.remove(o)
        self._found.append((e, difference))

    def _take_changed_roles(self) -> None:
        for e in list(self._lost):
            for o in self._extra:
                one = self._seen[o]
                is_here = self._gap_w(e) == self._gap_s(o)
                if is_here and self._wanted[e].text in one.variants and one.role != self._wanted[e].place.role:
                    place = self._wanted[e].place
                    self._take(e, o, Difference(Fault.ROLE_CHANGED, place, one.at, role_found=one.role))
                    break

    def _take_moved(self) -> None:
        moved = []
        for e in list(self._lost):
            o = next((o for o in self._extra if _same(self._wanted[e], self._seen[o])), None)
            if o is not None:
                moved.append((e, o))
                self._lost.remove(e)
                self._extra.remove(o)
        while moved:
            e, o = moved.pop(0)
            partner = next(
                (m for m in moved if self._gap_w(m[0]) == self._gap_s(o) and self._gap_s(m[1]) == self._gap_w(e)), None
            )
            if partner is not None:
                moved.remove(partner)
                other = partner[0]
            else:
                # A neighbour took its place: the nearest text that it should stand before, or after.
                here, there = self._gap_w(e), self._gap_s(o)
                other = self._kept[here][0] if there > here else self._kept[here - 1][0]
            place = self._wanted[e].place
            self._found.append((e, Difference(Fault.SWAPPED, place, self._seen[o].at, other=self._wanted[other].place)))

    def _take_changed_texts(self) -> None:
        for e in list(self._lost):
            place, text = self._wanted[e].place, self._wanted[e].text
            for o in self._extra:
                one = self._seen[o]
                if self._gap_w(e) == self._gap_s(o) and one.role == place.role:
                    nearest = max(_first_difference(text, variant) for variant in one.variants)
                    self._take(e, o, Difference(Fault.TEXT_CHANGED, place, one.at, first_differing_char=nearest))
                    break

    def _add_extra(self, o: int) -> None:
        gap = self._gap_s(o)
        twins = [e for e, _ in self._kept if _same(self._wanted[e], self._seen[o])]
        if twins:
            e = min(twins, key=lambda one: abs(self._gap_w(one) - gap))
            self._found.append((e, Difference(Fault.DOUBLED, self._wanted[e].place, self._seen[o].at)))
            return
        before = self._kept[gap - 1][0] if gap else None
        place = None if before is None else self._wanted[before].place
        found = Difference(Fault.UNEXPECTED, place, self._seen[o].at, role_found=self._seen[o].role)
        self._found.append((-1 if before is None else before, found))

    def _is_own(self, o: int) -> bool:
        one = self._seen[o]
        if self._added.is_added(one.role, one.text) or (one.role == "user" and self._added.is_summary(one.text)):
            return True
        return one.role == ASSISTANT and self._turn_before(o) in self._unended()

    def _turn_before(self, o: int) -> int | None:
        """Returns the turn of the kept text before this one."""
        gap = self._gap_s(o)
        place: Place | None = self._wanted[self._kept[gap - 1][0]].place if gap else None
        return None if place is None else place.turn

    def _unended(self) -> set[int]:
        return {number for number, turn in enumerate(self._turns, 1) if turn.outcome is Outcome.NOT_ENDED}


def _same(wanted: Wanted, seen: Seen) -> bool:
    return wanted.place.role == seen.role and wanted.text in seen.variants


def _first_difference(wanted: str, found: str) -> int:
    """Returns the index of the first character that differs; the shorter length if one begins with the other."""
    for place, (a, b) in enumerate(zip(wanted, found, strict=False)):
        if a != b:
            return place
    return min(len(wanted), len(found))
