"""The common part of the adapters: wraps a framework's graph or agent as a node type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

import anyio

from wopr.adapters.session import FrameworkSession
from wopr.adapters.steps import Done, HumanAnswer, Paused, Running, collect_answers
from wopr.agents.loop.config import Budget
from wopr.agents.loop.decisions import (
    AgentDecision,
    AgentInvocation,
    confidence_of,
    settle_decision,
)
from wopr.agents.loop.session import BudgetExceeded
from wopr.api.agent import Agent
from wopr.api.errors import WorkflowError
from wopr.engine.outcome import NodeFailure, Outcome, Suspended
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import NodeType
from wopr.protocol.documents import Closed, Json, JsonObject
from wopr.protocol.errors import WoprError
from wopr.protocol.manifests import ManifestModelClass

_NOT_IN_A_WORD: Final = re.compile(r"[^A-Za-z0-9_-]+")
# Frameworks have their own limits. This one stops endless loops.
_MAX_CALLS: Final = 1000


class WrappedConfig(Closed, frozen=True, kw_only=True):
    """The budget of a node of a wrapped graph or agent, checked after every call."""

    budget: Budget = Budget(max_calls=_MAX_CALLS)


class Framework(Protocol):
    """The adapter of one framework."""

    name: str
    # A description in one line, for the inventory of agents.
    about: str
    tools: Sequence[str]

    async def begin(self, session: FrameworkSession, inputs: JsonObject) -> Paused | Done:
        """Run from the start until the framework has finished or needs a person."""
        ...

    async def resume(
        self, session: FrameworkSession, state: Json, answers: Sequence[HumanAnswer] | None
    ) -> Paused | Done:
        """Continue from a stored state, with the answers to its questions in order."""
        ...


def require_type(name: str, given: object, kind: type[object], wanted: str) -> None:
    """Check the type of a value. Raises `WorkflowError`."""
    if not isinstance(given, kind):
        raise WorkflowError(f"on_record {name}", [f"needs {wanted}, not {given!r}"])


class WrappedAgent:
    """A wrapped graph or agent, for `Workflow.add`. `on_record` of an adapter returns it.

    Attributes:
        id: The id of the agent.
    """

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
            instructions=f"{framework.about}. The framework has its own instructions.",
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
        return f"<WrappedAgent {self.id}: {self._framework.about}>"

    async def _execute(
        self, ctx: NodeContext, config: WrappedConfig, inputs: JsonObject
    ) -> Outcome:
        session = FrameworkSession(ctx, self.id, self._framework.name, config.budget)
        invocation = AgentInvocation(ctx, self.id)
        invocation.begin({"toolSurfaceCount": len(self._framework.tools)})
        await ctx.flush()
        try:
            ended = await self._run_to_end(session, inputs)
        except BudgetExceeded as exceeded:
            invocation.end("failed")
            return exceeded.breached
        except BaseException as error:
            session.fail_open_calls(error)
            invocation.end("failed")
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await session.count_tokens()
        return (
            ended if isinstance(ended, Suspended) else _settle_decision(session, invocation, ended)
        )

    async def _run_to_end(self, session: FrameworkSession, inputs: JsonObject) -> Done | Suspended:
        """Run the framework until it has finished. Stored steps are not repeated."""
        step = await session.record.last()
        while not isinstance(step, Done):
            answers = await _answers(session, step)
            if isinstance(answers, Suspended):
                return answers
            step = await session.store(await self._advance(session, inputs, step, answers))
        return step

    async def _advance(
        self,
        session: FrameworkSession,
        inputs: JsonObject,
        step: Running | Paused | None,
        answers: Sequence[HumanAnswer] | None,
    ) -> Paused | Done:
        framework = self._framework
        await session.check_tokens()
        try:
            if step is None:
                return await framework.begin(session, inputs)
            return await framework.resume(session, step.state, answers)
        except (NodeFailure, WoprError, BudgetExceeded):
            raise
        except Exception as error:  # the outer edge of a framework's own code
            if session.breached is not None:
                raise BudgetExceeded(session.breached) from error
            if session.refused is not None:
                raise session.refused from error
            raise NodeFailure(
                f"{framework.name}: {type(error).__name__}: {error}",
                code="framework_error",
                details={"framework": framework.name, "exception": type(error).__name__},
            ) from error


async def _answers(
    session: FrameworkSession, step: Running | Paused | None
) -> Sequence[HumanAnswer] | Suspended | None:
    """Return the answers to a step's questions, or an interrupt; None without questions."""
    if not isinstance(step, Paused):
        return None
    return await collect_answers(session.ctx, step.asks, session.record.pauses)


def _settle_decision(session: FrameworkSession, invocation: AgentInvocation, done: Done) -> Outcome:
    """Record the decision. A decision below the threshold waits for a person."""
    confidence = confidence_of(done.decision)
    decision = AgentDecision(value=done.decision, confidence=confidence, answer_schema=None)
    return settle_decision(
        session.ctx, session.agent_id, decision, done.outputs_with, invocation.end
    )


def agent_name(root: str, name: str) -> str:
    """Return the id of an agent inside a wrapped agent or graph."""
    return f"{root}.{_NOT_IN_A_WORD.sub('-', name).strip('-').lower() or 'agent'}"
