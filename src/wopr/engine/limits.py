"""Limits of a run: the host's, narrowed by the workflow's settings and the run's options."""

from __future__ import annotations

import msgspec

from wopr.engine.state import RunState
from wopr.protocol.documents import Unset
from wopr.protocol.runs import Configurable
from wopr.protocol.workflow import WorkflowNode

DEFAULT_LOOPBACKS = 5


class HostLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that the operator sets for every run."""

    max_node_executions: int = 1000
    max_run_duration_ms: int = 30 * 24 * 3_600_000
    max_loop_iterations: int = 100


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one run."""

    node_executions: int
    duration_ms: int
    loop_iterations: int
    loopbacks: int
    # Whether the workflow itself sets `loopbacks`. Otherwise the limit does not apply to counted
    # loops.
    are_loopbacks_set: bool = False


def run_limits(state: RunState, host: HostLimits) -> RunLimits:
    """Return the limits of a run. A run can lower the host's limits but not raise them."""
    options = _options(state)
    settings = state.graph.definition.settings
    loopbacks = settings.max_loopback_iterations
    return RunLimits(
        node_executions=_narrow(host.max_node_executions, options.recursion_limit),
        duration_ms=min(
            _narrow(host.max_run_duration_ms, options.run_timeout_ms),
            settings.timeout or host.max_run_duration_ms,
        ),
        loop_iterations=_narrow(host.max_loop_iterations, options.max_loop_iterations),
        loopbacks=DEFAULT_LOOPBACKS if isinstance(loopbacks, Unset) else loopbacks,
        are_loopbacks_set=not isinstance(loopbacks, Unset),
    )


def _options(state: RunState) -> Configurable:
    if not state.configurable:
        return _NO_OPTIONS
    try:
        return msgspec.convert(state.configurable, Configurable)
    except msgspec.ValidationError:
        # Options are checked when a run is created, but an imported log may contain others.
        return _NO_OPTIONS


_NO_OPTIONS = Configurable()


def _narrow(limit: int, wanted: int | Unset) -> int:
    return limit if isinstance(wanted, Unset) else min(limit, wanted)


def max_retries(state: RunState, node: WorkflowNode) -> int:
    """Return how often a node may be retried: its own setting, else its workflow's."""
    own = node.settings.max_retries
    return state.graph.definition.settings.max_retries if isinstance(own, Unset) else own


def node_deadline(state: RunState, node_id: str) -> int | None:
    """Return the time at which a node times out, or None if it has no timeout.

    It counts from the node's start, or from the end of its last wait: an interrupt has a timeout
    of its own.
    """
    limit = state.graph.nodes[node_id].settings.timeout
    if not limit:
        return None
    node = state.nodes[node_id]
    return max(node.started_at, node.resumed_at) + limit + 1


def backoff_ms(node: WorkflowNode, attempt: int) -> int:
    """Return the delay before attempt number `attempt` in milliseconds (1 is the first retry).

    There is no jitter: the delay is on the log, and the same log must give the same plan.
    """
    policy = node.settings.backoff
    try:
        delay = policy.initial_ms * policy.factor ** (attempt - 1)
    except OverflowError:
        return policy.max_ms
    return int(min(delay, policy.max_ms))
