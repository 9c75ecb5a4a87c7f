"""The page of one wait: look at it, answer it, or learn who was faster."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlsplit

from wopr.console.form import Form
from wopr.console.page import Page
from wopr.console.settled import settled
from wopr.console.visit import Visit, local_path
from wopr.console.wait_view import RESPOND, Wait, find_wait, look_at, resolver_of
from wopr.http.answers import Answer
from wopr.http.runs import run_id
from wopr.protocol.documents import Json, Unset
from wopr.protocol.errors import (
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Refused,
    Unprocessable,
    WoprError,
)
from wopr.store.port import RunRow

READ: Final = "runs:read"
INBOX: Final = "/inbox"
# What an answer is called that leaves the wait open.
_LEFT_OPEN: Final = {"ask": "asked", "exchange": "said"}


async def show_wait(visit: Visit) -> Answer:
    """Show what a node waits for, or how that ended."""
    row, node_id = await _place(visit)
    wait = await find_wait(visit, row.run_id, node_id)
    asked = visit.query.get("interruptId", "")
    if wait is None or asked not in ("", wait.item.interrupt_id):
        return await _over(visit, row, node_id, asked)
    return await _open(visit, wait, local_path(visit.query.get("next", INBOX)))


async def answer(visit: Visit) -> Answer:
    """Take an answer; one that does not fit is shown again, and so is who was faster."""
    require_read(visit)
    row, node_id = await _place(visit)
    form = await visit.form()
    interrupt_id, back = form.get("interruptId"), local_path(form.get("next") or INBOX)
    wait = await find_wait(visit, row.run_id, node_id)
    if wait is None or wait.item.interrupt_id != interrupt_id:
        return await _over(visit, row, node_id, interrupt_id, form, 409)
    view = await look_at(visit, wait)
    if view.offer is None:
        raise Refused("an event comes from outside; it is not answered here", field="answer")
    try:
        value = view.offer.value(form)
        is_open = await take(visit, row.run_id, node_id, interrupt_id, value)
    except Refused as refused:
        return await _open(visit, wait, back, form, refused)
    except (Conflict, Gone, Unprocessable, NotFound):
        return await _over(visit, row, node_id, interrupt_id, form, 409)
    if not is_open:
        return visit.redirect(_with_done(back, "answered"))
    done = _LEFT_OPEN.get(form.get("answer"), "voted")
    stay = f"/inbox/{quote(row.run_id, safe='')}/{quote(node_id, safe='')}"
    return visit.redirect(_with_done(stay if back == INBOX else back, done))


async def take(visit: Visit, name: str, node_id: str, interrupt_id: str, value: Json) -> bool:
    """Give an answer, and tell whether the same wait is still open after it."""
    await visit.host.commands.answer(
        visit.tenant,
        name,
        node_id,
        None if isinstance(value, Unset) else value,
        resolver_of(visit),
        interrupt_id=interrupt_id,
    )
    left = await find_wait(visit, name, node_id)
    return left is not None and left.item.interrupt_id == interrupt_id


async def lost(visit: Visit, name: str, node_id: str, interrupt_id: str, error: WoprError) -> str:
    """Why an answer was not taken: who was faster and with what, or what is wrong with it."""
    if not isinstance(error, Conflict):
        return error.message
    log = await visit.desk.logs.read(visit.host.readers, visit.tenant, name)
    past = settled(log.entries, node_id, interrupt_id)
    if past is None:
        return error.message
    why = f": {past.reason}" if past.reason else ""
    return f"{past.by} was faster and {past.word}{why}"


def require_read(visit: Visit) -> None:
    """Whoever answers here also sees what is asked."""
    if not visit.may(READ):
        raise Forbidden(f"this key lacks the scope {READ}", scopeRequired=READ)


def wait_values(visit: Visit, back: str) -> dict[str, object]:
    """What the template of a wait needs beside it: where to go on, and what went wrong."""
    return {"back": back, "problem": "", "me_id": visit.caller.key_id}


async def _place(visit: Visit) -> tuple[RunRow, str]:
    """The run and the node of the path, which must be the tenant's."""
    row = await visit.host.readers.row(visit.tenant, run_id(visit.exchange))
    node_id = visit.exchange.path["node_id"]
    compiled = await visit.host.library.version(visit.tenant, row.workflow_id, row.workflow_version)
    if node_id not in compiled.graph.nodes:
        raise NotFound("there is no such node")
    return row, node_id


async def _open(
    visit: Visit, wait: Wait, back: str, form: Form | None = None, refused: Refused | None = None
) -> Answer:
    view = await look_at(visit, wait)
    values = wait_values(visit, back)
    if form is not None and refused is not None and view.offer is not None:
        offer = view.offer.filled(form, refused)
        problem = "" if offer.has_problem else refused.message
        values |= {"offer": offer, "problem": visit.exchange.redactor.text(problem)}
    status = 200 if refused is None else refused.status
    return await visit.page("wait.html", status, view=view, **({"offer": view.offer} | values))


async def _over(
    visit: Visit,
    row: RunRow,
    node_id: str,
    interrupt_id: str,
    form: Form | None = None,
    status: int = 200,
) -> Answer:
    """The page for a wait that has ended; `form` is the answer that came too late."""
    log = await visit.desk.logs.read(visit.host.readers, visit.tenant, row.run_id)
    past = settled(log.entries, node_id, interrupt_id)
    return await visit.page(
        "settled.html",
        status,
        run=row,
        node_id=node_id,
        past=past,
        is_mine=past is not None and past.by == visit.caller.key_id,
        late=None if form is None else _late(form),
    )


def _late(form: Form) -> dict[str, str]:
    """What somebody wanted to say who came too late, so that none of it is lost."""
    kept = {
        name: value
        for name, value in form.fields.items()
        if value.strip() and name not in ("csrf", "interruptId", "next", "answer")
    }
    return {"answer": form.get("answer"), **kept}


def _with_done(path: str, done: str) -> str:
    parts = urlsplit(path)
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    query = f"{parts.query}&" if parts.query else ""
    return f"{parts.path}?{query}done={done}{fragment}"


PAGES: Final = (
    Page(
        name="wait",
        path="/inbox/{run_id}/{node_id}",
        get=show_wait,
        post=answer,
        has_large_form=True,
        scope=READ,
        post_scope=RESPOND,
        action="interrupt.resolve",
    ),
)
