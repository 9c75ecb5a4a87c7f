from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from wopr import __version__
from wopr.cli.errors import MEANINGS, ExitCode

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr

# Importing one of these for a help text makes a command line slow.
HEAVY = ("httpx", "uvicorn", "starlette", "opentelemetry", "sqlite3", "anyio", "yaml")


def python(code: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", **variables},
        check=False,
    )


def test_the_version_is_printed(local: Wopr) -> None:
    assert local("--version").stdout == f"wopr {__version__}\n"


def test_the_help_names_every_exit_code(local: Wopr) -> None:
    text = " ".join(local("--help").stdout.split())

    assert set(MEANINGS) == set(ExitCode)
    assert all(f" {int(code)} {meaning} " in f"{text} " for code, meaning in MEANINGS.items())
    assert "the run was cancelled" in text


@pytest.mark.parametrize(
    "command",
    [
        *("serve", "run", "runs", "inbox", "workflows", "agents", "keys", "doctor"),
        *("runs tail", "inbox answer", "keys rotate"),
    ],
)
def test_every_command_has_help(local: Wopr, command: str) -> None:
    result = local(*command.split(), "--help")

    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_an_unknown_command_is_wrong_usage(local: Wopr) -> None:
    assert local("dance").exit_code == 2


def test_help_imports_no_heavy_module() -> None:
    code = f"import sys, wopr.cli.main; print([m for m in {HEAVY} if m in sys.modules])"

    assert python(code).stdout == "[]\n"


def test_shell_completion_names_commands_and_values() -> None:
    code = "import sys; sys.argv[0] = 'wopr'; from wopr.cli.main import main; main()"

    commands = python(code, _WOPR_COMPLETE="complete_bash", COMP_WORDS="wopr ru", COMP_CWORD="1")
    values = python(
        code,
        _WOPR_COMPLETE="complete_bash",
        COMP_WORDS="wopr runs list --status pa",
        COMP_CWORD="4",
    )

    assert commands.stdout.split() == ["run", "runs"]
    assert values.stdout.split() == ["paused"]


def test_an_output_that_cannot_encode_a_character_shows_its_number(host: FakeHost) -> None:
    host.run(outputs={"message": "naïve ☃"})
    code = "from wopr.cli.main import main; main()"

    result = python(
        code, "runs", "show", "r1", PYTHONIOENCODING="ascii", WOPR_URL=host.url, WOPR_API_KEY="k"
    )

    assert result.returncode == 0, result.stderr
    assert '"na\\xefve \\u2603"' in result.stdout


def test_a_reader_that_stops_reading_causes_no_traceback(host: FakeHost) -> None:
    host.run()
    host.stream("r1", [host.event(n, "log.appended", text="x" * 100) for n in range(3000)])
    code = "from wopr.cli.main import main; main()"
    command = [sys.executable, "-c", code, "runs", "tail", "r1", "--url", host.url]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        errors = tail.stderr.read()

    assert b"Traceback" not in errors
