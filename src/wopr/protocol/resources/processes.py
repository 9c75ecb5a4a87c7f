"""The processes of a host: the code of each, and the runs that wait for code."""

from __future__ import annotations

from wopr.protocol.documents import Document
from wopr.protocol.runs import RunListItem


class ProcessItem(Document, frozen=True, kw_only=True, omit_defaults=False):
    """One process that is alive."""

    process_id: str
    kind: str
    code_version: str
    executes: bool
    started_at: str
    seen_at: str
    node_types: list[str]
    # The tools of its app, which agents may call.
    tools: list[str]


class CodeVersion(Document, frozen=True, kw_only=True, omit_defaults=False):
    """A version of the code, and the number of live processes that execute nodes with it."""

    code_version: str
    processes: int


class ProcessList(Document, frozen=True, kw_only=True, omit_defaults=False):
    """The response of `GET /v1/processes`."""

    processes: list[ProcessItem]
    code_versions: list[CodeVersion]
    # The newest of the caller's runs that wait for a process with the code of a node.
    waiting_runs: list[RunListItem]
