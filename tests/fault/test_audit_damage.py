"""A damaged audit log: a flipped byte anywhere is found and named, also offline."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from wopr.cli.main import app
from wopr.protocol.documents import JsonObject
from wopr.security.redact import Redactors
from wopr.services.audit.trail import INTERVAL_ENTRIES, Audit, audit_key
from wopr.services.audit.verify import AuditReport, verify_audit_log
from wopr.store.open import open_audit_copy, open_store

ENTRIES = 2300
NOON = 1_800_000_000_000


async def _write(folder: Path) -> None:
    store = await open_store(f"sqlite:///{folder / 'wopr.db'}")
    audit = Audit(store, audit_key(folder), lambda: NOON, Redactors())
    async with anyio.create_task_group() as tasks:
        for number in range(ENTRIES):
            tasks.start_soon(audit.record, f"t{number % 3}", "ada", "run.cancel", f"run-{number}")
    await audit.sign(min_entries=INTERVAL_ENTRIES)
    await audit.sign()
    await store.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a database with a log of two full intervals and a few entries more."""
    folder = tmp_path_factory.mktemp("audit")
    anyio.run(_write, folder)
    return folder / "wopr.db"


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(written, tmp_path / "copy.db"))


@pytest.fixture
def damaged(copy: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(copy)) as database:
        yield database


def walked(file: Path, start: int = 0, end: int = ENTRIES) -> AuditReport:
    async def read() -> AuditReport:
        async with open_audit_copy(file) as log:
            return await verify_audit_log(log, start, end)

    return anyio.run(read)


def report(file: Path, *options: str) -> tuple[int, JsonObject]:
    done = CliRunner().invoke(app, ["audit", "verify", "--copy", str(file), "--json", *options])
    return done.exit_code, json.loads(done.stdout)


def flip(text: str) -> str:
    """Replace the first character by another one of the same alphabet."""
    return ("B" if text[0] != "B" else "C") + text[1:]


def test_an_unchanged_log_is_verified(written: Path, copy: Path) -> None:
    before = copy.read_bytes()

    code, found = report(copy)

    assert code == 0
    assert found["valid"] is True
    assert (found["entries"], found["checkpoints"], found["signedUpTo"]) == (
        ENTRIES,
        3,
        ENTRIES - 1,
    )
    assert copy.read_bytes() == before


def test_there_is_a_checkpoint_every_thousand_entries_and_one_at_the_end(written: Path) -> None:
    found = [row.at_sequence for row in walked(written).checkpoints]

    assert found == [999, 1999, ENTRIES - 1]


@pytest.mark.parametrize("sequence", [0, 1, 998, 999, 1000, ENTRIES - 1])
def test_an_entry_with_a_changed_byte_is_named(
    copy: Path, damaged: sqlite3.Connection, sequence: int
) -> None:
    [(body,)] = damaged.execute(
        "SELECT body FROM audit_entries WHERE sequence = ?", (sequence,)
    ).fetchall()
    changed = body.replace(b"run.cancel", b"run.cancem")
    damaged.execute("UPDATE audit_entries SET body = ? WHERE sequence = ?", (changed, sequence))
    damaged.commit()

    code, found = report(copy)

    assert code == 1
    named = {finding["message"] for finding in found["findings"]}
    assert f"entry {sequence} was changed after it was written" in named
    assert any("different root" in message for message in named)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("merkle_root", lambda value: flip(value)),
        ("signature", lambda value: flip(value)),
        ("public_key", lambda value: flip(value)),
        ("peaks", lambda value: bytes([value[0] ^ 1]) + value[1:]),
        ("at_sequence", lambda value: value - 1),
    ],
)
@pytest.mark.parametrize("at", [999, ENTRIES - 1])
def test_any_change_of_a_checkpoint_is_found_and_the_checkpoint_is_named(
    copy: Path, damaged: sqlite3.Connection, at: int, column: str, change: object
) -> None:
    [(value,)] = damaged.execute(
        f"SELECT {column} FROM audit_checkpoints WHERE at_sequence = ?", (at,)
    ).fetchall()
    damaged.execute(
        f"UPDATE audit_checkpoints SET {column} = ? WHERE at_sequence = ?",
        (change(value), at),  # type: ignore[operator]  # one of the lambdas above
    )
    damaged.commit()

    code, found = report(copy)

    where = at - 1 if column == "at_sequence" else at
    assert code == 1
    assert {(each["kind"], each["atSequence"]) for each in found["findings"]} == {
        ("checkpoint", where)
    }


