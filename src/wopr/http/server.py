"""Runs the application on uvicorn: start, start-up message, graceful stop."""

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

from wopr.host.assembly import running_host
from wopr.host.host import Host
from wopr.http.app import App, OpenHost, Pages
from wopr.http.connections import Connection, ConnectionLimits, LimitedConfig
from wopr.http.limits import UNREAD_SECONDS, PendingResponses
from wopr.http.request import ASGIApp
from wopr.http.routes.discovery import METRICS, PROBES
from wopr.process.logs import configure_logs
from wopr.process.settings import Settings
from wopr.version import __version__

BACKLOG = 2048
# Size of the system's send buffer of a connection. Linux doubles it for its own records.
SEND_BUFFER_BYTES = 128 * 1024
log = structlog.get_logger("wopr.http")
# New objects between two runs of the garbage collector.
GC_THRESHOLD = 20_000
SideTask: TypeAlias = Callable[[str], Awaitable[None]]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class MetricsServer(uvicorn.Server):
    """Serves `/metrics` on a separate port. The main server handles signals."""

    def __init__(self, app: App, settings: Settings) -> None:
        super().__init__(_config(app.single_operation_app(METRICS), settings))
        self._listening = _listen(settings.metrics_host or settings.host, settings.metrics_port)

    @asynccontextmanager
    async def serve_in_background(self) -> AsyncGenerator[None, None]:
        """Serve during the block."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.serve, [self._listening])
            yield
            self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do not handle signals: the main server does."""
        yield


class Server(uvicorn.Server):
    """A uvicorn server that prints a start-up message, and closes streams first when it stops."""

    def __init__(
        self,
        config: LimitedConfig,
        app: App,
        settings: Settings,
        side_task: SideTask | None = None,
        metrics: MetricsServer | None = None,
    ) -> None:
        super().__init__(config)
        self._metrics = metrics
        self._app = app
        self._connections = config.connections
        self._settings = settings
        self._side_task = side_task
        # The error of the task that runs next to the server.
        self.failure: BaseException | None = None
        self._url = ""
        self._reachable = anyio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the host, serve it until a signal, and close it.

        No ASGI lifespan is used, because uvicorn would replace the error of a failed start.
        """
        with self.capture_signals():
            async with (
                self._app.run_host(),
                nullcontext() if self._metrics is None else self._metrics.serve_in_background(),
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._close_slow_readers)
                if self._side_task is None:
                    await super().serve(sockets)
                else:
                    await self._serve_with_side_task(self._side_task, sockets)
                tasks.cancel_scope.cancel()

    async def _close_slow_readers(self) -> None:
        """Close connections whose client reads too slowly, or that hold too much memory.

        Unsent bytes are dropped with the connection.
        """
        seconds, rate = self._settings.send_timeout_seconds, self._settings.min_read_rate
        pending_responses = self._app.state.pending_responses
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
                if connection.unread.is_too_slow(now, seconds, rate):
                    log.warning("connection closed: its client does not read", bytes=size)
                    connection.transport.abort()
                elif size:
                    waiting.append(connection)
            self._close_longest_waiting(waiting, now, pending_responses)

    def _close_longest_waiting(
        self, waiting: list[Connection], now: float, pending_responses: PendingResponses
    ) -> None:
        """Close connections while their buffers and unsent responses hold more than the limit."""
        total = sum(connection.unread.size for connection in waiting)
        if total + pending_responses.size > pending_responses.most_bytes:
            for connection in sorted(waiting, key=lambda each: each.unread.read_at):
                read_recently = now - connection.unread.read_at < UNREAD_SECONDS
                if read_recently or total + pending_responses.size <= pending_responses.most_bytes:
                    break
                total -= connection.unread.size
                log.warning(
                    "connection closed: its client does not read, and others need the memory",
                    bytes=connection.unread.size,
                )
                connection.transport.abort()
        pending_responses.other_bytes = total

    async def _serve_with_side_task(
        self, side_task: SideTask, sockets: list[socket.socket] | None
    ) -> None:
        async def run() -> None:
            await self._reachable.wait()
            try:
                await side_task(self._url)
            except (Exception, SystemExit) as failure:  # raised again once the host is closed
                self.failure = failure
            self.should_exit = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await super().serve(sockets)
            tasks.cancel_scope.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then print the start-up message."""
        await super().startup(sockets)
        _reduce_garbage_collection()
        if self.should_exit or not self.servers:
            return
        port = self.servers[0].sockets[0].getsockname()[1]
        url = f"http://{_browser_address(self._settings.host)}:{port}"
        host = self._app.host
        host.metrics.connections.set_function(lambda: self._connections.open)
        self._connections.on_refused = host.metrics.count_refused_connection
        if not self._settings.serves:
            print(
                f"\n  WOPR {__version__} worker is running; its health is on {url}/readyz\n",
                flush=True,
            )
            return
        credentials = write_credentials(self._settings.data_dir, url, host.first_key)
        print_startup_message(self._settings, host, url, credentials)
        self._url = url
        self._reachable.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close streams, finish requests in progress, then close the host."""
        self._app.state.stopping.set()
        self._app.host.bus.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on a signal and exit normally. Uvicorn itself would raise the signal again."""
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
    side_task: SideTask | None = None,
) -> None:
    """Serve until a signal. Raises the error of a host that cannot be opened.

    `open_host` replaces the host that the settings describe. `side_task` gets the URL and runs as
    soon as the host can be reached; when it ends, the server stops.
    """
    configure_logs(settings.log_format, settings.log_level)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    operations = None if settings.serves else PROBES
    app = App(open_host or (lambda: running_host(settings)), pages, operations)
    # Before the host is opened, so that an occupied address fails before the recovery of runs.
    listening = _listen(settings.host, settings.port)
    metrics = MetricsServer(app, settings) if settings.metrics_port else None
    server = Server(_config(app, settings), app, settings, side_task, metrics)
    server.run([listening])
    if server.failure is not None:
        raise server.failure
    if not server.started:
        sys.exit(1)


