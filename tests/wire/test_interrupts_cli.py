from __future__ import annotations

import json

from typer.testing import CliRunner, Result

from tests.support.client import Wire
from tests.support.host import ACME, ServedHost
from tests.support.interrupts import gate, waiting_run
from wopr.cli.main import app


def wopr(host: ServedHost, *arguments: str) -> Result:
    """Run the command line with a served host."""
    variables = {"WOPR_URL": host.url, "WOPR_API_KEY": ACME}
    return CliRunner().invoke(app, ["inbox", *arguments], env=variables)


def test_a_person_finds_reads_and_answers_waiting_nodes(acme: Wire, host: ServedHost) -> None:
    run_id = waiting_run(acme, gate(actions=["accept", "refine"], requiredApprovals=1))

    listed = wopr(host, "list", "--run", run_id)
    shown = wopr(host, "show", run_id, "gate")
    sent_back = wopr(host, "answer", run_id, "gate", "--feedback", "shorter")
    late = wopr(host, "answer", run_id, "gate", "--accept", "--interrupt", "int-gate:0")
    accepted = wopr(host, "answer", run_id, "gate", "--accept", "--interrupt", "int-gate:1")

    assert f"{run_id}" in listed.stdout
    assert "Fine?" in shown.stdout
    assert "The work before the gate is done again" in shown.stdout
    assert sent_back.stdout == f"run {run_id} waiting-approval\n"
    assert late.exit_code == 5
    assert accepted.stdout == f"run {run_id} completed\n"
    assert json.loads(wopr(host, "list", "--run", run_id, "--json").stdout) == {"items": []}
    assert wopr(host, "show", run_id, "gate").exit_code == 3