@pytest.mark.parametrize("column", ["tenant", "digest"])
def test_a_change_of_the_columns_beside_an_entry_is_found(
    copy: Path, damaged: sqlite3.Connection, column: str
) -> None:
    value = "t9" if column == "tenant" else bytes(32)
    damaged.execute(f"UPDATE audit_entries SET {column} = ? WHERE sequence = 7", (value,))
    damaged.commit()

    code, found = report(copy)

    assert code == 1
    assert [each["atSequence"] for each in found["findings"]] == [7]


def test_deleted_entries_are_named(copy: Path, damaged: sqlite3.Connection) -> None:
    damaged.execute("DELETE FROM audit_entries WHERE sequence BETWEEN 5 AND 6")
    damaged.commit()

    code, found = report(copy)

    assert code == 1
    assert found["findings"][0]["message"] == "entries 5 to 6 are missing"


def test_a_log_cut_off_before_a_checkpoint_is_found(
    copy: Path, damaged: sqlite3.Connection
) -> None:
    damaged.execute("DELETE FROM audit_entries WHERE sequence > 2100")
    damaged.commit()

    code, found = report(copy)

    assert code == 1
    [finding] = found["findings"]
    assert finding["message"] == f"checkpoint {ENTRIES - 1} covers entries that are missing"


def test_a_range_is_verified_from_the_signed_root_before_it(
    written: Path, copy: Path, damaged: sqlite3.Connection
) -> None:
    damaged.execute("UPDATE audit_entries SET digest = ? WHERE sequence = 3", (bytes(32),))
    damaged.commit()

    assert walked(copy, 1500, 2299).is_valid
    assert not walked(copy, 0, 10).is_valid
    assert walked(copy, 4, 998).is_valid
    assert walked(written, 1500, 1600).entries == 101


def test_a_range_after_a_forged_root_is_verified_from_the_beginning(
    copy: Path, damaged: sqlite3.Connection
) -> None:
    damaged.execute("UPDATE audit_checkpoints SET signature = 'AAAA' WHERE at_sequence = 999")
    damaged.commit()

    assert walked(copy, 1200, 1300).is_valid
    assert not walked(copy, 0, 1300).has_valid_checkpoints


def test_a_read_only_copy_is_verified_too(copy: Path) -> None:
    copy.parent.chmod(0o500)
    try:
        code, _ = report(copy)
    finally:
        copy.parent.chmod(0o700)

    assert code == 0


def test_the_expected_public_key_can_be_given(written: Path, copy: Path) -> None:
    key = audit_key(written.parent).public_key
    other = audit_key(copy.parent).public_key

    assert report(copy, "--public-key", key)[0] == 0
    code, found = report(copy, "--public-key", other)
    assert code == 1
    assert "another key signed it" in found["findings"][0]["message"]


def test_a_store_without_an_audit_log_differs_from_a_changed_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "empty.db"
    sqlite3.connect(file).close()

    done = CliRunner().invoke(app, ["audit", "verify", "--copy", str(file)])

    assert done.exit_code == 6
    assert "cannot be read" in done.stderr


def test_a_damaged_log_gets_no_further_signature(copy: Path, damaged: sqlite3.Connection) -> None:
    damaged.execute("DELETE FROM audit_entries WHERE sequence BETWEEN 2295 AND 2297")
    damaged.execute("DELETE FROM audit_checkpoints WHERE at_sequence > 2000")
    damaged.commit()

    async def sign() -> int:
        store = await open_store(f"sqlite:///{copy}")
        await Audit(store, audit_key(copy.parent), lambda: NOON, Redactors()).sign()
        signed = await store.signed_head()
        await store.close()
        return signed

    assert anyio.run(sign) == 1999
