"""`wopr fleet agents|runs|audits`: the fleet as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer
from rich.text import Text

from wopr.cli.client import with_client
from wopr.cli.errors import command
from wopr.cli.options import JsonOption, KeyOption, ServerOptions, UrlOption
from wopr.cli.output import Cells, note, print_json, print_table

if TYPE_CHECKING:
    from wopr.api.client import Client
    from wopr.protocol.resources.fleet import AgentAggregate, AgentInRun, Bucket, RunInFleet

WindowOption = Annotated[
    Literal["24h", "7d", "all"],
    typer.Option("--window", help="Only runs with an event in this time."),
]
LimitOption = Annotated[
    int, typer.Option("--limit", min=1, max=200, help="Maximum number of items.")
]
# For each agent, the run that has waited longest for an answer.
LongestWaits: TypeAlias = "dict[str, AgentInRun]"

_STYLES: Final[dict[str, str]] = {
    "converged": "green",
    "partial": "yellow",
    "escaped": "red",
    "aborted": "red",
    "unknown": "dim",
    "red": "red",
    "amber": "yellow",
    "green": "green",
}
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_WAITING_STYLE: Final = "bold magenta"


@command
def agents(
    window: WindowOption = "7d",
    severity: Annotated[
        bool, typer.Option("--severity", help="Sort by severity, the highest first.")
    ] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all agents: number of runs, outcomes, durations, and open questions.

    Outcomes of a run: converged (the agent reached its goal), partial (it did not, or only in
    part), escaped (it left its scope), aborted (it failed or was stopped), unknown (it has not
    ended). MEAN SCORE is the mean convergence score from 0 to 1, where 1 means converged. SEVERITY
    orders agents by their need for attention; 1000 and more is a regression: the last run did not
    converge, although the run before it did.
    """
    query = {"window": window, **({"sort": "severity"} if severity else {})}

    async def work(client: Client) -> tuple[list[AgentAggregate], bytes, LongestWaits]:
        found = await client.fleet_agents(query)
        listed = found.document.agents
        waits = {} if as_json else await _longest_waits(client, listed)
        return listed, found.body, waits

    listed, body, waits = with_client(ServerOptions(url, api_key), work)
    if as_json:
        print_json(body)
        return
    columns = ("AGENT", "RUNS", "OUTCOMES", "P50", "P95", "MEAN SCORE", "SEVERITY", "WAITS")
    print_table(columns, [_agent_row(each, waits.get(each.agent_id)) for each in listed])


async def _longest_waits(client: Client, listed: Sequence[AgentAggregate]) -> LongestWaits:
    """Find the run of each agent that has waited longest. Only agents with active runs can wait."""
    found: LongestWaits = {}
    for each in listed:
        if not each.in_flight:
            continue
        page = await client.fleet_agent_runs(each.agent_id, {"window": "24h", "limit": "200"})
        waiting = [run for run in page.document.runs if run.waiting_s is not None]
        if waiting:
            found[each.agent_id] = max(waiting, key=lambda run: run.waiting_s or 0)
    return found


def _agent_row(agent: AgentAggregate, waits: AgentInRun | None) -> Cells:
    return [
        agent.agent_id,
        str(agent.run_count),
        _outcomes(agent),
        _seconds(agent.duration_p50_s),
        _seconds(agent.duration_p95_s),
        "" if agent.mean_convergence is None else f"{agent.mean_convergence:.2f}",
        Text(str(agent.severity), style="bold red" if agent.regressed else ""),
        _wait_text(waits),
    ]


def _outcomes(agent: AgentAggregate) -> Text:
    counts = {
        "converged": agent.outcomes.converged,
        "partial": agent.outcomes.partial,
        "escaped": agent.outcomes.escaped,
        "aborted": agent.outcomes.aborted,
        "unknown": agent.outcomes.unknown,
    }
    shown = [(f"{count} {name}", _STYLES[name]) for name, count in counts.items() if count]
    return Text(", ").join(Text(text, style=style) for text, style in shown)


