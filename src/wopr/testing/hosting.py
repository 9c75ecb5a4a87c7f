"""A host in this process: no socket, no file that stays, and otherwise the same code."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import anyio
import structlog

from wopr.api import host as api
from wopr.api.apps import collect
from wopr.http.app import App
from wopr.nodes.models import Models
from wopr.runtime.contributions import Contributions, contributed_host
from wopr.runtime.host import Host
from wopr.runtime.logs import configure_logs
from wopr.runtime.settings import Settings
from wopr.runtime.sources import Sources
from wopr.runtime.wakeups_alone import AloneSource
from wopr.testing.clock import Clock
from wopr.testing.transport import InProcess

KEY = "in-memory-admin-key"
URL = "http://in-memory"


@asynccontextmanager
async def memory_host(
    *parts: object, models: Models | None = None, clock: Clock | None = None
) -> AsyncGenerator[api.Host, None]:
    """Serve workflows, agents, tools and node functions from memory for as long as the block lasts.

    `models` answer in place of the real ones; with a `clock` time passes when the test says so.
    """
    if not structlog.is_configured():
        # A test wants to hear of what went wrong, and not of every request.
        configure_logs("text", "warning")
    contributions = collect(parts, is_strict=True)
    failed: BaseException | None = None
    with TemporaryDirectory(prefix="wopr-") as folder:
        app = App(partial(_opened, Path(folder), contributions, models, clock))
        async with app.opened(), anyio.create_task_group() as tasks:
            if clock is not None:
                clock.on_advance(_timers(app).look_again)
            async with api.connect(URL, KEY, transport=InProcess(app, tasks)) as host:
                try:
                    yield host
                except (GeneratorExit, anyio.get_cancelled_exc_class()):
                    raise
                except BaseException as failure:
                    # Raised again outside of the task groups, which would wrap it.
                    failed = failure
            tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


def _timers(app: App) -> AloneSource:
    source = app.host.advancer.wakeups.source
    assert isinstance(source, AloneSource), "a host in memory has its store to itself"
    return source


def _opened(
    folder: Path, contributions: Contributions, models: Models | None, clock: Clock | None
) -> AbstractAsyncContextManager[Host]:
    settings = Settings(
        data_dir=folder,
        db=f"sqlite:///:memory:{uuid4().hex}",
        api_keys=f"{KEY}:test:admin",
        rate_limit=0,
    )
    sources = Sources() if clock is None else Sources(now=clock)
    return contributed_host(settings, contributions, sources=sources, models=models)
