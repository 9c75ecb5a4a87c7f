"""The audit sink gets every entry in order, also when hosts are killed and receivers fail."""

from __future__ import annotations

import hashlib
import hmac
import json
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.fault.cluster import cluster
from tests.fault.killing import KilledHost, mortal
from tests.support.client import Wire
from tests.support.eventually import eventually
from tests.support.forked import run
from tests.support.host import ACME, GLOBEX, ServedHost, environment
from tests.support.postgres.databases import Databases
from tests.support.stored_files import audit_entries
from tests.support.webhook_receiver import Handler, Received, Receiver, receiving, take
from wopr.protocol.documents import JsonObject

SECRET = "the-secret-of-the-audit-sink-0123456789"
URL = "https://hooks.example.com/"
NewMortal = Callable[..., KilledHost]


@pytest.fixture
def new_mortal(tmp_path: Path, new_database: Callable[[], Database]) -> Iterator[NewMortal]:
    """Start a host that the test can kill, on either store."""
    with ExitStack() as kept:

        def start(**variables: str) -> KilledHost:
            given = kept.enter_context(new_database()) | variables
            return kept.enter_context(mortal(tmp_path / "host", **given))

        yield start


def act(wire: Wire, count: int) -> None:
    """Call an audited operation so many times."""
    for _ in range(count):
        made = wire.post("/v1/webhooks", {"url": URL, "events": ["*"]}).json()
        wire.request("DELETE", f"/v1/webhooks/{made['webhookId']}")


def entries_of(lines: bytes) -> list[JsonObject]:
    """Return the entries among the lines of a sink; the others are checkpoints."""
    return [line for line in map(json.loads, lines.splitlines()) if "sequence" in line]


def lines_of(file: Path) -> list[JsonObject]:
    return entries_of(file.read_bytes()) if file.exists() else []


def has_all(host: ServedHost, file: Path) -> bool:
    """Return whether all entries have reached the file, each as a complete line."""
    try:
        return lines_of(file) == audit_entries(host)
    except json.JSONDecodeError:
        return False


def verify(host: ServedHost, *files: Path) -> subprocess.CompletedProcess[str]:
    options = [part for file in files for part in ("--file", str(file))]
    return run(("audit", "verify", *options), environment(host.data_dir, {}))


