"""Actions on a run: cancel, pause, resume, fork and replay. Each page asks for confirmation."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from wopr.console.forms import document
from wopr.console.page import Page, PageRequest
from wopr.console.runs.view import snapshot_of
from wopr.http.request import whole_number
from wopr.http.response import Response
from wopr.http.routes.runs import run_id_of
from wopr.protocol.documents import UNSET
from wopr.protocol.errors import Refused
from wopr.protocol.forks import ForkAccepted, ForkMode, ForkRun, OptionsOverlay
from wopr.protocol.observed_ids import require_own_run
from wopr.protocol.runs import DRAIN_POLICIES, CancelRun, PauseRun, ResumeRun
from wopr.runs.forks.create import check_fork

_MODES: Final[dict[str, ForkMode]] = {"branch": "branch", "replay": "replay"}


async def ask_cancel(request: PageRequest) -> Response:
    """Ask for confirmation before a run is cancelled."""
    return await _question_page(request, "cancel.html")


async def cancel(request: PageRequest) -> Response:
    """Cancel a run and its children."""
    run_id = await _own_run(request)
    body = document({"reason": (await request.form()).get("reason")}, CancelRun)
    reason = body.reason or ""
    await request.host.commands.cancel(request.tenant, run_id, reason, by=request.caller.key_id)
    return _redirect(request, run_id, "cancelled")


async def ask_pause(request: PageRequest) -> Response:
    """Ask how to pause a run."""
    return await _question_page(request, "pause.html")


async def pause(request: PageRequest) -> Response:
    """Pause a run, immediately or when the running nodes have ended."""
    run_id, form = await _own_run(request), await request.form()
    policy = form.choice("drainPolicy", DRAIN_POLICIES, "drain-current-node")
    body = document({"reason": form.get("reason"), "drainPolicy": policy}, PauseRun)
    await request.host.commands.pause(request.tenant, run_id, body, by=request.caller.key_id)
    return _redirect(request, run_id, "paused")


async def ask_resume(request: PageRequest) -> Response:
    """Ask for confirmation before a run is resumed."""
    return await _question_page(request, "resume.html")


async def resume(request: PageRequest) -> Response:
    """Resume a paused run."""
    run_id = await _own_run(request)
    body = document({"reason": (await request.form()).get("reason")}, ResumeRun)
    reason = body.reason or ""
    await request.host.commands.resume(request.tenant, run_id, reason, by=request.caller.key_id)
    return _redirect(request, run_id, "resumed")


async def preview_fork(request: PageRequest) -> Response:
    """Show the effects of a fork: nodes kept and run again, repeated side effects and questions."""
    request.require("runs:read")
    run_id = run_id_of(request.http)
    row = await request.host.run_reader.row(request.tenant, run_id)
    mode, start = _fork_of(request.query.get("mode", "branch"), request.query.get("from", ""))
    body = ForkRun(mode=mode, from_seq=start)
    await _check_fork(request, run_id, body)
    preview = await request.host.commands.preview_fork(request.tenant, run_id, body)
    return await request.page(
        "fork.html", run=await snapshot_of(request, run_id), row=row, preview=preview
    )


async def fork(request: PageRequest) -> Response:
    """Fork a run and redirect to the new run."""
    request.require("runs:read")
    run_id, form = await _own_run(request), await request.form()
    mode, start = _fork_of(form.get("mode"), form.get("from"))
    tags = [tag.strip() for tag in form.get("tags").split(",") if tag.strip()]
    overlay = document({"tags": tags}, OptionsOverlay) if mode == "branch" else OptionsOverlay()
    body = ForkRun(mode=mode, from_seq=start, run_options_overlay=overlay)
    await _check_fork(request, run_id, body)
    by = request.caller.key_id
    answer = await request.host.commands.fork(request.tenant, run_id, body, by=by)
    made = msgspec.json.decode(answer, type=ForkAccepted)
    return _redirect(request, made.run_id, "forked")


async def _check_fork(request: PageRequest, run_id: str, body: ForkRun) -> None:
    host = request.host
    await check_fork(host.advancer.journal, run_id, body, request.caller, host.settings)


def _fork_of(mode: str, start: str) -> tuple[ForkMode, int | msgspec.UnsetType]:
    if mode not in _MODES:
        raise Refused(f"mode must be one of {', '.join(_MODES)}", field="mode")
    return _MODES[mode], whole_number("from", start) if start else UNSET


async def _own_run(request: PageRequest) -> str:
    """Return the run of the path, which must be a run of the tenant on this host."""
    run_id = run_id_of(request.http)
    await request.host.run_reader.row(request.tenant, run_id)
    require_own_run(run_id)
    return run_id


async def _question_page(request: PageRequest, template: str) -> Response:
    return await request.page(template, run=await snapshot_of(request, await _own_run(request)))


def _redirect(request: PageRequest, run_id: str, done: str) -> Response:
    return request.redirect(f"/runs/{quote(run_id, safe='')}?done={done}")


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
