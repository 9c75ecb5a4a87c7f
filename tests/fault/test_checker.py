from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.fault.checker import main, problems
from tests.fault.forking import forked
from tests.support.definitions import delay, node
from tests.support.in_process import Gates, bench, gate_types, numbered

pytestmark = pytest.mark.anyio

# An ended run, an active one, and a parent with its child.
FIRST = "WHERE run_id = (SELECT run_id FROM runs WHERE snapshot IS NOT NULL LIMIT 1)"
OPEN = "WHERE run_id = (SELECT run_id FROM runs WHERE ended_at IS NULL)"
CHILD = "(SELECT run_id FROM runs WHERE parent_run_id IS NOT NULL)"


@pytest.fixture
async def db(tmp_path: Path, gates: Gates) -> Path:
    """Return a consistent database."""
    gates.open("gate")
    async with bench(tmp_path, *gate_types(gates), new_id=numbered()) as ours:
        child = await ours.register([node("gate", "test.gate")])
        call = node("call", "core.subWorkflow", config={"workflowId": child})
        runs = [
            await ours.create(await ours.register([node("one"), node("two")])),
            await ours.create(await ours.register([call])),
        ]
        await ours.create(await ours.register([delay("wait", 60_000)]))
        for run_id in runs:
            await ours.until(run_id, "completed")
    return tmp_path / "wopr.db"


def damage(db: Path, *statements: str) -> list[str]:
    connection = sqlite3.connect(db)
    for statement in statements:
        assert connection.execute(statement).rowcount > 0
    connection.commit()
    connection.close()
    return problems(db)


async def test_the_database_of_a_stopped_host_has_no_problems(
    db: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(str(db)) == 0

    assert capsys.readouterr().out == "no problems found\n"


async def test_forks_of_runs_and_of_parents_have_no_problems(tmp_path: Path, gates: Gates) -> None:
    gates.open("gate")
    async with bench(tmp_path, *gate_types(gates), new_id=numbered()) as ours:
        child = await ours.register([node("gate", "test.gate")])
        call = node("call", "core.subWorkflow", config={"workflowId": child})
        for nodes in ([node("one"), node("two")], [node("one"), call]):
            source = await ours.create(await ours.register(nodes))
            await ours.until(source, "completed")
            await forked(ours, source, "replay")
            await forked(ours, source, "branch", 3)

    assert problems(tmp_path / "wopr.db") == []


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        (f"DELETE FROM events {FIRST} AND sequence = 2", "the sequences are"),
        (f"DELETE FROM events {FIRST} AND sequence = 0", "it begins with"),
        (f"UPDATE events SET type = 'run.failed' {FIRST} AND sequence = 2", "it ends at"),
        (f"UPDATE events SET type = 'log.appended' {FIRST} AND sequence = 2", "says of itself"),
        (f"DELETE FROM runs {FIRST}", "belong to no run"),
        (f"UPDATE runs SET status = 'failed' {FIRST}", "the row has"),
        (f"UPDATE runs SET last_sequence = 1 {FIRST}", "the row has"),
        (f"UPDATE runs SET ended_at = ended_at + 1 {FIRST}", "the row has"),
        (f"UPDATE runs SET wish = x'00' {FIRST}", "still has a wake-up"),
        (f"UPDATE runs SET snapshot = x'00' {FIRST}", "the snapshot is"),
        (f"UPDATE runs SET wake_at = NULL {OPEN}", "nothing will wake it"),
        (
            'UPDATE events SET body = replace(body, \'"causationId":"id-\', \'"causationId":"x-\')'
            f" {FIRST} AND sequence = 2",
            "caused by nothing",
        ),
        (f"UPDATE runs SET parent_run_id = 'nobody' WHERE run_id = {CHILD}", "does not know it"),
        (f"DELETE FROM runs WHERE run_id = {CHILD}", "which is not its child"),
        (
            "INSERT INTO answers SELECT 'acme', x'00', x'00', 201, '{\"runId\":\"gone\"}', 0",
            "acknowledged and is not there",
        ),
    ],
)
async def test_an_inconsistent_database_is_reported(
    db: Path, statement: str, complaint: str
) -> None:
    found = damage(db, statement)

    assert complaint in "\n".join(found)
    assert main(str(db)) == 1


async def test_an_unfinished_node_in_an_ended_run_is_reported(db: Path) -> None:
    # The node's end becomes a log line, without any other change.
    rewrite = "replace(body, 'node.completed', 'log.appended')"
    found = damage(
        db,
        f"UPDATE events SET type = 'log.appended', body = {rewrite} {FIRST} AND sequence = 2",
    )

    assert "still running" in "\n".join(found)
