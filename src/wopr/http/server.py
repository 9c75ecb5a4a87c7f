"""Runs the application on uvicorn, prints how to begin, and stops without losing anything."""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeAlias

import anyio
import structlog
import uvicorn

from wopr import __version__
from wopr.http.app import App, OpenHost, Pages
from wopr.http.asgi import ASGIApp
from wopr.http.connections import Connection, Connections, LimitedConfig
from wopr.http.discovery import METRICS, PROBES
from wopr.http.unsent import PATIENCE_SECONDS, Unsent
from wopr.runtime.host import Host, running_host
from wopr.runtime.logs import configure_logs
from wopr.runtime.settings import Settings

BACKLOG = 2048
# What the system may keep of what was sent to one client. Linux doubles it for its own records.
SEND_BUFFER_BYTES = 128 * 1024
log = structlog.get_logger("wopr.http")
YOUNG_OBJECTS = 20_000
Beside: TypeAlias = Callable[[str], Awaitable[None]]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class MetricsServer(uvicorn.Server):
    """Serves `/metrics` on a port of its own, beside the server that has the signals."""

    def __init__(self, app: App, settings: Settings) -> None:
        super().__init__(_config(app.only(METRICS), settings))
        self._listening = _listen(settings.metrics_host or settings.host, settings.metrics_port)

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[None, None]:
        """Serve for as long as the block lasts."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.serve, [self._listening])
            yield
            self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to the other server."""
        yield


class Server(uvicorn.Server):
    """Uvicorn that ends streams first when it stops, and says how to begin when it starts."""

    def __init__(
        self,
        config: LimitedConfig,
        app: App,
        settings: Settings,
        beside: Beside | None = None,
        metrics: MetricsServer | None = None,
    ) -> None:
        super().__init__(config)
        self._metrics = metrics
        self._app = app
        self._connections = config.connections
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
            async with (
                self._app.opened(),
                nullcontext() if self._metrics is None else self._metrics.served(),
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._close_unread)
                if self._beside is None:
                    await super().serve(sockets)
                else:
                    await self._serve_beside(self._beside, sockets)
                tasks.cancel_scope.cancel()

    async def _close_unread(self) -> None:
        """Close connections whose client reads nothing, or too slowly, or that hold too much.

        What waits to be sent is dropped with the connection, so that it takes no memory.
        """
        seconds, rate = self._settings.send_timeout_seconds, self._settings.min_read_rate
        unsent = self._app.shared.unsent
        while True:
            await anyio.sleep(min(1.0, seconds / 4))
            now = anyio.current_time()
            waiting: list[Connection] = []
            for connection in tuple(self.server_state.connections):
                if not isinstance(connection, Connection):
                    continue
                size = connection.transport.get_write_buffer_size()
                if not size and not connection.unread.size:
                    continue
                connection.unread.check(size, now)
                if connection.unread.is_late(now, seconds, rate):
                    log.warning("connection closed: its client does not read", bytes=size)
                    connection.transport.abort()
                elif size:
                    waiting.append(connection)
            self._close_longest_waiting(waiting, now, unsent)

    def _close_longest_waiting(self, waiting: list[Connection], now: float, unsent: Unsent) -> None:
        """Close connections while their buffers and unsent answers hold more than the budget."""
        total = sum(connection.unread.size for connection in waiting)
        if total + unsent.size > unsent.most_bytes:
            for connection in sorted(waiting, key=lambda each: each.unread.read_at):
                is_patient = now - connection.unread.read_at < PATIENCE_SECONDS
                if is_patient or total + unsent.size <= unsent.most_bytes:
                    break
                total -= connection.unread.size
                log.warning(
                    "connection closed: its client does not read, and others need the memory",
                    bytes=connection.unread.size,
                )
                connection.transport.abort()
        unsent.other_bytes = total

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
        host.metrics.connections.set_function(lambda: self._connections.open)
        self._connections.note_refused = host.metrics.connection_refused
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
    # Before the host is opened: an address that is taken must not cost a recovery.
    listening = _listen(settings.host, settings.port)
    metrics = MetricsServer(app, settings) if settings.metrics_port else None
    server = Server(_config(app, settings), app, settings, beside, metrics)
    server.run([listening])
    if server.failure is not None:
        raise server.failure
    if not server.started:
        sys.exit(1)


def _config(app: ASGIApp, settings: Settings) -> LimitedConfig:
    return LimitedConfig(
        app,
        Connections(settings),
        access_log=False,
        server_header=False,
        log_config=None,
        lifespan="off",
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )


def _listen(host: str, port: int) -> socket.socket:
    """Take the address, or say in one line why it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Connections inherit it. Without it the system keeps megabytes for a client that does not
        # read, and a few hundred of those take the memory of all connections.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        return listening
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
    if settings.metrics_port:
        address = _shown(settings.metrics_host or settings.host)
        lines.append(f"  Metrics  http://{address}:{settings.metrics_port}/metrics")
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
