"""`wopr run`: start a workflow and wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wopr.api.errors import HostError
from wopr.cli.client import with_client
from wopr.cli.errors import CliError, ExitCode, command, exit_code_of_run
from wopr.cli.options import JsonOption, KeyOption, ServerOptions, UrlOption
from wopr.cli.output import note, print_json, print_line
from wopr.cli.runs.report import print_end
from wopr.cli.values import keep_declared_text, parse_assignments, parse_object
from wopr.protocol.documents import JsonObject, list_of, object_of
from wopr.protocol.runs import CreateRun, RunAccepted, RunSnapshot

if TYPE_CHECKING:
    from wopr.api.client import Client, DecodedResponse


@command
def run(
    workflow: Annotated[str, typer.Argument(help="The workflow's id.")],
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="An input: JSON if it is valid JSON, else text. "
            "An input declared as text is text.",
        ),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option("--inputs", metavar="JSON|@FILE|-", help="All inputs as a JSON object."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="A key of `configurable`."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; repeatable.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Two calls with the same key start one run.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Show the events as they happen.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the end, or just print the run id.")
    ] = True,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Stop waiting after this time. The run continues."
        ),
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a run and wait for its end.

    The exit code says how the run ended: 0 completed, 1 failed, 7 cancelled.
    """
    if follow and not wait:
        raise typer.BadParameter(
            "--follow cannot be combined with --no-wait", param_hint="--no-wait"
        )
    body = CreateRun(
        workflow_id=workflow,
        inputs=_inputs(input_ or [], inputs),
        configurable=parse_assignments(config or [], "--config"),
        tags=tag or [],
    )
    start = StartCommand(
        body,
        idempotency_key,
        pairs=input_ or [],
        follow=follow,
        wait=wait,
        timeout=timeout,
        as_json=as_json,
    )
    try:
        status = with_client(ServerOptions(url, api_key), start.execute)
    except KeyboardInterrupt:
        note("stopped waiting; the run continues")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    raise typer.Exit(exit_code_of_run(status))


@dataclass(frozen=True, slots=True)
class StartCommand:
    """One start of a workflow, and whether to wait or to follow."""

    body: CreateRun
    idempotency_key: str | None
    _: KW_ONLY
    # The inputs of the command line as text.
    pairs: list[str]
    follow: bool
    wait: bool
    timeout: float | None
    as_json: bool

    async def execute(self, client: Client) -> str:
        """Start the run, print the result, and return the last known status."""
        accepted = await client.create_run(
            await self._with_typed_inputs(client), self.idempotency_key
        )
        if not self.wait:
            self._print_accepted(accepted)
            return accepted.document.status
        if not self.as_json:
            note(f"run {accepted.document.run_id}")
        await self._watch(client, accepted.document)
        ended = await client.snapshot_with_outputs(accepted.document.run_id)
        self._print_end(ended)
        return ended.document.status

    async def _with_typed_inputs(self, client: Client) -> CreateRun:
        """Return the request, with inputs of the types that the workflow declares."""
        workflow_id = self.body.workflow_id
        inputs = await typed_inputs(client, self.pairs, self.body.inputs, workflow_id)
        return msgspec.structs.replace(self.body, inputs=inputs)

    async def _watch(self, client: Client, accepted: RunAccepted) -> None:
        import anyio

        from wopr.cli.runs.events import show_events, wait_quietly

        run_id = accepted.run_id
        with anyio.move_on_after(self.timeout) as deadline:
            if self.follow:
                await show_events(
                    client,
                    run_id,
                    started_at=accepted.started_at,
                    as_json=self.as_json,
                    hints=True,
                )
            else:
                await wait_quietly(client, run_id, is_silent=self.as_json)
        if deadline.cancelled_caught:
            raise CliError(
                f"run {run_id} has not ended after {self.timeout:g} s",
                ExitCode.TIMEOUT,
                code="timeout",
                hint=f"the run continues; follow it with `wopr runs tail {run_id}`",
                details={"runId": run_id},
            )

    def _print_accepted(self, accepted: DecodedResponse[RunAccepted]) -> None:
        if self.as_json:
            print_json(accepted.body)
        else:
            print_line(accepted.document.run_id)

    def _print_end(self, ended: DecodedResponse[RunSnapshot]) -> None:
        if not self.as_json:
            print_end(ended.document)
        elif not self.follow:
            # With --follow the last line is the terminal event.
            print_json(ended.body)


async def typed_inputs(
    client: Client,
    pairs: Sequence[str],
    inputs: JsonObject,
    workflow_id: str,
    version: str | None = None,
) -> JsonObject:
    """Convert inputs to the types that a workflow declares."""
    if not pairs or all(isinstance(value, str) for value in inputs.values()):
        return inputs
    try:
        definition = (await client.workflow(workflow_id, version)).document
    except HostError:
        # The key may be allowed to start runs but not to read definitions.
        return inputs
    declared = [object_of(each) for each in list_of(definition.get("variables"))]
    kinds = {str(each.get("name")): str(each.get("type")) for each in declared}
    return keep_declared_text(pairs, inputs, kinds)


def _inputs(pairs: list[str], document: str | None) -> JsonObject:
    if document is None:
        return parse_assignments(pairs, "--input")
    if pairs:
        raise typer.BadParameter("--input cannot be combined with --inputs", param_hint="--inputs")
    return parse_object(document, "--inputs")
