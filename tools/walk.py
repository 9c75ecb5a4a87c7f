"""The path of one request: each source file that `POST /v1/runs` enters, in the order of entry.

Run it with `python -m tools.walk`. It opens a host with its database on disk, creates one run of
one `core.noop` node, and lists the files whose functions were called before the response. At that
time the run is completed and committed. Background tasks that run at the same time are counted too.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import anyio
import httpx

import wopr
from wopr.host.contributions import Contributions, contributed_host
from wopr.http.app import App
from wopr.process.logs import configure_logs
from wopr.process.settings import Settings
from wopr.protocol.documents import JsonObject

SOURCE = f"{Path(wopr.__file__).parent}/"
KEY = "walk-key-0123456789"
# Number of runs before the recorded run: they fill the caches.
WARM_UP = 3
WORKFLOW: JsonObject = {
    "id": "walk",
    "name": "Walk",
    "version": "1.0",
    "nodes": [
        {
            "id": "only",
            "typeId": "core.noop",
            "name": "Only",
            "position": {"x": 0, "y": 0},
            "config": {},
            "inputs": {},
        }
    ],
    "edges": [],
    "triggers": [],
    "variables": [],
    "metadata": {},
    "settings": {},
}


class Walk:
    """A profiler function that records the files of the package, while it is active."""

    def __init__(self) -> None:
        self.active = False
        # By file, in the order of entry: the names of the functions that were called.
        self.functions: dict[str, dict[str, None]] = {}
        self.package_calls = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Record one call."""
        if not self.active or event != "call":
            return
        file = _file(frame)
        if file is None:
            return
        functions = self.functions.setdefault(file, {})
        caller = frame.f_back
        while caller is not None and _file(caller) is None:
            caller = caller.f_back
        if frame.f_code.co_qualname in functions:
            return
        functions[frame.f_code.co_qualname] = None
        before = caller and _file(caller)
        if before and _package(before) != _package(file):
            self.package_calls += 1


def _file(frame: FrameType) -> str | None:
    path = frame.f_code.co_filename
    return path.removeprefix(SOURCE) if path.startswith(SOURCE) else None


def _package(file: str) -> str:
    return file.partition("/")[0]


async def record_walk() -> Walk:
    """Create runs on a new host and record the last one."""
    configure_logs("text", "warning")
    walk = Walk()
    threading.setprofile(walk)
    sys.setprofile(walk)
    with TemporaryDirectory(prefix="wopr-") as folder:
        settings = Settings(data_dir=Path(folder), api_keys=f"{KEY}:walk:admin", rate_limit=0)
        app = App(lambda: contributed_host(settings, Contributions()))
        async with (
            app.run_host(),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app),
                base_url="http://walk",
                headers={"authorization": f"Bearer {KEY}"},
            ) as client,
        ):
            (await client.post("/v1/workflows", json=WORKFLOW)).raise_for_status()
            for _ in range(WARM_UP):
                await _run(client, walk, is_recorded=False)
            await _run(client, walk, is_recorded=True)
    sys.setprofile(None)
    threading.setprofile(None)
    return walk


async def _run(client: httpx.AsyncClient, walk: Walk, *, is_recorded: bool) -> None:
    walk.active = is_recorded
    accepted = (await client.post("/v1/runs", json={"workflowId": "walk"})).raise_for_status()
    walk.active = False
    snapshot = (await client.get(f"/v1/runs/{accepted.json()['runId']}")).raise_for_status()
    if snapshot.json()["status"] != "completed":
        raise RuntimeError(f"the run is {snapshot.json()['status']}, not completed")


def main() -> None:
    """Print the walk."""
    walk = anyio.run(record_walk)
    for number, (file, functions) in enumerate(walk.functions.items(), 1):
        print(f"{number:>3}  {file:<40} {', '.join(functions)}")
    print(f"{len(walk.functions)} files, {walk.package_calls} calls from one package into another")


if __name__ == "__main__":
    main()
