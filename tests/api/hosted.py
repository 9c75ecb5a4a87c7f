"""A host in this process whose files stay after its end, so that another host can continue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio

from wopr.api import host as api
from wopr.api.apps import collect
from wopr.host.contributions import contributed_host
from wopr.http.app import App
from wopr.process.settings import Settings
from wopr.testing.models import ScriptedModels
from wopr.testing.transport import InProcessTransport

KEY = "test_acme_admin_key"


@asynccontextmanager
async def hosted(
    folder: Path, parts: Iterable[object], models: ScriptedModels
) -> AsyncGenerator[api.Host, None]:
    """Run a host with these workflows, agents and tools on the files in a folder."""
    settings = Settings(data_dir=folder, api_keys=f"{KEY}:acme:admin", rate_limit=0)
    app = App(partial(contributed_host, settings, collect(parts), models=models))
    async with app.run_host(), anyio.create_task_group() as tasks:
        async with api.connect(
            "http://in-memory", KEY, transport=InProcessTransport(app, tasks)
        ) as host:
            yield host
        tasks.cancel_scope.cancel()
