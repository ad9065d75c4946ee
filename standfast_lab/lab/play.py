"""One cell while it is played: its site, its agent's words, and the checks that every scenario makes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from standfast.runner.v1 import runner_pb2 as pb
from standfast_client.errors import ContextLostError
from standfast_lab.lab.agents import AgentWords, Ending
from standfast_lab.lab.checks import check, check_that
from standfast_lab.lab.site import LabSite
from standfast_lab.lab.talk import CONFIRMED, Talk, Told
from standfast_lab.oracle import Outcome, Turn
from standfast_lab.provider.log import Row

_numbers = itertools.count(1)
# A process that was not done in the product's own times leaves, and the next turn resumes: right on a machine that is too busy, and no
# loss. Only then a LIVE turn may be RESTORED, and the cell says how often.
LATE = ("LIFECYCLE_NOT_CLOSED", "STORE_PROMISED", "CENSUS_INCOMPLETE")


def at(kind: str) -> Callable[[pb.TurnEvent], bool]:
    """Holds for an event of this kind."""
    return lambda event: event.HasField(kind)  # type: ignore[arg-type]  # names of the oneof


class Play:
    """`name` is the scenario's. Every talk has a word of its own, by which its requests are told from others'."""

    def __init__(self, name: str, site: LabSite, agent: AgentWords) -> None:
        self.name = name
        self.site = site
        self.agent = agent
        self.turns = 0
        self.judged = 0
        self.late = 0

    @property
    def ending(self) -> Ending:
        """How this scenario's turn ends with this agent."""
        return self.agent.ending(self.name)

    @property
    def summary(self) -> str:
        """What was done, in a few words."""
        late = f"; {self.late} times the process left because it was late" if self.late else ""
        return f"{self.turns} turns, {self.judged} requests judged{late}"

    def talk(self, **options: str) -> LabTalk:
        """A new conversation. `options` are the agent's."""
        return LabTalk(self, f"plum{next(_numbers)}", options)


class LabTalk(Talk):
    """A conversation whose turns are counted and whose requests are judged."""

    def __init__(self, play: Play, word: str, options: dict[str, str]) -> None:
        agent = play.agent
        super().__init__(play.site.client, agent=agent.name, model=agent.model, options={**agent.options, **options})
        self.play = play
        self.word = word
        self.first = f"remember: the word is {word}"
        self._first_text: str | None = None
        self._left_late = False

    async def turn(self, message: str, **more: object) -> Told:
        """As in Talk; counted."""
        self._first_text = self._first_text or message
        self.play.turns += 1
        told = await super().turn(message, **more)  # type: ignore[arg-type]  # passed on as they came
        self._left_late = told.turn.process_reason in LATE
        self.play.late += self._left_late
        return told

    def state_due(self, state: str) -> str:
        """The context state that the next turn must have, where `state` is due if the process was done in time."""
        return "RESTORED" if state == "LIVE" and self._left_late else state

    def _keep(self, message: str, told: Told) -> None:
        """What a complete history holds of a failed turn is the agent's way."""
        super()._keep(message, told)
        if told.outcome == "FAILED" and told.turn.locator_saved:
            match self.play.agent.failed_replies:
                case "GO":
                    self.said[-1] = Turn(message, (), Outcome.FAILED)
                case "OPEN":
                    self.said[-1] = Turn(message, (), Outcome.NOT_ENDED)
                case _:
                    pass

    def check_status(self, told: Told, status: int) -> None:
        """The failure says the provider's status, where this CLI tells it."""
        if self.play.agent.tells_status:
            check(told.turn.failure.provider_status, status, "the provider's status", told.turn)

    async def begin(self, fact: str | None = None) -> Told:
        """A first turn that is in order."""
        told = await super().begin(fact or self.first)
        self.complete(told)
        return told

    async def asked(self, state: str, message: str = "what is the word?", answer: str | None = None) -> Told:
        """One more turn that must be in order and in this state, with a complete request and the right answer."""
        state = self.state_due(state)
        told = await self.turn(message)
        check(told.words, (state, "COMPLETED", CONFIRMED), f"turn {message[:40]!r}", told.turn)
        if message == "what is the word?" and answer is None:
            answer = f"the word is {self.word}"
        if answer is not None:
            check(told.answer, answer, f"the answer to {message[:40]!r}")
        self.complete(told)
        return told

    async def ends(self, message: str, ending: Ending, *, state: str = "LIVE") -> Told:
        """A turn that must end in this way; whatever the way, it is settled and its locator is saved."""
        state = self.state_due(state)
        told = await self.turn(message)
        check((told.context, told.outcome), (state, ending.outcome), f"turn {message[:40]!r}", told.turn)
        check(told.reason, ending.reason, "the failure's reason", told.turn)
        check(told.verdicts, CONFIRMED, "both verdicts", told.turn)
        check(told.turn.locator_saved, True, "the locator is saved", told.turn)
        self.complete(told)
        return told

    async def lost(self, message: str = "what is the word?") -> str:
        """A turn that must be refused as LOST with nothing sent; the cause."""
        before = len(self.rows())
        error, turn = await self.refusal(message)
        check_that(isinstance(error, ContextLostError), f"the refusal is CONTEXT_LOST, found {error!r}", turn)
        check(len(self.rows()), before, "requests of a refused turn")
        return str(error.metadata.get("cause"))

    def rows(self) -> list[Row]:
        """The requests of this conversation so far, sub-agents' not among them."""
        return self.play.site.rows_of(self, self._first_text or self.first)

    def complete(self, told: Told) -> None:
        """The newest request carried every text, in order, in its role, as often as it was said."""
        self.play.judged += 1
        verdict = self.play.site.history(self, self._first_text or self.first)
        check(str(verdict), "COMPLETE", "the history that left for the model", told.turn)
