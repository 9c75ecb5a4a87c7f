"""`wopr run`: start a workflow and see it through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wopr.cli.conversation import ask
from wopr.cli.documents import list_of, object_of
from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode, exit_code_of_run
from wopr.cli.options import JsonOption, KeyOption, Target, UrlOption
from wopr.cli.output import note, print_json, print_line
from wopr.cli.run_report import print_end
from wopr.cli.values import as_declared, parse_assignments, parse_object
from wopr.protocol.documents import JsonObject
from wopr.protocol.runs import CreateRun, RunAccepted, RunSnapshot

if TYPE_CHECKING:
    from wopr.cli.connection import Answer, Client


@command
def run(
    workflow: Annotated[str, typer.Argument(help="The workflow's id.")],
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="An input; JSON if it is JSON, or text if it is declared as text.",
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
        str | None, typer.Option(help="Starting twice with the same key starts one run.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Show the events as they happen.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the end, or just print the run id.")
    ] = True,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Stop waiting after that; the run goes on."),
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a run and wait for its end.

    The exit code says how the run ended: 0 completed, 1 failed, 7 cancelled.
    """
    if follow and not wait:
        raise typer.BadParameter("a run that is followed is waited for", param_hint="--no-wait")
    body = CreateRun(
        workflow_id=workflow,
        inputs=_inputs(input_ or [], inputs),
        configurable=parse_assignments(config or [], "--config"),
        tags=tag or [],
    )
    journey = Journey(
        body,
        idempotency_key,
        pairs=input_ or [],
        follow=follow,
        wait=wait,
        timeout=timeout,
        as_json=as_json,
    )
    try:
        status = ask(Target(url, api_key), journey.travel)
    except KeyboardInterrupt:
        note("stopped watching; the run goes on")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    raise typer.Exit(exit_code_of_run(status))


@dataclass(frozen=True, slots=True)
class Journey:
    """One start of a workflow, and how far to go along."""

    body: CreateRun
    idempotency_key: str | None
    _: KW_ONLY
    # The inputs as they were written on the command line.
    pairs: list[str]
    follow: bool
    wait: bool
    timeout: float | None
    as_json: bool

    async def travel(self, client: Client) -> str:
        """Start the run, print what was asked for, and give back its last known status."""
        accepted = await client.create_run(await self._typed(client), self.idempotency_key)
        if not self.wait:
            self._print_accepted(accepted)
            return accepted.document.status
        if not self.as_json:
            note(f"run {accepted.document.run_id}")
        await self._watch(client, accepted.document)
        ended = await client.ended(accepted.document.run_id)
        self._print_end(ended)
        return ended.document.status

    async def _typed(self, client: Client) -> CreateRun:
        """The request, with inputs read by the types that the workflow declares."""
        workflow_id = self.body.workflow_id
        inputs = await typed_inputs(client, self.pairs, self.body.inputs, workflow_id)
        return msgspec.structs.replace(self.body, inputs=inputs)

    async def _watch(self, client: Client, accepted: RunAccepted) -> None:
        import anyio

        from wopr.cli.watch import show_events, wait_quietly

        run_id = accepted.run_id
        with anyio.move_on_after(self.timeout) as patience:
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
        if patience.cancelled_caught:
            raise CliError(
                f"run {run_id} has not ended after {self.timeout:g} s",
                ExitCode.TIMEOUT,
                code="timeout",
                hint=f"it goes on; see it with `wopr runs tail {run_id}`",
                details={"runId": run_id},
            )

    def _print_accepted(self, accepted: Answer[RunAccepted]) -> None:
        if self.as_json:
            print_json(accepted.body)
        else:
            print_line(accepted.document.run_id)

    def _print_end(self, ended: Answer[RunSnapshot]) -> None:
        if not self.as_json:
            print_end(ended.document)
        elif not self.follow:
            # A followed run's last line already is its terminal event.
            print_json(ended.body)


async def typed_inputs(
    client: Client,
    pairs: Sequence[str],
    inputs: JsonObject,
    workflow_id: str,
    version: str | None = None,
) -> JsonObject:
    """Read inputs of the command line by the types that a workflow declares."""
    if not pairs or all(isinstance(value, str) for value in inputs.values()):
        return inputs
    try:
        definition = (await client.workflow(workflow_id, version)).document
    except CliError:
        # A key that may not read definitions may still start runs.
        return inputs
    declared = [object_of(each) for each in list_of(definition.get("variables"))]
    kinds = {str(each.get("name")): str(each.get("type")) for each in declared}
    return as_declared(pairs, inputs, kinds)


def _inputs(pairs: list[str], document: str | None) -> JsonObject:
    if document is None:
        return parse_assignments(pairs, "--input")
    if pairs:
        raise typer.BadParameter("give --input or --inputs, not both", param_hint="--inputs")
    return parse_object(document, "--inputs")
