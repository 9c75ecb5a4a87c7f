from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.host import ACME, WOPR, environment, served

if TYPE_CHECKING:
    from tests.cli.conftest import Wopr

DEADLINE_SECONDS = 150
APP = """\
from __future__ import annotations

from wopr import Workflow

flow = Workflow("{name}")
flow.end(text="hello")
"""
ASKING = """\
from __future__ import annotations

from wopr import Agent, Workflow

flow = Workflow("asking")
flow.agent("ask", Agent("acme.shop.clerk", model="{model}"), prompt="Hello.")
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    file = folder / "app.py"
    file.write_text(APP.format(name="first"))
    return file


class Watched:
    """A running `wopr dev` whose output is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.lines: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        """Read up to the next line that matches."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            found = re.search(pattern, line)
            if found is not None:
                return found
        raise AssertionError("".join(self.lines))


@contextmanager
def developing(app: Path, data_dir: Path) -> Iterator[Watched]:
    process = subprocess.Popen(
        [WOPR, "dev", str(app), "--port", "0", "--data-dir", str(data_dir)],
        env=environment(data_dir, {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # A line that never comes must not block the test.
    overdue = Timer(DEADLINE_SECONDS, process.kill)
    overdue.start()
    try:
        yield Watched(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_SECONDS)
        overdue.cancel()


def knows(url: str, workflow: str) -> bool:
    headers = {"Authorization": f"Bearer {ACME}"}
    answer = httpx.get(
        f"{url}/v1/workflows/{workflow}", headers=headers, trust_env=False, timeout=60
    )
    return answer.status_code == 200


def test_a_changed_app_is_served_again_and_a_broken_one_is_reported_with_its_line(
    app: Path, tmp_path: Path
) -> None:
    with developing(app, tmp_path / "data") as watched:
        first = watched.until(r"listening on (http://\S+)")[1]
        knew_first = knows(first, "first")

        app.write_text(APP.format(name="second") + "flow.inputz\n")
        broken = watched.until(r"app.py:(\d+): AttributeError")[1]
        watched.until("the previous version keeps running")
        still = knows(first, "first")

        app.write_text(APP.format(name="second"))
        second = watched.until(r"listening on (http://\S+)")[1]
        knows_second = knows(second, "second")

    assert (knew_first, broken, still, knows_second) == (True, "7", True, True)
    assert first == second


def test_a_failed_start_is_reported_and_retried_at_the_next_change(
    app: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"

    with served(data) as other, developing(app, data) as watched:
        watched.until("serves this database")
        watched.until("the host has stopped")
        other.stop()
        app.write_text(APP.format(name="again"))
        url = watched.until(r"listening on (http://\S+)")[1]

        assert knows(url, "again")


def test_the_port_is_free_after_the_end(app: Path, tmp_path: Path) -> None:
    with developing(app, tmp_path / "data") as watched:
        port = int(watched.until(r"listening on http://\S+:(\d+)")[1])

    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_check_lists_the_contents_of_an_app(app: Path, local: Wopr) -> None:
    result = local("dev", "--check", str(app))

    assert result.exit_code == 0
    assert "workflow   first" in result.output
    assert "wopr run first --follow" in result.output


@pytest.mark.parametrize(
    ("model", "needed"),
    [
        ("openai:gpt-4o", "OPENAI_API_KEY, for openai:gpt-4o"),
        ("google:gemini", "GOOGLE_API_KEY or GEMINI_API_KEY, for google:gemini"),
        ("local:qwen", "WOPR_MODEL_SERVERS=local=…, for local:qwen"),
        ("mine:small", None),
    ],
)
def test_a_check_lists_what_the_models_of_an_app_need(
    app: Path, local: Wopr, monkeypatch: pytest.MonkeyPatch, model: str, needed: str | None
) -> None:
    for name in ("OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WOPR_MODEL_SERVERS", "mine=http://127.0.0.1:1/v1")
    app.write_text(ASKING.format(model=model))

    output = local("dev", "--check", str(app)).output

    assert [line for line in output.splitlines() if line.startswith("  needs")] == (
        [f"  needs      {needed}"] if needed else []
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = (", "app.py:1: SyntaxError: '(' was never closed"),
        ("import nothing_of_that_name", "app.py:1: ModuleNotFoundError"),
        ("\n\n1 / 0", "app.py:3: ZeroDivisionError: division by zero"),
        ("import sys\n\nsys.exit('no key')", "app.py:3: SystemExit: no key"),
        (
            'from wopr import Workflow\nflow = Workflow("x")\nflow.add("a", "core.dely")',
            "app.py:3: WorkflowError: node a: there is no node type 'core.dely': did you mean",
        ),
        (
            'from wopr import Workflow\nflow = Workflow("x")\n'
            'flow.add("a", "core.delay", config={"ms": "soon"})',
            "workflow x: node a: config",
        ),
    ],
)
def test_an_error_while_loading_an_app_is_reported_with_its_line(
    app: Path, local: Wopr, text: str, told: str
) -> None:
    app.write_text(text)

    result = local("dev", "--check", str(app))

    assert result.exit_code == 2
    assert told in result.output


def test_a_missing_app_is_reported(local: Wopr, tmp_path: Path) -> None:
    result = local("dev", "--check", str(tmp_path / "nothing.py"))

    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_the_name_of_an_app_is_sufficient(app: Path, local: Wopr) -> None:
    app.write_text(APP.format(name="first") + 'other = Workflow("other")\nother.end()\n')

    one = local("dev", "--check", f"{app}:other")
    none = local("dev", "--check", f"{app}:othr")

    assert "workflow   other" in one.output
    assert "workflow   first" not in one.output
    assert "did you mean 'other'?" in none.output


def test_an_app_is_also_served_in_production(app: Path, tmp_path: Path) -> None:
    with served(tmp_path / "data", "--app", str(app)) as host:
        assert knows(host.url, "first")
