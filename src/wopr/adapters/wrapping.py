"""A framework's graph or agent as a node type and an agent: what all wrappers have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

import anyio

from wopr.adapters.asks import Answer, answered
from wopr.adapters.session import Session
from wopr.adapters.steps import Done, Going, Paused
from wopr.api.agent import Agent
from wopr.api.errors import WorkflowError
from wopr.engine.outcome import NodeFailure, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.llm_config import Budget
from wopr.nodes.llm_decisions import Decision, confidence_of, settled
from wopr.nodes.llm_talk import BudgetSpent
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import Closed, Json, JsonObject
from wopr.protocol.errors import WoprError
from wopr.protocol.manifests import ManifestModelClass

_STARTED: Final = "agent.invocation.started"
_COMPLETED: Final = "agent.invocation.completed"
_NO_WORD: Final = re.compile(r"[^A-Za-z0-9_-]+")
# Frameworks have limits of their own, so this one only stops what nobody meant.
_MOST_CALLS: Final = 1000


class WrappedConfig(Closed, frozen=True, kw_only=True):
    """What a node of a wrapped graph or agent may use; noticed after the call that breaks it."""

    budget: Budget = Budget(max_calls=_MOST_CALLS)


class Framework(Protocol):
    """One framework's side: how it is let work, and what it has."""

    name: str
    # What it is, in one line, for the inventory of agents.
    about: str
    tools: Sequence[str]

    async def begin(self, session: Session, inputs: JsonObject) -> Paused | Done:
        """Work from the start until it is done or needs a person."""
        ...

    async def go_on(
        self, session: Session, state: Json, answers: Sequence[Answer] | None
    ) -> Paused | Done:
        """Work on from a state that was kept; the answers are those to its pause, in order."""
        ...


def require(name: str, given: object, kind: type[object], wanted: str) -> None:
    """Refuse to wrap what is not of the framework. Raises `WorkflowError`."""
    if not isinstance(given, kind):
        raise WorkflowError(f"on_record {name}", [f"give {wanted}, not {given!r}"])


class OnRecord:
    """A graph or an agent on the record: `flow.add("answer", it, prompt=flow.inputs.text)`."""

    def __init__(
        self,
        name: str,
        framework: Framework,
        *,
        threshold: float | None = None,
        description: str = "",
        model_class: ManifestModelClass = "general",
    ) -> None:
        self._framework = framework
        self.__wopr_agent__ = Agent(
            name,
            model=f"{framework.name}:{name}",
            tools=list(framework.tools),
            threshold=threshold,
            description=description or framework.about,
            instructions=f"{framework.about}. What it is told is its own.",
            model_class=model_class,
        )
        self.id = self.__wopr_agent__.id
        self.__wopr_node__ = NodeType(
            type_id=f"vendor.{self.id.partition('.')[2]}",
            execute=self._execute,
            config_type=WrappedConfig,
            is_async=True,
            description=description or framework.about,
        )

    def __repr__(self) -> str:
        return f"<OnRecord {self.id}: {self._framework.about}>"

    async def _execute(
        self, ctx: NodeContext, config: WrappedConfig, inputs: JsonObject
    ) -> Outcome:
        session = Session(ctx, self.id, self._framework.name, config.budget)
        bracket = _Bracket(ctx, self.id, len(self._framework.tools))
        bracket.begin()
        await ctx.flush()
        try:
            ended = await self._work(session, inputs)
        except BudgetSpent as spent:
            bracket.end("failed")
            return spent.breached
        except BaseException as error:
            session.fail_open_calls(error)
            bracket.end("failed")
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await session.count_tokens()
        return ended if isinstance(ended, Suspended) else _concluded(session, bracket, ended)

    async def _work(self, session: Session, inputs: JsonObject) -> Done | Suspended:
        """Let the framework work until it is done; what is on record is not done again."""
        step = await session.record.last()
        while not isinstance(step, Done):
            answers = await _answers(session, step)
            if isinstance(answers, Suspended):
                return answers
            step = await session.keep(await self._advance(session, inputs, step, answers))
        return step

    async def _advance(
        self,
        session: Session,
        inputs: JsonObject,
        step: Going | Paused | None,
        answers: Sequence[Answer] | None,
    ) -> Paused | Done:
        framework = self._framework
        await session.check_tokens()
        try:
            if step is None:
                return await framework.begin(session, inputs)
            return await framework.go_on(session, step.state, answers)
        except (NodeFailure, WoprError, BudgetSpent):
            raise
        except Exception as error:  # the outer edge of a framework's own code
            if session.breached is not None:
                raise BudgetSpent(session.breached) from error
            if session.refused is not None:
                raise session.refused from error
            raise NodeFailure(
                f"{framework.name}: {type(error).__name__}: {error}",
                code="framework_error",
                details={"framework": framework.name, "exception": type(error).__name__},
            ) from error


async def _answers(
    session: Session, step: Going | Paused | None
) -> Sequence[Answer] | Suspended | None:
    """What people said to a pause, or the wait for it; None where nothing was asked."""
    if not isinstance(step, Paused):
        return None
    return await answered(session.ctx, step.asks, session.record.pauses)


class _Bracket:
    """The bracket around everything that the agent does in a node."""

    def __init__(self, ctx: NodeContext, agent_id: str, tools: int) -> None:
        self._ctx = ctx
        visit = f".{ctx.visit}" if ctx.visit else ""
        self._about: JsonObject = {
            "invocationId": f"inv-{ctx.node_id}{visit}-{ctx.attempt}",
            "agentId": agent_id,
        }
        self._tools = tools

    def begin(self) -> None:
        """Record the invocation, unless it is on the log already."""
        if not self._ctx.llm.invocation_id and self._ctx.llm.advertises(_STARTED):
            facts = {"source": "workflow-node", "toolSurfaceCount": self._tools}
            self._ctx.emit(_STARTED, self._about | facts)

    def end(self, outcome: str, confidence: float | None = None) -> None:
        """Record how it ended, unless that is on the log already."""
        if not self._ctx.llm.has_decided and self._ctx.llm.advertises(_COMPLETED):
            sure = {} if confidence is None else {"confidence": confidence}
            self._ctx.emit(_COMPLETED, self._about | {"outcome": outcome} | sure)


def _concluded(session: Session, bracket: _Bracket, done: Done) -> Outcome:
    """Record what was decided; a decision that is not sure enough waits for a person."""
    confidence = confidence_of(done.decision)
    decision = Decision(value=done.decision, confidence=confidence, answer_schema=None)
    return settled(session.ctx, session.agent_id, decision, done.outputs_with, bracket.end)


def agent_name(root: str, name: str) -> str:
    """The id of an agent that works inside a wrapped one."""
    return f"{root}.{_NO_WORD.sub('-', name).strip('-').lower() or 'agent'}"
