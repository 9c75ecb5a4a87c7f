"""Output of the result and the current state of a run."""

from __future__ import annotations

from rich.text import Text

from wopr.api.text import plain
from wopr.cli.output import print_block, print_line, print_table, status_text
from wopr.protocol.documents import UNSET, Unset, to_millis
from wopr.protocol.references import references_in
from wopr.protocol.runs import NodeView, RunSnapshot


def print_end(snapshot: RunSnapshot) -> None:
    """Print the result of a run: status, error and outputs."""
    print_line(_headline(snapshot))
    _print_error(snapshot)
    print_block("outputs", snapshot.outputs or {})


def print_snapshot(snapshot: RunSnapshot) -> None:
    """Print the state of a run: facts, nodes and values."""
    print_line(_headline(snapshot))
    for name, value in _facts(snapshot):
        print_line(Text.assemble((f"  {name:<12}", "dim"), plain(value)))
    _print_error(snapshot)
    _print_nodes(snapshot.node_states or {})
    _print_children(snapshot)
    for title, values in (
        ("inputs", snapshot.inputs),
        ("outputs", snapshot.outputs),
        ("variables", snapshot.variables),
        ("channels", snapshot.channels),
    ):
        print_block(title, values or {})


def has_references(snapshot: RunSnapshot) -> bool:
    """Return whether a run has references to large values."""
    shown = (snapshot.inputs, snapshot.outputs, snapshot.variables, snapshot.channels)
    return any(any(references_in(values or {})) for values in shown)


def _headline(snapshot: RunSnapshot) -> Text:
    duration = _duration_text(snapshot.started_at, snapshot.completed_at or snapshot.ended_at)
    return (
        Text.assemble("run ", (plain(snapshot.run_id), "bold"), " ")
        .append_text(status_text(snapshot.status))
        .append(duration)
    )


def _duration_text(started_at: str | Unset, ended_at: str | Unset) -> str:
    if not started_at or not ended_at:
        return ""
    try:
        return f" in {(to_millis(ended_at) - to_millis(started_at)) / 1000:.2f}s"
    except (ValueError, OverflowError):
        return ""


def _facts(snapshot: RunSnapshot) -> list[tuple[str, str]]:
    interrupt = snapshot.interrupt or {}
    facts = [
        ("workflow", f"{snapshot.workflow_id} {snapshot.workflow_version or ''}"),
        ("started", snapshot.started_at),
        ("ended", snapshot.completed_at or snapshot.ended_at),
        ("paused", snapshot.paused_at),
        ("at node", snapshot.current_node_id),
        ("waits for", str(interrupt.get("kind", "")) or _missing_code(snapshot)),
        ("quarantine", _quarantine(snapshot)),
        ("parent", snapshot.parent_run_id),
        ("tags", ", ".join(snapshot.tags or [])),
    ]
    return [(name, value) for name, value in facts if value]


def _quarantine(snapshot: RunSnapshot) -> str:
    quarantine = snapshot.quarantine
    if isinstance(quarantine, Unset):
        return ""
    return (
        f"since {quarantine.since}: the host process crashed {quarantine.crashes} times with this "
        f"run. `wopr runs resume {snapshot.run_id}` continues it, `wopr runs cancel` ends it"
    )


def _missing_code(snapshot: RunSnapshot) -> str:
    nodes = [str(each) for each in snapshot.waiting_for_code or []]
    return f"code: no process can run {', '.join(nodes)}" if nodes else ""


def _print_error(snapshot: RunSnapshot) -> None:
    if snapshot.error is not UNSET:
        error = snapshot.error
        print_line(Text.assemble((plain(error.code), "bold red"), ": ", plain(error.message)))


def _print_nodes(nodes: dict[str, NodeView]) -> None:
    if nodes:
        print_table(
            ("NODE", "STATUS", "ATTEMPTS", "STARTED", "COMPLETED", "NOTE"),
            (
                (
                    node_id,
                    status_text(node.status),
                    str(node.attempts),
                    node.started_at or "",
                    node.completed_at or "",
                    f"{node.error.code}: {node.error.message}" if node.error else node.reason or "",
                )
                for node_id, node in nodes.items()
            ),
        )


def _print_children(snapshot: RunSnapshot) -> None:
    if snapshot.child_runs:
        print_table(
            ("CHILD RUN", "STATUS", "NODE", "WORKFLOW"),
            (
                (
                    child.run_id,
                    status_text(child.status),
                    child.node_id or "",
                    child.workflow_id or "",
                )
                for child in snapshot.child_runs
            ),
        )
