"""What can be done to a run: cancel, pause, resume, fork and replay, each with a page that asks first."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from wopr.console.form import document
from wopr.console.page import Page
from wopr.console.run_view import snapshot_of
from wopr.console.visit import Visit
from wopr.http.answers import Answer
from wopr.http.exchange import whole_number
from wopr.http.runs import run_id
from wopr.protocol.documents import UNSET
from wopr.protocol.errors import Forbidden, Refused
from wopr.protocol.forks import ForkAccepted, ForkMode, ForkRun, OptionsOverlay
from wopr.protocol.runs import DRAIN_POLICIES, CancelRun, PauseRun, ResumeRun
from wopr.runtime.fleet_rules import require_own
from wopr.runtime.forking import check_fork

_MODES: Final[dict[str, ForkMode]] = {"branch": "branch", "replay": "replay"}


async def ask_cancel(visit: Visit) -> Answer:
    """Ask before a run is cancelled."""
    return await _ask(visit, "cancel.html")


async def cancel(visit: Visit) -> Answer:
    """Cancel a run and its children."""
    name = await _own_run(visit)
    request = document({"reason": (await visit.form()).get("reason")}, CancelRun)
    reason = request.reason or ""
    await visit.host.commands.cancel(visit.tenant, name, reason, by=visit.caller.key_id)
    return _back(visit, name, "cancelled")


async def ask_pause(visit: Visit) -> Answer:
    """Ask how a run is to be paused."""
    return await _ask(visit, "pause.html", policies=DRAIN_POLICIES)


async def pause(visit: Visit) -> Answer:
    """Pause a run, at once or when the nodes in flight have ended."""
    name, form = await _own_run(visit), await visit.form()
    policy = form.choice("drainPolicy", DRAIN_POLICIES, "drain-current-node")
    request = document({"reason": form.get("reason"), "drainPolicy": policy}, PauseRun)
    await visit.host.commands.pause(visit.tenant, name, request, by=visit.caller.key_id)
    return _back(visit, name, "paused")


async def ask_resume(visit: Visit) -> Answer:
    """Ask before a paused run goes on."""
    return await _ask(visit, "resume.html")


async def resume(visit: Visit) -> Answer:
    """Let a paused run go on."""
    name = await _own_run(visit)
    request = document({"reason": (await visit.form()).get("reason")}, ResumeRun)
    reason = request.reason or ""
    await visit.host.commands.resume(visit.tenant, name, reason, by=visit.caller.key_id)
    return _back(visit, name, "resumed")


async def preview_fork(visit: Visit) -> Answer:
    """Show what a fork would keep, run again, perform again and ask again."""
    _require_read(visit)
    name = run_id(visit.exchange)
    row = await visit.host.readers.row(visit.tenant, name)
    mode, start = _fork_of(visit.query.get("mode", "branch"), visit.query.get("from", ""))
    request = ForkRun(mode=mode, from_seq=start)
    await _check_fork(visit, name, request)
    preview = await visit.host.commands.preview_fork(visit.tenant, name, request)
    return await visit.page(
        "fork.html", run=await snapshot_of(visit, name), row=row, preview=preview
    )


async def fork(visit: Visit) -> Answer:
    """Fork a run, and go to the page of the new one."""
    _require_read(visit)
    name, form = await _own_run(visit), await visit.form()
    mode, start = _fork_of(form.get("mode"), form.get("from"))
    tags = [tag.strip() for tag in form.get("tags").split(",") if tag.strip()]
    overlay = document({"tags": tags}, OptionsOverlay) if mode == "branch" else OptionsOverlay()
    request = ForkRun(mode=mode, from_seq=start, run_options_overlay=overlay)
    await _check_fork(visit, name, request)
    by = visit.caller.key_id
    answer = await visit.host.commands.fork(visit.tenant, name, request, by=by)
    made = msgspec.json.decode(answer, type=ForkAccepted)
    return _back(visit, made.run_id, "forked")


async def _check_fork(visit: Visit, name: str, request: ForkRun) -> None:
    host = visit.host
    await check_fork(host.advancer.journal, name, request, visit.caller, host.settings)


def _require_read(visit: Visit) -> None:
    if not visit.may("runs:read"):
        raise Forbidden("this key lacks the scope runs:read", scopeRequired="runs:read")


def _fork_of(mode: str, start: str) -> tuple[ForkMode, int | msgspec.UnsetType]:
    if mode not in _MODES:
        raise Refused(f"mode must be one of {', '.join(_MODES)}", field="mode")
    return _MODES[mode], whole_number("from", start) if start else UNSET


async def _own_run(visit: Visit) -> str:
    """The run of the path, which must be the tenant's and the host's own."""
    name = run_id(visit.exchange)
    await visit.host.readers.row(visit.tenant, name)
    require_own(name)
    return name


async def _ask(visit: Visit, template: str, **values: object) -> Answer:
    return await visit.page(template, run=await snapshot_of(visit, await _own_run(visit)), **values)


def _back(visit: Visit, name: str, done: str) -> Answer:
    return visit.redirect(f"/runs/{quote(name, safe='')}?done={done}")


PAGES: Final = (
    Page(
        name="cancel",
        path="/runs/{run_id}/cancel",
        get=ask_cancel,
        post=cancel,
        scope="runs:cancel",
        action="run.cancel",
    ),
    Page(
        name="pause",
        path="/runs/{run_id}/pause",
        get=ask_pause,
        post=pause,
        scope="runs:cancel",
        action="run.pause",
    ),
    Page(
        name="resume",
        path="/runs/{run_id}/resume",
        get=ask_resume,
        post=resume,
        scope="runs:cancel",
        action="run.resume",
    ),
    Page(
        name="fork",
        path="/runs/{run_id}/fork",
        get=preview_fork,
        post=fork,
        scope="runs:create",
        action="run.fork",
    ),
)