def _wait_text(waits: AgentInRun | None) -> Text:
    """Return how long a run waits, and the id of the interrupt if this host can answer it."""
    if waits is None:
        return Text()
    answer = waits.openwop_interrupt_id
    where = f"answer {answer}" if answer is not None else "other system"
    return Text(f"{_seconds(waits.waiting_s)} ({where})", style=_WAITING_STYLE)


@command
def runs(
    agent: Annotated[str | None, typer.Option("--agent", help="Only runs of this agent.")] = None,
    window: WindowOption = "7d",
    limit: LimitOption = 20,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show KAHN runs, newest first; with --agent, the runs of one agent with their outcomes."""
    target = ServerOptions(url, api_key)
    if agent is None:
        _show_runs(target, {"limit": str(limit)}, as_json=as_json)
    else:
        query = {"limit": str(limit), "window": window}
        _show_agent_runs(target, agent, query, as_json=as_json)


def _show_runs(target: ServerOptions, query: dict[str, str], *, as_json: bool) -> None:
    found = with_client(target, lambda client: client.fleet_runs(query))
    if as_json:
        print_json(found.body)
        return
    columns = ("RUN", "SOURCE", "KIND", "LINES", "STARTED", "OPENWOP RUN")
    print_table(columns, [_run_row(run) for run in found.document.runs])
    _note_more(found.document.next_cursor)


def _show_agent_runs(
    target: ServerOptions, agent: str, query: dict[str, str], *, as_json: bool
) -> None:
    found = with_client(target, lambda client: client.fleet_agent_runs(agent, query))
    if as_json:
        print_json(found.body)
        return
    columns = ("RUN", "OUTCOME", "STATUS", "STEPS", "TOOL CALLS", "TOOK", "SCORE", "WAITS")
    print_table(columns, [_agent_run_row(run) for run in found.document.runs])
    _note_more(found.document.next_cursor)


def _note_more(cursor: str | None) -> None:
    if cursor is not None:
        note("There are more; use --limit.")


def _run_row(run: RunInFleet) -> Cells:
    return [run.run_id, run.source, run.kind, str(run.lines), run.started, run.openwop_run_id]


def _total_text(reported: int | None, counted: int) -> str:
    """Return the reported number, and the counted one if it differs."""
    if reported is None or reported == counted:
        return str(counted)
    return f"{reported} ({counted} counted)"


def _agent_run_row(run: AgentInRun) -> Cells:
    return [
        run.run_id,
        Text(run.outcome, style=_STYLES[run.outcome]),
        run.last_status,
        _total_text(run.total_steps, run.counted_steps),
        _total_text(run.total_tool_calls, run.counted_tool_calls),
        _seconds(run.duration_s),
        "" if run.convergence_score is None else f"{run.convergence_score:.2f}",
        _wait_text(run if run.waiting_s is not None else None),
    ]


@command
def audits(
    window: WindowOption = "7d",
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all audit checkpoints, the most flaky first.

    FLAKINESS is 0 if a checkpoint always passes or always fails, and 1 if half of its results fail.
    """
    query = {"window": window}
    found = with_client(ServerOptions(url, api_key), lambda client: client.fleet_audits(query))
    if as_json:
        print_json(found.body)
        return
    columns = ("CHECKPOINT", "FLAKINESS", "PASS", "FAIL", "WARN", "LAST FAILED IN")
    print_table(
        columns,
        [
            (
                each.checkpoint_id,
                _coloured(each.flakiness, each.bucket),
                str(each.passed),
                str(each.failed),
                str(each.warned),
                each.last_fail_run_id or "",
            )
            for each in found.document.checkpoints
        ],
    )


def _coloured(value: float, bucket: Bucket) -> Text:
    return Text(f"{value:.2f}", style=_STYLES[bucket])


def _seconds(value: float | None) -> str:
    """Return a duration in a suitable unit; empty for None."""
    if value is None:
        return ""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if value >= 2 * unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.1f} s"
