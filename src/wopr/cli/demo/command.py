"""`wopr demo`: a tour of the product with scripted models, without API keys and network."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wopr.cli.client import CredentialsFile
from wopr.cli.errors import CliError, ExitCode, command, exit_code_of_status
from wopr.cli.output import print_line
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.host.host import Host
    from wopr.process.settings import Settings
    from wopr.testing.models import ScriptedModels


@command
def demo(
    auto: Annotated[
        bool,
        typer.Option("--auto", help="Answer all questions automatically, and stop at the end."),
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
    data: Annotated[
        Path, typer.Option("--data-dir", help="The data directory of the demo.")
    ] = Path("wopr-demo"),
) -> None:
    """Run customer support with scripted models: agents, tools, handoffs, approvals and feedback.

    It needs no API key and no network. Without --auto, it waits for your answer to every question.
    """
    from wopr.cli.demo.workflows import demo_models
    from wopr.console.app import console
    from wopr.http.server import serve
    from wopr.process.settings import Settings

    settings = Settings(port=port, data_dir=data, log_level="warning")
    scripted = demo_models()
    try:
        serve(
            settings,
            console,
            partial(_open_host, settings, scripted),
            partial(_run_tour, settings, scripted, auto),
        )
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None
    except OSError as fault:
        raise CliError(str(fault), ExitCode.UNAVAILABLE) from None


def _open_host(settings: Settings, scripted: ScriptedModels) -> AbstractAsyncContextManager[Host]:
    from wopr.api.apps import collect
    from wopr.cli.demo.workflows import judge_workflow, support_desk
    from wopr.host.contributions import contributed_host

    return contributed_host(settings, collect([support_desk(), judge_workflow()]), models=scripted)


async def _run_tour(settings: Settings, scripted: ScriptedModels, is_auto: bool, url: str) -> None:
    """Run the tour. Without --auto the host keeps running until it is stopped."""
    import anyio

    from wopr.api.host import connect
    from wopr.cli.demo.tour import Tour

    prefix = f"WOPR_DATA_DIR={settings.data_dir} "
    path = anyio.Path(settings.data_dir / "credentials.json")
    credentials = msgspec.json.decode(await path.read_bytes(), type=CredentialsFile)
    async with connect(url, credentials.api_key) as host:
        await Tour(host, scripted, prefix, is_auto).run()
    _print_next_steps(prefix, is_auto=is_auto)
    if not is_auto:
        await anyio.sleep_forever()


def _print_next_steps(prefix: str, *, is_auto: bool) -> None:
    print_line("")
    print_line("The tour is finished. Show the recorded runs:")
    # With --auto the host is stopped at the end.
    serving = ("serve",) if is_auto else ()
    for words in (*serving, "runs list", "agents list", "audit verify"):
        print_line(f"    $ {prefix}wopr {words}")
    print_line("Your own agents: docs/tutorial.md, and `wopr dev app.py`.")
    if not is_auto:
        print_line("The host runs until you stop it with Ctrl-C.")
