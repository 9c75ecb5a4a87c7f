"""`wopr runs fork`, `replay`, `diff` and `bundle`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from wopr.api.text import short
from wopr.cli.client import with_client
from wopr.cli.errors import CliError, ExitCode, command
from wopr.cli.options import JsonOption, KeyOption, ServerOptions, UrlOption
from wopr.cli.output import note, print_block, print_json, print_line, print_table
from wopr.cli.runs.commands import RunArgument
from wopr.cli.runs.run import typed_inputs
from wopr.cli.values import parse_assignments
from wopr.protocol.documents import UNSET, JsonObject, Unset
from wopr.protocol.forks import ForkMode, ForkPreview, ForkRun, OptionsOverlay, RunDiff
from wopr.protocol.runs import TERMINAL

if TYPE_CHECKING:
    from wopr.api.client import Client, DecodedResponse

FromOption = Annotated[
    int | None,
    typer.Option(
        "--from", min=0, metavar="SEQ", help="Sequence of the first event that is not copied."
    ),
]


def add_commands(app: typer.Typer) -> None:
    """Add these commands to `wopr runs`."""
    for function in (fork, replay, diff, bundle):
        app.command()(function)


@command
def fork(
    run_id: RunArgument,
    mode: Annotated[
        ForkMode, typer.Option(help="Repeat the recorded results, or execute the nodes again.")
    ] = "branch",
    start: FromOption = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="A tag of the branch; repeatable.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="A key of `configurable` to change."),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="An input to change, only with --from 0; as for `wopr run`.",
        ),
    ] = None,
    because: Annotated[
        str | None,
        typer.Option(metavar="ANNOTATION", help="The id of the annotation that is the reason."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what the fork would do.")
    ] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a new run from a point of another run's history.

    A branch executes the nodes after that point again, including their effects outside the host.
    Use --dry-run first.
    """
    overlay = OptionsOverlay(
        inputs=parse_assignments(inputs or [], "--input"),
        configurable=parse_assignments(config or [], "--config"),
        tags=tag or [],
        metadata={} if because is None else {"annotationId": because},
    )
    from_seq: int | Unset = UNSET if start is None else start
    body = ForkRun(mode=mode, from_seq=from_seq, run_options_overlay=overlay)
    target = ServerOptions(url, api_key)
    if inputs and not all(isinstance(value, str) for value in overlay.inputs.values()):
        body = with_client(target, lambda client: _with_typed_inputs(client, run_id, body, inputs))
    if because is not None:
        with_client(target, lambda client: _require_annotation(client, run_id, because))
    if dry_run:
        preview = with_client(target, lambda client: client.preview_fork(run_id, body))
        if as_json:
            print_json(preview.body)
        else:
            _print_preview(preview.document)
        return
    accepted = with_client(target, lambda client: client.fork(run_id, body))
    if as_json:
        print_json(accepted.body)
    else:
        print_line(accepted.document.run_id)
        note(f"{accepted.document.mode} of {run_id} from event {accepted.document.from_seq}")


async def _with_typed_inputs(
    client: Client, run_id: str, body: ForkRun, pairs: list[str]
) -> ForkRun:
    """Return the request, with inputs of the types that the workflow declares."""
    overlay = body.run_options_overlay
    source = (await client.snapshot(run_id)).document
    version = source.workflow_version or None
    typed = await typed_inputs(client, pairs, overlay.inputs, source.workflow_id, version)
    return replace(body, run_options_overlay=replace(overlay, inputs=typed))


