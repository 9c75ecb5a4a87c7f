"""`wopr fleet redact`: mask credentials in observed runs that were built without masking."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import typer

from wopr.cli.database import with_store, write_audit_entry
from wopr.cli.errors import command
from wopr.cli.options import DbOption, JsonOption
from wopr.cli.output import print_json_value, print_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wopr.protocol.documents import JsonObject
    from wopr.security.redact import Redactor
    from wopr.store.port import Store
    from wopr.store.port.fleet import AgentRun

_PAGE: Final = 200


class _UnmaskedRun(NamedTuple):
    """An observed run that contains a credential, and whether people annotated it."""

    run_id: str
    observed_run_id: str
    agents: list[AgentRun]
    has_feedback: bool


@command
def redact(
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant whose runs are searched.")],
    with_feedback: Annotated[
        bool,
        typer.Option(
            "--with-feedback",
            help="Also runs that people annotated. Their annotations are deleted.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild observed runs whose log contains a credential, with the credential masked.

    The log is deleted and built again from the archived lines of the producer. Its events get new
    ids. Without --with-feedback, a run that people annotated is not changed.
    """

    async def work(store: Store) -> list[tuple[_UnmaskedRun, str]]:
        from wopr.security.redact import Redactor

        done: list[tuple[_UnmaskedRun, str]] = []
        async for found in _find_unmasked(store, tenant, Redactor()):
            outcome = "left" if found.has_feedback and not with_feedback else "rebuilt"
            if outcome == "rebuilt" and not dry_run:
                await store.fleet_rebuild(tenant, found.observed_run_id, found.agents)
                await write_audit_entry(store, tenant, "fleet.redact", found.observed_run_id)
            done.append((found, outcome))
        return done

    outcomes = with_store(db, work)
    if as_json:
        print_json_value({"runs": [_document(*each) for each in outcomes], "dryRun": dry_run})
        return
    for found, outcome in outcomes:
        print_line(f"{found.observed_run_id} {_outcome_text(outcome, is_dry_run=dry_run)}")
    print_line(f"observed runs with a credential: {len(outcomes)}")


def _outcome_text(outcome: str, *, is_dry_run: bool) -> str:
    if outcome == "left":
        return "not changed (annotated; see --with-feedback)"
    return "to be rebuilt" if is_dry_run else outcome


def _document(found: _UnmaskedRun, outcome: str) -> JsonObject:
    return {"runId": found.observed_run_id, "kahnRunId": found.run_id, "outcome": outcome}


async def _find_unmasked(
    store: Store, tenant: str, redactor: Redactor
) -> AsyncIterator[_UnmaskedRun]:
    """Find the observed runs of a tenant with a credential in the log or the description."""
    from wopr.protocol.observed_ids import observed_run_id

    after = ""
    while page := await store.fleet_runs_to_export(tenant, after, _PAGE):
        after = page[-1].run_id
        for run in page:
            observed = observed_run_id(tenant, run.run_id)
            before = await store.fleet_run_agents(tenant, run.run_id)
            agents = [_mask_agent(each, redactor) for each in before]
            if agents != before or await _has_credential(store, tenant, observed, redactor):
                has_feedback = await _is_annotated(store, tenant, observed)
                yield _UnmaskedRun(run.run_id, observed, agents, has_feedback)


def _mask_agent(agent: AgentRun, redactor: Redactor) -> AgentRun:
    model = None if agent.model is None else redactor.text(agent.model)
    return replace(agent, task=redactor.text(agent.task), model=model)


async def _has_credential(store: Store, tenant: str, run_id: str, redactor: Redactor) -> bool:
    start = 0
    while page := await store.read(tenant, run_id, start, _PAGE):
        for event in page:
            document = msgspec.json.decode(event.body)
            texts = [document.get("nodeId"), document.get("payload")]
            if redactor.json(texts) is not texts:
                return True
        start += len(page)
    return False


async def _is_annotated(store: Store, tenant: str, run_id: str) -> bool:
    after: tuple[int, str] | None = None
    while page := await store.annotations(tenant, run_id, after, _PAGE):
        if any(each.source != "audit" for each in page):
            return True
        after = (page[-1].created_at, page[-1].annotation_id)
    return False
