"""Runs the application on uvicorn, prints how to begin, and stops without losing anything."""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import anyio
import uvicorn

from wopr import __version__
from wopr.http.app import App, OpenHost, Pages
from wopr.http.discovery import PROBES
from wopr.runtime.host import Host, running_host
from wopr.runtime.logs import configure_logs
from wopr.runtime.settings import Settings

KEEP_ALIVE_SECONDS = 75
BACKLOG = 2048
YOUNG_OBJECTS = 20_000
Beside: TypeAlias = Callable[[str], Awaitable[None]]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """Uvicorn that ends streams first when it stops, and says how to begin when it starts."""

    def __init__(
        self, config: uvicorn.Config, app: App, settings: Settings, beside: Beside | None = None
    ) -> None:
        super().__init__(config)
        self._app = app
        self._settings = settings
        self._beside = beside
        # What ended whatever ran beside.
        self.failure: BaseException | None = None
        self._url = ""
        self._reachable = anyio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the host, serve it until a signal comes, and close it.

        It is not left to a lifespan, which would tell of a host that cannot be opened in its own way.
        """
        with self.capture_signals():
            async with self._app.opened():
                if self._beside is None:
                    await super().serve(sockets)
                else:
                    await self._serve_beside(self._beside, sockets)

    async def _serve_beside(self, beside: Beside, sockets: list[socket.socket] | None) -> None:
        async def run() -> None:
            await self._reachable.wait()
            try:
                await beside(self._url)
            except (Exception, SystemExit) as failure:  # raised again once the host is closed
                self.failure = failure
            self.should_exit = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await super().serve(sockets)
            tasks.cancel_scope.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then greet."""
        await super().startup(sockets)
        _spare_the_collector()
        if self.should_exit or not self.servers:
            return
        port = self.servers[0].sockets[0].getsockname()[1]
        url = f"http://{_shown(self._settings.host)}:{port}"
        host = self._app.host
        if not self._settings.serves:
            print(f"\n  WOPR {__version__} works; its health is on {url}/readyz\n", flush=True)
            return
        credentials = keep_credentials(self._settings.data_dir, url, host.first_key)
        greet(self._settings, host, url, credentials)
        self._url = url
        self._reachable.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let readers go, finish what is under way, then close the host."""
        self._app.shared.stopping.set()
        self._app.host.bus.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on a signal, and then end as done: uvicorn would raise the signal once more."""
        before = {sign: signal.signal(sign, self.handle_exit) for sign in STOP_SIGNALS}
        try:
            yield
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)


def serve(
    settings: Settings,
    pages: Pages | None = None,
    open_host: OpenHost | None = None,
    beside: Beside | None = None,
) -> None:
    """Serve until a signal comes. Raises what kept the host from opening.

    `open_host` opens another host than the one that the settings alone describe. What runs `beside`
    gets the address once it can be reached; serving ends with it.
    """
    configure_logs(settings.log_format, settings.log_level)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    operations = None if settings.serves else PROBES
    app = App(open_host or (lambda: running_host(settings)), pages, operations)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,
        server_header=False,
        log_config=None,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )
    # Before the host is opened: an address that is taken must not cost a recovery.
    listening = _listen(settings.host, settings.port)
    server = Server(config, app, settings, beside)
    server.run([listening])
    if server.failure is not None:
        raise server.failure
    if not server.started:
        sys.exit(1)


def _listen(host: str, port: int) -> socket.socket:
    """Take the address, or say in one line why it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as fault:
        raise OSError(
            f"cannot listen on {host} port {port}: {os.strerror(fault.errno or 0)}"
        ) from fault


def _spare_the_collector() -> None:
    """Look for cycles less often: what a request leaves behind, reference counts free at once."""
    gc.collect()
    # What was loaded to start with stays for good, and is not looked through again.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def _shown(host: str) -> str:
    """An address that a person can open: a wildcard is no destination."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)


def keep_credentials(data_dir: Path, url: str, first_key: str | None) -> Path | None:
    """Write the address and the first key where the command line finds them, for this user only."""
    path = data_dir / "credentials.json"
    key = first_key or _kept_key(path)
    if key is None:
        return None
    # A new file takes the place of the old one whole, so that a crash leaves either of them.
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "apiKey": key}, file)
    draft.replace(path)
    return path


def _kept_key(path: Path) -> str | None:
    """The key of an earlier start; a file that cannot be read is as good as none."""
    try:
        known: dict[str, str] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return known.get("apiKey")


def greet(settings: Settings, host: Host, url: str, credentials: Path | None) -> None:
    """Say where everything is and what to try."""
    lines = [
        "",
        f"  WOPR {__version__} is listening on {url}",
        f"  Data     {settings.database_shown}",
    ]
    if settings.console:
        lines.append(f"  Console  {settings.public_url or url}/")
    if host.first_key is not None:
        lines += [
            f"  API key  {host.first_key}",
            "           Shown this once. The commands below find it in",
            f"           {credentials}; keep that file to yourself.",
        ]
    elif credentials is not None:
        lines.append(f"  API key  in {credentials}")
    there = _finding(settings.data_dir)
    lines += [
        "",
        "  Try, in another terminal:",
        f"    {there}wopr run hello --input name=Ada --follow",
        f"    {there}wopr runs list",
        f"    curl {url}/.well-known/openwop",
        "",
    ]
    print("\n".join(lines), flush=True)


def _finding(data_dir: Path) -> str:
    """What a command needs before it to find a host whose files are not in `./data`."""
    return "" if data_dir == Path("data") else f"WOPR_DATA_DIR={shlex.quote(str(data_dir))} "
