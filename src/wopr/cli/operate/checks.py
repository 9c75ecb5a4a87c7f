"""The checks of `wopr doctor`."""

from __future__ import annotations

import os
import platform
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from wopr.api.client import Client, open_client
from wopr.api.errors import HostError
from wopr.cli.client import ServerAddress, cli_error, find_server
from wopr.cli.database import credentials_path, data_dir, database_url, store_options
from wopr.cli.errors import CliError
from wopr.cli.options import ServerOptions
from wopr.protocol.documents import JsonObject, object_of
from wopr.protocol.errors import WoprError
from wopr.store.open import open_store
from wopr.store.port import Store

OLDEST_PYTHON: Final = (3, 11)
# Tokens and signatures allow five minutes. The warning comes earlier.
MAX_SKEW_SECONDS: Final = 60.0
# If an audit sink lacks more entries than this, the sink fails or no host runs.
MAX_MISSING_ENTRIES: Final = 1000


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `remedy` says how to fix a problem."""

    name: str
    state: Literal["ok", "failed", "skipped"]
    finding: str
    remedy: str = ""

    def document(self) -> JsonObject:
        """Return the result as JSON."""
        document: JsonObject = {"name": self.name, "state": self.state, "finding": self.finding}
        if self.remedy:
            document["wayOut"] = self.remedy
        return document


async def check_machine(db: str | None) -> list[CheckResult]:
    """Check the machine, without the server."""
    return [_python(), _data_dir(), _credentials(), *await _database(database_url(db))]


async def check_server(target: ServerOptions) -> list[CheckResult]:
    """Check the server, its discovery document, the key and the clock."""
    try:
        server = find_server(target)
    except CliError as fault:
        return [CheckResult("server", "failed", fault.message, fault.hint or "")]
    async with open_client(server.url, server.api_key) as client:
        try:
            discovery, headers = await client.discovery()
        except HostError as error:
            refusal = cli_error(error, has_key=client.has_key)
            return [CheckResult("server", "failed", refusal.message, refusal.hint or "")]
        return [
            CheckResult("server", "ok", f"{server.url} answers"),
            _discovery(discovery.document),
            _clock(headers),
            await _key(client, server),
        ]


def _python() -> CheckResult:
    finding = f"Python {platform.python_version()}"
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return CheckResult("python", "ok", finding)
    oldest = ".".join(str(part) for part in OLDEST_PYTHON)
    return CheckResult("python", "failed", finding, f"install Python {oldest} or newer")


def _data_dir() -> CheckResult:
    directory = data_dir().absolute()
    if not directory.exists():
        parent = next(folder for folder in directory.parents if folder.exists())
        if os.access(parent, os.W_OK):
            return CheckResult("data dir", "ok", f"{directory} will be created on the first start")
        return CheckResult(
            "data dir", "failed", f"{directory} cannot be created", _writable(parent)
        )
    try:
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"wopr")
    except OSError as fault:
        return CheckResult(
            "data dir", "failed", f"{directory}: {fault.strerror}", _writable(directory)
        )
    return CheckResult("data dir", "ok", f"{directory} can be written")


def _writable(directory: Path) -> str:
    return f"make {directory} writable for this user, or set WOPR_DATA_DIR to another directory"


def _credentials() -> CheckResult:
    path = credentials_path()
    if not path.is_file():
        return CheckResult(
            "credentials", "skipped", f"{path} does not exist; `wopr serve` writes it"
        )
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return CheckResult(
            "credentials",
            "failed",
            f"other users can read {path} ({mode:04o})",
            f"chmod 600 {path}",
        )
    return CheckResult("credentials", "ok", f"only its owner can read {path}")


async def _database(url: str) -> list[CheckResult]:
    if _is_missing(url):
        return [CheckResult("database", "skipped", f"{url} will be created on the first start")]
    try:
        store = await open_store(url, store_options(url))
    except WoprError as fault:
        return [
            CheckResult(
                "database",
                "failed",
                fault.message,
                "check --db, the login or the file's owner, and free disk space",
            )
        ]
    try:
        finding = [CheckResult("database", "ok", await _facts(store))]
        if sink := os.environ.get("WOPR_AUDIT_SINK"):
            finding.append(await _audit_sink(store, sink))
        return finding
    finally:
        await store.close()


async def _audit_sink(store: Store, url: str) -> CheckResult:
    from wopr.services.audit.sink import sink_file, sink_name

    file = sink_file(url)
    # The rest of the URL may contain a token.
    shown = urlsplit(url).hostname if file is None else file
    position = await store.sink_position(sink_name(url))
    behind = await store.audit_head() - position.sequence
    if file is not None and not os.access(file.parent, os.W_OK):
        return CheckResult(
            "audit sink", "failed", f"{file.parent} cannot be written", _writable(file.parent)
        )
    finding = f"{shown} has entries up to {position.sequence}, {behind} missing"
    if behind <= MAX_MISSING_ENTRIES:
        return CheckResult("audit sink", "ok", finding)
    remedy = (
        "start a host; if a host runs, see `background task failed` with `audit sink` in its log"
    )
    return CheckResult("audit sink", "failed", finding, remedy)


def _is_missing(url: str) -> bool:
    # Opening the database would create it, and a check must not change anything.
    return url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists()


async def _facts(store: Store) -> str:
    facts = await store.facts()
    settings = ", ".join(f"{name} {value}" for name, value in facts.settings.items())
    return (
        f"{facts.kind} {facts.location}, schema {facts.schema_version}, {facts.runs} runs, "
        f"{facts.events} events, {facts.bytes_on_disk / 1_048_576:.1f} MiB; {settings}"
    )


def _discovery(document: JsonObject) -> CheckResult:
    version = document.get("protocolVersion")
    if not isinstance(version, str) or not version.startswith("1."):
        return CheckResult(
            "discovery",
            "failed",
            f"the server does not support OpenWOP 1: protocolVersion is {version!r}",
            "check --url; it may be another service",
        )
    implementation = object_of(document.get("implementation"))
    name = " ".join(
        str(implementation[part]) for part in ("name", "version") if part in implementation
    )
    return CheckResult("discovery", "ok", f"OpenWOP {version}, {name or 'unnamed host'}")


def _clock(headers: Mapping[str, str]) -> CheckResult:
    try:
        moment = parsedate_to_datetime(headers.get("date", ""))
    except ValueError:
        return CheckResult("clock", "skipped", "the server sends no Date")
    server_time = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    skew = server_time.timestamp() - time.time()
    if abs(skew) > MAX_SKEW_SECONDS:
        return CheckResult(
            "clock",
            "failed",
            f"the server's clock differs by {skew:+.0f} s from this machine",
            "synchronize both with NTP: tokens and signatures depend on the time",
        )
    return CheckResult("clock", "ok", "agrees with the server")


async def _key(client: Client, server: ServerAddress) -> CheckResult:
    if server.api_key is None:
        return CheckResult(
            "key",
            "failed",
            "no API key is set",
            "set WOPR_API_KEY, or create one: `wopr keys create`",
        )
    try:
        await client.workflows({"limit": "1"})
    except HostError as error:
        # A key that lacks the scope is valid.
        if error.code != "forbidden":
            fault = cli_error(error, has_key=True)
            return CheckResult("key", "failed", fault.message, fault.hint or "")
    return CheckResult("key", "ok", "the server accepts the key")
