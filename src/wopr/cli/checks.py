"""The checks of `wopr doctor`; each finds something out and names the way out of a fault."""

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

from wopr.cli.connection import Client, open_client
from wopr.cli.credentials import Server, find_server
from wopr.cli.documents import object_of
from wopr.cli.errors import CliError
from wopr.cli.local_store import store_options
from wopr.cli.options import Target
from wopr.cli.paths import credentials_path, data_dir, database_url
from wopr.protocol.documents import JsonObject
from wopr.protocol.errors import WoprError
from wopr.store.open import open_store
from wopr.store.port import Store

OLDEST_PYTHON: Final = (3, 11)
# Tokens and signatures allow five minutes; a warning should come well before.
MAX_SKEW_SECONDS: Final = 60.0
# An audit sink that lacks more entries than this is not served, or does not take any.
MOST_BEHIND: Final = 1000
_VALID_BUT_NARROW: Final = frozenset({"forbidden"})


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `way_out` says what to do when it is a fault."""

    name: str
    state: Literal["ok", "failed", "skipped"]
    finding: str
    way_out: str = ""

    def document(self) -> JsonObject:
        """The finding as JSON."""
        document: JsonObject = {"name": self.name, "state": self.state, "finding": self.finding}
        if self.way_out:
            document["wayOut"] = self.way_out
        return document


async def check_machine(db: str | None) -> list[Check]:
    """Check what needs no server."""
    return [_python(), _data_dir(), _credentials(), *await _database(database_url(db))]


async def check_server(target: Target) -> list[Check]:
    """Check the server, its discovery document, the key and the clock."""
    try:
        server = find_server(target)
    except CliError as fault:
        return [Check("server", "failed", fault.message, fault.hint or "")]
    async with open_client(server) as client:
        try:
            discovery, headers = await client.discovery()
        except CliError as fault:
            return [Check("server", "failed", fault.message, fault.hint or "")]
        return [
            Check("server", "ok", f"{server.url} answers"),
            _discovery(discovery.document),
            _clock(headers),
            await _key(client, server),
        ]


def _python() -> Check:
    found = f"Python {platform.python_version()}"
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return Check("python", "ok", found)
    oldest = ".".join(str(part) for part in OLDEST_PYTHON)
    return Check("python", "failed", found, f"install Python {oldest} or newer")


def _data_dir() -> Check:
    directory = data_dir().absolute()
    if not directory.exists():
        parent = next(folder for folder in directory.parents if folder.exists())
        if os.access(parent, os.W_OK):
            return Check("data dir", "ok", f"{directory} will be made on the first start")
        return Check("data dir", "failed", f"{directory} cannot be made", _writable(parent))
    try:
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"wopr")
    except OSError as fault:
        return Check("data dir", "failed", f"{directory}: {fault.strerror}", _writable(directory))
    return Check("data dir", "ok", f"{directory} can be written")


def _writable(directory: Path) -> str:
    return f"make {directory} writable for this user, or set WOPR_DATA_DIR to another directory"


def _credentials() -> Check:
    path = credentials_path()
    if not path.is_file():
        return Check("credentials", "skipped", f"{path} is not there; `wopr serve` writes it")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return Check(
            "credentials", "failed", f"{path} is open to others ({mode:04o})", f"chmod 600 {path}"
        )
    return Check("credentials", "ok", f"{path} is readable by its owner only")


async def _database(url: str) -> list[Check]:
    if _is_still_to_be_made(url):
        return [Check("database", "skipped", f"{url} will be made on the first start")]
    try:
        store = await open_store(url, store_options(url))
    except WoprError as fault:
        return [
            Check(
                "database",
                "failed",
                fault.message,
                "check --db, the login or the file's owner, and free disk space",
            )
        ]
    try:
        found = [Check("database", "ok", await _facts(store))]
        if sink := os.environ.get("WOPR_AUDIT_SINK"):
            found.append(await _audit_sink(store, sink))
        return found
    finally:
        await store.close()


async def _audit_sink(store: Store, url: str) -> Check:
    from wopr.runtime.audit_sink import sink_file, sink_name

    file = sink_file(url)
    # The rest of a URL may hold a token.
    shown = urlsplit(url).hostname if file is None else file
    position = await store.sink_position(sink_name(url))
    behind = await store.audit_head() - position.sequence
    if file is not None and not os.access(file.parent, os.W_OK):
        return Check(
            "audit sink", "failed", f"{file.parent} cannot be written", _writable(file.parent)
        )
    found = f"{shown} has entries up to {position.sequence}, {behind} behind"
    if behind <= MOST_BEHIND:
        return Check("audit sink", "ok", found)
    way_out = "start a host; if one runs, its log names the reason: `the audit sink did not take`"
    return Check("audit sink", "failed", found, way_out)


def _is_still_to_be_made(url: str) -> bool:
    # Opening would make it, and a check should leave nothing behind.
    return url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists()


async def _facts(store: Store) -> str:
    facts = await store.facts()
    settings = ", ".join(f"{name} {value}" for name, value in facts.settings.items())
    return (
        f"{facts.kind} {facts.location}, schema {facts.schema_version}, {facts.runs} runs, "
        f"{facts.events} events, {facts.bytes_on_disk / 1_048_576:.1f} MiB; {settings}"
    )


def _discovery(document: JsonObject) -> Check:
    version = document.get("protocolVersion")
    if not isinstance(version, str) or not version.startswith("1."):
        return Check(
            "discovery",
            "failed",
            f"the server does not speak OpenWOP 1: protocolVersion is {version!r}",
            "check --url; it may be another service",
        )
    told = object_of(document.get("implementation"))
    name = " ".join(str(told[part]) for part in ("name", "version") if part in told)
    return Check("discovery", "ok", f"OpenWOP {version}, {name or 'unnamed host'}")


def _clock(headers: Mapping[str, str]) -> Check:
    try:
        moment = parsedate_to_datetime(headers.get("date", ""))
    except ValueError:
        return Check("clock", "skipped", "the server sends no Date")
    theirs = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    skew = theirs.timestamp() - time.time()
    if abs(skew) > MAX_SKEW_SECONDS:
        return Check(
            "clock",
            "failed",
            f"the server's clock is {skew:+.0f} s from this one",
            "set both by NTP: tokens and signatures depend on the time",
        )
    return Check("clock", "ok", "agrees with the server's")


async def _key(client: Client, server: Server) -> Check:
    if server.api_key is None:
        return Check(
            "key",
            "failed",
            "no API key is set",
            "set WOPR_API_KEY, or make one: `wopr keys create`",
        )
    try:
        await client.workflows({"limit": "1"})
    except CliError as fault:
        if fault.code not in _VALID_BUT_NARROW:
            return Check("key", "failed", fault.message, fault.hint or "")
    return Check("key", "ok", "the server takes the key")