def test_every_entry_reaches_the_file_and_the_file_can_be_verified_alone(
    new_mortal: NewMortal, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    host = new_mortal(WOPR_AUDIT_SINK=f"file://{file}")
    with host.wire() as acme, host.wire(GLOBEX) as globex:
        act(acme, 3)
        act(globex, 2)
    eventually(lambda: has_all(host, file))
    # The last checkpoint is written and copied at the stop.
    host.stop()
    assert b"merkleRoot" in file.read_bytes()

    assert {each["tenant"] for each in lines_of(file)} >= {"acme", "globex"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    done = verify(host, file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checkpoints: 1" in done.stdout
    assert "the audit log is valid" in done.stdout


def test_a_modified_file_is_not_verified(new_mortal: NewMortal, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    host = new_mortal(WOPR_AUDIT_SINK=f"file://{file}")
    with host.wire() as acme:
        act(acme, 3)
    eventually(lambda: has_all(host, file))

    first, second, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + second.replace(b'"allowed"', b'"denied"') + b"".join(rest))
    changed = verify(host, file)
    file.write_bytes(first + b"".join(rest))
    shortened = verify(host, file)

    assert changed.returncode == shortened.returncode == 1
    assert "entry 2 does not follow the entry before it" in changed.stdout
    assert "entries 1 to 1 are missing" in shortened.stdout


def test_entries_of_a_repeatedly_killed_host_are_in_the_file_once(
    new_mortal: NewMortal, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    host = new_mortal(WOPR_AUDIT_SINK=f"file://{file}")
    for _ in range(4):
        with host.wire() as acme:
            act(acme, 20)
        # Some entries are committed and not copied yet.
        host.kill_and_restart()

    eventually(lambda: has_all(host, file))
    sequences = [each["sequence"] for each in lines_of(file)]
    assert sequences == list(range(len(sequences)))
    assert len(sequences) >= 160


def test_a_line_cut_off_by_a_crash_is_written_again(new_mortal: NewMortal, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    host = new_mortal(WOPR_AUDIT_SINK=f"file://{file}")
    with host.wire() as acme:
        act(acme, 2)
    eventually(lambda: has_all(host, file))
    host.kill()
    with file.open("ab") as half:
        half.write(b'{"action":"webhook.cre')

    host.start()
    with host.wire() as acme:
        act(acme, 2)

    eventually(lambda: has_all(host, file))


def test_a_file_can_be_rotated_at_any_time_and_all_parts_are_verified_together(
    new_mortal: NewMortal, tmp_path: Path
) -> None:
    file, rotated = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    host = new_mortal(WOPR_AUDIT_SINK=f"file://{file}")
    with host.wire() as acme:
        act(acme, 3)
        eventually(lambda: has_all(host, file))
        host.restart()
        eventually(lambda: b"merkleRoot" in file.read_bytes())
    file.rename(rotated)
    with host.wire() as acme:
        act(acme, 3)
    eventually(lambda: lines_of(rotated) + lines_of(file) == audit_entries(host))

    both = verify(host, file, rotated)
    alone = verify(host, file)

    assert both.returncode == 0, both.stdout
    # The checkpoint before the rotation is in the other file, so there is no start point.
    assert alone.returncode == 1


def test_a_file_of_another_audit_log_is_not_continued(
    new_mortal: NewMortal, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"sequence":999,"tenant":"other"}\n')
    host = new_mortal(WOPR_AUDIT_SINK=f"file://{file}")
    with host.wire() as acme:
        act(acme, 1)

    eventually(lambda: "another audit log" in host.log())

    assert len(file.read_bytes().splitlines()) == 1


def webhook(receiver: Receiver, **variables: str) -> dict[str, str]:
    return {
        "WOPR_AUDIT_SINK": f"{receiver.url}/audit?token=sink-token-0123456789",
        "WOPR_AUDIT_SINK_SECRET": SECRET,
        "WOPR_ALLOW_PRIVATE_DESTINATIONS": "1",
        **variables,
    }


def test_undelivered_entries_are_delivered_in_order_after_a_kill(
    new_mortal: NewMortal,
) -> None:
    with receiving(lambda request, handler: handler.answer(503)) as receiver:
        host = new_mortal(**webhook(receiver))
        with host.wire() as acme:
            act(acme, 10)
            receiver.until(lambda came: len(came) >= 2)
            metrics = acme.metrics()
        host.kill()
        refused = len(receiver.requests)
        receiver.behave = take
        host.start()

        wanted = len(audit_entries(host))
        receiver.until(lambda came: taken(came[refused:]) >= wanted)
    got = [each for request in receiver.requests[refused:] for each in entries_of(request.body)]
    assert list({each["sequence"]: each for each in got}.values()) == audit_entries(host)
    assert "wopr_audit_sink_failures_total" in metrics
    assert float(value(metrics, "wopr_audit_sink_behind")) >= 20
    assert "sink-token" not in host.log()
    assert SECRET not in host.log()


def taken(came: list[Received]) -> int:
    return len({each["sequence"] for request in came for each in entries_of(request.body)})


def value(metrics: str, name: str) -> str:
    return next(line.split()[1] for line in metrics.splitlines() if line.startswith(f"{name} "))


def test_a_receiver_can_check_the_sender_of_the_entries(new_mortal: NewMortal) -> None:
    with receiving() as receiver:
        host = new_mortal(**webhook(receiver))
        with host.wire() as acme:
            act(acme, 1)
        [first, *_] = receiver.until(lambda came: bool(came))

    signed = f"{first.headers['x-openwop-timestamp']}.".encode() + first.body
    wanted = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert first.headers["x-openwop-signature"] == f"sha256={wanted}"
    assert first.headers["x-openwop-event-type"] == "audit.entries"
    assert first.headers["content-type"] == "application/x-ndjson"


def test_an_unresponsive_receiver_gets_the_same_entries_again(
    new_mortal: NewMortal,
) -> None:
    with receiving() as receiver:

        def take_and_hang_up(request: Received, handler: Handler) -> None:
            handler.close_connection = True
            if len(receiver.requests) > 1:
                handler.answer(204)

        receiver.behave = take_and_hang_up
        host = new_mortal(**webhook(receiver))
        with host.wire() as acme:
            act(acme, 2)
        came = receiver.until(lambda came: len(came) >= 2)

    first, second = (entries_of(request.body) for request in came[:2])
    assert second[: len(first)] == first


@pytest.mark.timeout(240)
def test_another_process_continues_delivery_when_the_delivering_one_is_killed(
    databases: Databases, tmp_path: Path
) -> None:
    with (
        receiving() as receiver,
        databases.lent() as url,
        cluster(url, tmp_path, apis=2, workers=0, api_options=(), **webhook(receiver)) as ours,
    ):
        first, second = ours.apis
        act(first.wire, 5)
        receiver.until(lambda came: taken(came) >= 10)
        name = str(ours.one("SELECT process_id FROM leases"))
        leader = first if f"-{first.running.pid}-" in name else second
        survivor = second if leader is first else first
        leader.kill()
        act(survivor.wire, 5)
        wanted = len(audit_entries(survivor))
        receiver.until(lambda came: taken(came) >= wanted)
    order = [each["sequence"] for r in receiver.requests for each in entries_of(r.body)]
    assert list(dict.fromkeys(order)) == sorted(set(order))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WOPR_AUDIT_SINK": "ftp://example.com/"}, "audit_sink must be file:///absolute/path or"),
        ({"WOPR_AUDIT_SINK": "file:///no/such/place/audit"}, "/no/such/place is missing or not"),
        ({"WOPR_AUDIT_SINK": "https://example.com/"}, "audit_sink_secret must have at least 32"),
        (
            {"WOPR_AUDIT_SINK": "https://127.0.0.1/", "WOPR_AUDIT_SINK_SECRET": SECRET},
            "audit_sink:",
        ),
        (
            {"WOPR_AUDIT_SINK": "http://example.com/?t=hidden", "WOPR_AUDIT_SINK_SECRET": SECRET},
            "audit_sink: the URL must start with https://",
        ),
    ],
)
def test_an_invalid_sink_is_refused_at_start(
    tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    done = run(("serve", "--port", "0"), environment(tmp_path, variables))

    assert done.returncode != 0
    assert message in done.stderr
    assert "hidden" not in done.stderr


def test_the_doctor_reports_the_lag_of_the_sink(new_mortal: NewMortal, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    host = new_mortal(WOPR_AUDIT_SINK=f"file://{file}")
    with host.wire(ACME) as acme:
        act(acme, 2)
    eventually(lambda: has_all(host, file))

    last = len(audit_entries(host)) - 1
    done = run(("doctor", "--offline"), environment(host.data_dir, host.variables))

    assert f"has entries up to {last}, 0 missing" in " ".join(done.stdout.split())
