"""`wopr processes`: the live processes, and the runs that wait for code."""

from __future__ import annotations

from wopr.cli.client import with_client
from wopr.cli.errors import command
from wopr.cli.options import JsonOption, KeyOption, ServerOptions, UrlOption
from wopr.cli.output import print_json, print_line, print_table
from wopr.protocol.runs import RunListItem


@command
def processes(
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the live processes with their code versions, and the runs that wait for code."""
    response = with_client(ServerOptions(url, api_key), lambda client: client.processes())
    if as_json:
        print_json(response.body)
        return
    found = response.document
    print_table(
        ("PROCESS", "KIND", "CODE VERSION", "EXECUTES", "STARTED", "SEEN"),
        [
            (
                each.process_id,
                each.kind,
                each.code_version,
                "yes" if each.executes else "no",
                each.started_at,
                each.seen_at,
            )
            for each in found.processes
        ],
    )
    if found.waiting_runs:
        print_line("")
        print_line("runs that wait for a process with the code of a node:")
        print_table(
            ("RUN", "WORKFLOW", "VERSION", "MISSING CODE"),
            [
                (run.run_id, run.workflow_id, run.workflow_version, _missing(run))
                for run in found.waiting_runs
            ],
        )


def _missing(run: RunListItem) -> str:
    return ", ".join(str(each) for each in run.waiting_for_code or [])