def _config(app: ASGIApp, settings: Settings) -> LimitedConfig:
    return LimitedConfig(
        app,
        ConnectionLimits(settings),
        access_log=False,
        server_header=False,
        log_config=None,
        lifespan="off",
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )


def _listen(host: str, port: int) -> socket.socket:
    """Listen on an address. Raises `OSError` with a one-line reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Connections inherit it. Without it the system buffers megabytes for a client that does not
        # read, and a few hundred such clients use the memory of all connections.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        return listening
    except OSError as fault:
        raise OSError(
            f"cannot listen on {host} port {port}: {os.strerror(fault.errno or 0)}"
        ) from fault


def _reduce_garbage_collection() -> None:
    """Run the garbage collector less often. Reference counts free the objects of a request."""
    gc.collect()
    # Objects from the start stay until the end and need no further check.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _browser_address(host: str) -> str:
    """Return a wildcard address as an address that a browser can open."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)


def write_credentials(data_dir: Path, url: str, first_key: str | None) -> Path | None:
    """Write the address and the first key to a file for the CLI, readable by this user only."""
    path = data_dir / "credentials.json"
    key = first_key or _stored_key(path)
    if key is None:
        return None
    # The new file replaces the old one atomically, so that a crash leaves one of them.
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "apiKey": key}, file)
    draft.replace(path)
    return path


def _stored_key(path: Path) -> str | None:
    """Return the key of an earlier start; None if the file is missing or invalid."""
    try:
        known: dict[str, str] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return known.get("apiKey")


def print_startup_message(
    settings: Settings, host: Host, url: str, credentials: Path | None
) -> None:
    """Print the addresses, the key and commands to try."""
    lines = [
        "",
        f"  WOPR {__version__} is listening on {url}",
        f"  Data     {settings.public_database_url}",
    ]
    if settings.console:
        lines.append(f"  Console  {settings.public_url or url}/")
    if host.first_key is not None:
        lines += [
            f"  API key  {host.first_key}",
            "           It is shown only once. The commands below read it from",
            f"           {credentials}; keep that file secret.",
        ]
    elif credentials is not None:
        lines.append(f"  API key  in {credentials}")
    if settings.metrics_port:
        address = _browser_address(settings.metrics_host or settings.host)
        lines.append(f"  Metrics  http://{address}:{settings.metrics_port}/metrics")
    prefix = _data_dir_prefix(settings.data_dir)
    lines += [
        "",
        "  Try, in another terminal:",
        f"    {prefix}wopr run hello --input name=Ada --follow",
        f"    {prefix}wopr runs list",
        f"    curl {url}/.well-known/openwop",
        "",
    ]
    print("\n".join(lines), flush=True)


def _data_dir_prefix(data_dir: Path) -> str:
    """Return the variable that commands need if the data directory is not `./data`."""
    return "" if data_dir == Path("data") else f"WOPR_DATA_DIR={shlex.quote(str(data_dir))} "