@command
def replay(
    run_id: RunArgument,
    start: FromOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a finished run from its recorded results, without effects, and compare both.

    The exit code is 0 when both are the same, and 1 when they differ.
    """
    body = ForkRun(mode="replay", from_seq=UNSET if start is None else start)

    async def repeat(client: Client) -> DecodedResponse[RunDiff]:
        from wopr.cli.runs.events import wait_quietly

        status = (await client.snapshot(run_id)).document.status
        if status not in TERMINAL:
            raise CliError(
                f"run {run_id} is {status}; only a run that has ended can be replayed",
                ExitCode.CONFLICT,
                code="run_state_conflict",
                hint="wait for its end, or use `wopr runs fork --mode replay`",
            )
        accepted = await client.fork(run_id, body)
        # A replay uses the recorded answers, so it has no open questions.
        await wait_quietly(client, accepted.document.run_id, is_silent=as_json, hints=False)
        return await client.diff(run_id, accepted.document.run_id)

    _show_diff(with_client(ServerOptions(url, api_key), repeat), as_json=as_json)


@command
def diff(
    run_id: RunArgument,
    other: Annotated[str, typer.Argument(metavar="OTHER_ID", help="The run to compare with.")],
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the events and the final states of two runs.

    The exit code is 0 when both are the same, and 1 when they differ.
    """
    found = with_client(ServerOptions(url, api_key), lambda client: client.diff(run_id, other))
    _show_diff(found, as_json=as_json)


@command
def bundle(
    run_id: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", dir_okay=False, help="A file to write, instead of stdout."),
    ] = None,
    max_events: Annotated[
        int | None, typer.Option(min=0, help="Maximum number of events, counted from the first.")
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Export a run for diagnosis: snapshot, events, spans, metrics and annotations."""
    query = {} if max_events is None else {"maxEvents": str(max_events)}
    found = with_client(ServerOptions(url, api_key), lambda client: client.bundle(run_id, query))
    if out is None:
        print_json(found.body)
    else:
        _write(out, found.body)
    reason = found.document.get("truncatedReason")
    if reason:
        note(f"the bundle is not complete: {reason}")


async def _require_annotation(client: Client, run_id: str, annotation_id: str) -> None:
    known = (await client.annotations(run_id)).document.annotations
    if annotation_id not in {each.annotation_id for each in known}:
        raise CliError(
            f"run {run_id} has no annotation {annotation_id}",
            ExitCode.NOT_FOUND,
            hint=f"`wopr feedback list {run_id} --json` shows their ids",
        )


def _print_preview(preview: ForkPreview) -> None:
    print_line(f"{preview.mode} of {preview.source_run_id} from event {preview.from_seq}")
    for title, names in (
        ("nodes kept", preview.kept_nodes),
        ("nodes run again", preview.rerun_nodes),
        ("nodes that may run", preview.possible_nodes),
        ("effects performed again", preview.effects_again),
        ("effects that may happen", preview.possible_effects),
        ("answers kept", preview.answers_kept),
        ("answers asked for again", preview.answers_asked_again),
    ):
        print_line(f"  {title:<24} {', '.join(names) or '-'}")


def _show_diff(found: DecodedResponse[RunDiff], *, as_json: bool) -> None:
    result = found.document
    if as_json:
        print_json(found.body)
    elif result.diverged_at_seq is None:
        so_far = " so far" if result.truncated else ""
        print_line(f"{result.a} and {result.b} are the same{so_far}")
    else:
        _print_diff(result)
    if result.diverged_at_seq is not None:
        raise typer.Exit(ExitCode.FAILED)


def _print_diff(result: RunDiff) -> None:
    print_line(f"{result.a} and {result.b} differ from event {result.diverged_at_seq}")
    print_table(
        ("SEQ", "CHANGE", "A", "B"),
        (
            (str(each.seq), each.op, _event_text(each.a_event), _event_text(each.b_event))
            for each in result.event_diffs
        ),
    )
    if result.truncated:
        note("The comparison is not complete: a run has not ended, or more events differ.")
    print_block("state", result.state_diff)


def _event_text(event: JsonObject | Unset) -> str:
    if isinstance(event, Unset):
        return ""
    return f"{event.get('type')} {short(event.get('payload'))}"


def _write(path: Path, body: bytes) -> None:
    """Write a file that only its owner can read, because a bundle may be confidential."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
    except OSError as fault:
        raise CliError(f"cannot write {path}: {fault.strerror}", ExitCode.USAGE) from None
    note(f"wrote {path}")
