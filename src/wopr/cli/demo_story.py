"""The story of `wopr demo`, told as it happens."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from wopr.api.events import Event
from wopr.api.host import Host
from wopr.api.run import Run
from wopr.cli.demo_desk import Reply, Ticket, critic, desk, judging
from wopr.cli.documents import object_of
from wopr.cli.event_lines import summary
from wopr.cli.output import plain, print_line
from wopr.protocol.documents import Json
from wopr.testing.models import ScriptedModels

DOUBLE_PAYMENT: Final = Ticket("ada", "I was charged twice for A-17. Please help.")
VAGUE: Final = Ticket("grace", "It does not work!")
PARCEL: Final = "Where is my parcel?"
# What a teller shows of a log, and which fields of it; the rest is there for whoever looks.
_SHOWN: Final = {
    "agent.invocation.started": ("starts", ("agentId",)),
    "agent.reasoned": ("reasons", ("reasoning",)),
    "agent.toolCalled": ("calls a tool", ("toolName",)),
    "agent.toolReturned": ("gets an answer", ("outcome", "error")),
    "agent.handoff": ("takes over", ("fromAgentId",)),
    "agent.decided": ("decides", ("decision", "confidence")),
    "interrupt.requested": ("waits", ("kind",)),
    "interrupt.resolved": ("is answered", ("resumeValue", "resolvedBy")),
    "run.completed": ("done", ("outputs",)),
    "run.failed": ("failed", ("error",)),
}
_WAITS: Final = "interrupt.requested"


@dataclass(slots=True)
class Story:
    """A guide through one host: starts runs, waits for people or answers for them, and explains."""

    host: Host
    models: ScriptedModels
    prefix: str
    is_auto: bool

    async def tell(self) -> None:
        """Tell all of it."""
        first = await self._double_payment()
        second = await self._vague_ticket()
        await self._feedback(second)
        await self._fork_and_replay(first)
        await self._judge([first, second])

    async def _double_payment(self) -> Run[Reply]:
        _chapter("A ticket about money", DOUBLE_PAYMENT.text)
        run = await self.host.start(desk(), DOUBLE_PAYMENT)
        await self._follow(run, {"action": "accept", "feedback": "kind and exact"}, "--accept")
        return run

    async def _vague_ticket(self) -> Run[Reply]:
        _chapter("A ticket that the agent is not sure about", VAGUE.text)
        _say("It may decide alone from 0.8 on. Below that, a person has the last word.")
        run = await self.host.start(desk(), VAGUE)
        await self._follow(run, {"action": "accept"}, "--accept")
        return run

    async def _feedback(self, run: Run[Reply]) -> None:
        _chapter("Feedback", "it belongs to the run, and changes nothing in it")
        await run.annotate(rating=2, note="the customer had named the order elsewhere")
        correction = "Ask for the order number first, then for what happens."
        await run.annotate(correction=correction, node="writer")
        for said in await run.annotations():
            _say(f"{said.signal.kind} by {said.actor.principal_ref}")
        self._next("feedback", "list", run.id)

    async def _fork_and_replay(self, run: Run[Reply]) -> None:
        _chapter("Another way, and the same way again", "from the log, at any event")
        branch = await run.fork(inputs={"customer": "grace", "text": PARCEL})
        _say(f"a branch with another text: {PARCEL}")
        await self._follow(branch, {"action": "accept"}, "--accept")
        asked = len(self.models.requests)
        replay = await run.replay()
        await replay.settled()
        difference = await run.diff(replay)
        same = "the same" if difference.diverged_at_seq is None else "not the same"
        _say(f"a replay asked {len(self.models.requests) - asked} models and is {same}")
        self._next("runs", "diff", run.id, branch.id)

    async def _judge(self, runs: list[Run[Reply]]) -> None:
        _chapter("A judge", "an agent that gives stars to what others did")
        await self.host.judge(judging(), critic, [run.id for run in runs])
        for run in runs:
            stars = [said.signal.stars for said in await run.annotations()]
            _say(f"run {run.id}: {', '.join(str(star) for star in stars if star)} stars")
        self._next("feedback", "summary", "--by", "workflow")

    async def _follow(self, run: Run[Reply], answer: Json, option: str) -> None:
        """Tell what happens until the run ends; whoever it waits for answers on the way."""
        async with aclosing(run.events()) as events:
            async for event in events:
                if event.type in _SHOWN:
                    print_line(_line(event))
                if event.type == _WAITS:
                    await self._answered(run, answer, option)

    async def _answered(self, run: Run[Reply], answer: Json, option: str) -> None:
        for wait in await run.waits():
            _say(f"in the inbox: {wait.question}")
            self._next("inbox", "answer", run.id, wait.node_id, option)
            if self.is_auto:
                await run.answer(answer, node=wait.node_id)
            else:
                _say("answer it in another terminal to go on")

    def _next(self, *command: str) -> None:
        print_line(
            Text.assemble(("    $ ", "dim"), (f"{self.prefix}wopr {' '.join(command)}", "cyan"))
        )


def _chapter(title: str, text: str) -> None:
    print_line("")
    print_line(Text(plain(title), style="bold"))
    _say(text)


def _say(text: str) -> None:
    print_line(f"  {text}")


def _line(event: Event) -> Text:
    what, names = _SHOWN[event.type]
    payload = object_of(event.payload)
    shown = {name: payload[name] for name in names if name in payload}
    return Text.assemble(
        (f"  {what:<15}", "magenta"), (f"{plain(event.node_id):<9}", "bold"), summary(shown)
    )
