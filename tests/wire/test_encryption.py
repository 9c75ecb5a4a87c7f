from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.client import Wire
from tests.support.definitions import node, workflow
from tests.support.forked import run
from tests.support.host import ACME, ServedHost, environment
from tests.support.stored_files import stored

pytestmark = pytest.mark.both_stores

MARKER = "a-sentence-that-only-this-run-has"


def a_key(letter: str) -> str:
    return base64.b64encode(letter.encode() * 32).decode()


def command(
    host: ServedHost, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    given = {k: v for k, v in host.variables.items() if k == "WOPR_DB"} | variables
    return run(arguments, environment(host.data_dir, given))


def test_inputs_and_events_of_a_run_are_encrypted_on_disk(
    new_host: Callable[..., ServedHost], connect: Callable[..., Wire]
) -> None:
    host = new_host(WOPR_ENCRYPTION_KEY=a_key("o"))
    wire = connect(ACME, host)
    run_id = wire.create(wire.register(workflow([node("a")])), {"text": MARKER})
    wire.finished(run_id)
    before = wire.log(run_id)
    assert MARKER in str(before)

    host.stop()
    assert MARKER.encode() not in stored(host)

    host.variables["WOPR_ENCRYPTION_KEY"] = f"{a_key('n')},{a_key('o')}"
    host.start()
    again = connect(ACME, host)
    assert again.log(run_id) == before

    done = command(
        host, "encryption", "rotate", WOPR_ENCRYPTION_KEY=host.variables["WOPR_ENCRYPTION_KEY"]
    )
    assert done.returncode == 0, done.stderr
    assert "values were encrypted with the key" in done.stdout
    assert again.log(run_id) == before
    host.variables["WOPR_ENCRYPTION_KEY"] = a_key("n")
    host.restart()
    assert connect(ACME, host).log(run_id) == before


def test_a_host_without_the_key_of_its_content_does_not_start_and_names_the_key(
    new_host: Callable[..., ServedHost],
) -> None:
    host = new_host(WOPR_ENCRYPTION_KEY=a_key("o"))
    host.stop()

    done = command(host, "serve", "--port", "0")

    assert done.returncode == 2, done.stderr
    assert "encrypted with the key" in done.stderr
    assert "WOPR_ENCRYPTION_KEY" in done.stderr


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WOPR_ENCRYPTION_KEY": "not base64!"}, "WOPR_ENCRYPTION_KEY: key 1 is not base64"),
        (
            {"WOPR_ENCRYPTION_KEY": "c2hvcnQ="},
            "WOPR_ENCRYPTION_KEY: key 1 has 5 bytes; it needs 32",
        ),
        ({"WOPR_ENCRYPTION_KEY_FILE": "/no/such/file"}, "/no/such/file cannot be read"),
        (
            {"WOPR_ENCRYPTION_KEY_COMMAND": "false"},
            "WOPR_ENCRYPTION_KEY_COMMAND ended with exit code",
        ),
        (
            {"WOPR_ENCRYPTION_KEY": a_key("o"), "WOPR_ENCRYPTION_KEY_FILE": "f"},
            "set only one of WOPR_ENCRYPTION_KEY, WOPR_ENCRYPTION_KEY_FILE",
        ),
    ],
)
def test_an_invalid_key_is_refused_at_the_start(
    tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    host = ServedHost(tmp_path)

    done = command(host, "serve", "--port", "0", **variables)

    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split())


def test_the_key_can_come_from_a_file_or_a_command(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(a_key("o") + "\n")
    file.chmod(0o600)
    host = ServedHost(tmp_path / "data", (), {"WOPR_ENCRYPTION_KEY_FILE": str(file)})
    host.start()
    host.stop()

    by_command = {"WOPR_ENCRYPTION_KEY_COMMAND": f"cat {file}"}
    done = command(host, "encryption", "rotate", "--json", **by_command)
    assert done.returncode == 0, done.stderr
    file.chmod(0o644)
    refused = command(host, "encryption", "rotate", WOPR_ENCRYPTION_KEY_FILE=str(file))
    assert refused.returncode == 2
    assert "chmod 600" in refused.stderr
