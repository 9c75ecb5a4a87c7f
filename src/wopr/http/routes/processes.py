"""Routes of processes: live processes with their code versions, and runs that wait for code."""

from __future__ import annotations

from collections import Counter

from wopr.host.host import known_processes
from wopr.http.operation import Operation
from wopr.http.request import Request
from wopr.http.response import Response, ok
from wopr.http.routes.runs import list_item
from wopr.protocol.documents import to_iso
from wopr.protocol.resources.processes import CodeVersion, ProcessItem, ProcessList
from wopr.store.port import RunFilter
from wopr.store.port.peers import KnownProcess

MAX_WAITING_RUNS = 100


async def list_processes(request: Request) -> Response:
    """List the processes that are alive, and the tenant's runs that wait for code."""
    host = request.host
    known = await known_processes(host)
    where = RunFilter(waits_for_code=True)
    waiting = await host.store.runs(request.tenant, where, None, MAX_WAITING_RUNS)
    versions = Counter(each.process.code_version for each in known if each.process.executes)
    return ok(
        ProcessList(
            processes=[_item(each) for each in known],
            code_versions=[
                CodeVersion(code_version=version, processes=count)
                for version, count in sorted(versions.items())
            ],
            waiting_runs=[list_item(row) for row in waiting.runs],
        ),
        cache_control="no-store",
    )


def _item(known: KnownProcess) -> ProcessItem:
    process = known.process
    return ProcessItem(
        process_id=process.public_id,
        kind=process.kind,
        code_version=process.code_version,
        executes=process.executes,
        started_at=to_iso(known.started_at),
        seen_at=to_iso(known.seen_at),
        node_types=list(process.node_types),
        tools=list(process.tools),
    )


OPERATIONS = (
    Operation(
        name="listProcesses",
        method="GET",
        path="/v1/processes",
        handler=list_processes,
        summary="List the live processes, their code versions and the runs that wait for code",
        tag="host",
        scope="host:read",
        response=ProcessList,
        errors=(401, 403),
        is_extension=True,
    ),
)
