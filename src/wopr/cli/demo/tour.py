"""The tour of `wopr demo`, which explains what happens."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from wopr.api.events import Event
from wopr.api.host import Host
from wopr.api.run import Run
from wopr.api.text import plain
from wopr.cli.demo.workflows import Reply, Ticket, critic, judge_workflow, support_desk
from wopr.cli.output import print_line
from wopr.cli.runs.events import summary
from wopr.protocol.documents import Json, object_of
from wopr.testing.models import ScriptedModels

DOUBLE_PAYMENT: Final = Ticket("ada", "I was charged twice for A-17. Please help.")
VAGUE: Final = Ticket("grace", "It does not work!")
PARCEL: Final = "Where is my parcel?"
# The events that the tour shows, each with its text and fields.
_SHOWN: Final = {
    "agent.invocation.started": ("starts", ("agentId",)),
    "agent.reasoned": ("reasons", ("reasoning",)),
    "agent.toolCalled": ("calls a tool", ("toolName",)),
    "agent.toolReturned": ("gets a result", ("outcome", "error")),
    "agent.handoff": ("takes over", ("fromAgentId",)),
    "agent.decided": ("decides", ("decision", "confidence")),
    "interrupt.requested": ("waits", ("kind",)),
    "interrupt.resolved": ("is answered", ("resumeValue", "resolvedBy")),
    "run.completed": ("done", ("outputs",)),
    "run.failed": ("failed", ("error",)),
}
_INTERRUPT_REQUESTED: Final = "interrupt.requested"


@dataclass(slots=True)
class Tour:
    """Starts runs on a host, shows their events, and waits for answers or gives them."""

    host: Host
    models: ScriptedModels
    prefix: str
    is_auto: bool

    async def run(self) -> None:
        """Run all parts of the tour."""
        first = await self._double_payment()
        second = await self._vague_ticket()
        await self._feedback(second)
        await self._fork_and_replay(first)
        await self._judge([first, second])

    async def _double_payment(self) -> Run[Reply]:
        _heading("A ticket about money", DOUBLE_PAYMENT.text)
        run = await self.host.start(support_desk(), DOUBLE_PAYMENT)
        await self._follow(run, {"action": "accept", "feedback": "kind and exact"}, "--accept")
        return run

    async def _vague_ticket(self) -> Run[Reply]:
        _heading("A ticket with low confidence", VAGUE.text)
        _print("The agent needs a confidence of 0.8. Below that, a person decides.")
        run = await self.host.start(support_desk(), VAGUE)
        await self._follow(run, {"action": "accept"}, "--accept")
        return run

    async def _feedback(self, run: Run[Reply]) -> None:
        _heading("Feedback", "it is stored with the run and does not change it")
        await run.annotate(rating=2, note="the customer had named the order elsewhere")
        correction = "Ask for the order number first, then for what happens."
        await run.annotate(correction=correction, node="writer")
        for annotation in await run.annotations():
            _print(f"{annotation.signal.kind} by {annotation.actor.principal_ref}")
        self._print_command("feedback", "list", run.id)

    async def _fork_and_replay(self, run: Run[Reply]) -> None:
        _heading("Fork and replay", "from the log, at any event")
        branch = await run.fork(inputs={"customer": "grace", "text": PARCEL})
        _print(f"a branch with another text: {PARCEL}")
        await self._follow(branch, {"action": "accept"}, "--accept")
        calls_before = len(self.models.requests)
        replay = await run.replay()
        await replay.settled()
        difference = await run.diff(replay)
        same = "the same" if difference.diverged_at_seq is None else "not the same"
        _print(
            f"a replay made {len(self.models.requests) - calls_before} model calls and is {same}"
        )
        self._print_command("runs", "diff", run.id, branch.id)

    async def _judge(self, runs: list[Run[Reply]]) -> None:
        _heading("A judge", "an agent that rates the work of other agents")
        await self.host.judge(judge_workflow(), critic, [run.id for run in runs])
        for run in runs:
            stars = [annotation.signal.stars for annotation in await run.annotations()]
            _print(f"run {run.id}: {', '.join(str(star) for star in stars if star)} stars")
        self._print_command("feedback", "summary", "--by", "workflow")

    async def _follow(self, run: Run[Reply], answer: Json, option: str) -> None:
        """Show the events of a run until it ends, and answer its questions."""
        async with aclosing(run.events()) as events:
            async for event in events:
                if event.type in _SHOWN:
                    print_line(_event_line(event))
                if event.type == _INTERRUPT_REQUESTED:
                    await self._answer(run, answer, option)

    async def _answer(self, run: Run[Reply], answer: Json, option: str) -> None:
        for wait in await run.waits():
            _print(f"in the inbox: {wait.question}")
            self._print_command("inbox", "answer", run.id, wait.node_id, option)
            if self.is_auto:
                await run.answer(answer, node=wait.node_id)
            else:
                _print("answer it in another terminal to continue")

    def _print_command(self, *command: str) -> None:
        print_line(
            Text.assemble(("    $ ", "dim"), (f"{self.prefix}wopr {' '.join(command)}", "cyan"))
        )


def _heading(title: str, text: str) -> None:
    print_line("")
    print_line(Text(plain(title), style="bold"))
    _print(text)


def _print(text: str) -> None:
    print_line(f"  {text}")


def _event_line(event: Event) -> Text:
    what, names = _SHOWN[event.type]
    payload = object_of(event.payload)
    shown = {name: payload[name] for name in names if name in payload}
    return Text.assemble(
        (f"  {what:<15}", "magenta"), (f"{plain(event.node_id):<9}", "bold"), summary(shown)
    )
