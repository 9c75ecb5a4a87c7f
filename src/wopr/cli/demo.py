"""`wopr demo`: the whole product on a support desk, without a key and without a network."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wopr.cli.credentials import Credentials
from wopr.cli.errors import CliError, command
from wopr.cli.exit_codes import ExitCode, exit_code_of_status
from wopr.cli.output import print_line
from wopr.protocol.errors import WoprError

if TYPE_CHECKING:
    from wopr.runtime.host import Host
    from wopr.runtime.settings import Settings
    from wopr.testing.models import ScriptedModels


@command
def demo(
    auto: Annotated[
        bool, typer.Option("--auto", help="Answer what waits by itself, and stop at the end.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
    data: Annotated[Path, typer.Option("--data-dir", help="Where the demo keeps its data.")] = Path(
        "wopr-demo"
    ),
) -> None:
    """Run a support desk with scripted models: agents, tools, hand-offs, doubts and approvals.

    It needs no key and no network. Without --auto it waits for you at every question.
    """
    from wopr.cli.demo_desk import models
    from wopr.console.app import console
    from wopr.http.server import serve
    from wopr.runtime.settings import Settings

    settings = Settings(port=port, data_dir=data, log_level="warning")
    scripted = models()
    try:
        serve(
            settings,
            console,
            partial(_opened, settings, scripted),
            partial(_told, settings, scripted, auto),
        )
    except WoprError as fault:
        raise CliError(fault.message, exit_code_of_status(fault.status), code=fault.code) from None
    except OSError as fault:
        raise CliError(str(fault), ExitCode.UNAVAILABLE) from None


def _opened(settings: Settings, scripted: ScriptedModels) -> AbstractAsyncContextManager[Host]:
    from wopr.api.apps import collect
    from wopr.cli.demo_desk import desk, judging
    from wopr.runtime.contributions import contributed_host

    return contributed_host(settings, collect([desk(), judging()]), models=scripted)


async def _told(settings: Settings, scripted: ScriptedModels, is_auto: bool, url: str) -> None:
    """Tell the story; without --auto the host stays until it is stopped."""
    import anyio

    from wopr.api.host import connect
    from wopr.cli.demo_story import Story

    prefix = f"WOPR_DATA_DIR={settings.data_dir} "
    noted = anyio.Path(settings.data_dir / "credentials.json")
    known = msgspec.json.decode(await noted.read_bytes(), type=Credentials)
    async with connect(url, known.api_key) as host:
        await Story(host, scripted, prefix, is_auto).tell()
    _farewell(prefix, is_auto=is_auto)
    if not is_auto:
        await anyio.sleep_forever()


def _farewell(prefix: str, *, is_auto: bool) -> None:
    print_line("")
    print_line("That was all of it, and all of it is on the record:")
    # Without a person to wait for, nobody would stop the host.
    serving = ("serve",) if is_auto else ()
    for words in (*serving, "runs list", "agents list", "audit verify"):
        print_line(f"    $ {prefix}wopr {words}")
    print_line("Your own agents: docs/tutorial.md, and `wopr dev app.py`.")
    if not is_auto:
        print_line("The host serves on until you stop it with Ctrl-C.")
