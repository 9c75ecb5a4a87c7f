"""A host in this process, without a socket and with a database in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import anyio
import structlog

from wopr.agents.models.port import Models
from wopr.api import host as api
from wopr.api.apps import collect
from wopr.cluster.local_wakeups import LocalWakeups
from wopr.host.contributions import Contributions, contributed_host
from wopr.host.host import Host
from wopr.http.app import App
from wopr.process.logs import configure_logs
from wopr.process.settings import Settings
from wopr.process.sources import Sources
from wopr.testing.clock import Clock
from wopr.testing.transport import InProcessTransport

KEY = "in-memory-admin-key"
URL = "http://in-memory"


@asynccontextmanager
async def memory_host(
    *parts: object, models: Models | None = None, clock: Clock | None = None
) -> AsyncGenerator[api.Host, None]:
    """Run a host in memory with workflows, agents, tools and node functions.

    Args:
        *parts: Workflows, agents, tools, node functions and MCP servers.
        models: The model provider, such as `scripted(...)`.
        clock: The time of the host. The default is the real time.

    Yields:
        The host.

    Raises:
        WorkflowError: A part has errors or declares nothing.

    Example:
        >>> import anyio
        >>> from wopr import Workflow
        >>> from wopr.testing import memory_host
        >>> flow = Workflow("hello")
        >>> end = flow.end(text="Hello")
        >>> async def main() -> dict[str, object]:
        ...     async with memory_host(flow) as host:
        ...         return await (await host.start(flow)).result()
        >>> anyio.run(main)
        {'text': 'Hello'}
    """
    if not structlog.is_configured():
        # Tests need warnings, but not a line per request.
        configure_logs("text", "warning")
    contributions = collect(parts, is_strict=True)
    error: BaseException | None = None
    with TemporaryDirectory(prefix="wopr-") as folder:
        app = App(partial(_open_host, Path(folder), contributions, models, clock))
        async with app.run_host(), anyio.create_task_group() as tasks:
            if clock is not None:
                clock.on_advance(_local_wakeups(app).clock_changed)
            async with api.connect(URL, KEY, transport=InProcessTransport(app, tasks)) as host:
                try:
                    yield host
                except (GeneratorExit, anyio.get_cancelled_exc_class()):
                    raise
                except BaseException as failure:
                    # Raised again outside the task groups: they would wrap it in a group.
                    error = failure
            tasks.cancel_scope.cancel()
    if error is not None:
        raise error


def _local_wakeups(app: App) -> LocalWakeups:
    source = app.host.advancer.wakeups.source
    assert isinstance(source, LocalWakeups), "a host in memory does not share its store"
    return source


def _open_host(
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
