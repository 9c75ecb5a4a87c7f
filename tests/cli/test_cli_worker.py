from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from wopr.process.settings import Settings

if TYPE_CHECKING:
    from tests.cli.conftest import Wopr

SHARED = "postgresql://wopr:hush@db.example.com/wopr"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Return the arguments that the process would be started with."""
    settings: list[Settings] = []
    server = ModuleType("wopr.http.server")
    vars(server)["serve"] = lambda checked, *_: settings.append(checked)
    monkeypatch.setitem(sys.modules, "wopr.http.server", server)
    return settings


def test_a_worker_executes_and_does_not_serve(local: Wopr, served: list[Settings]) -> None:
    assert local("worker", WOPR_DB=SHARED, WOPR_WAKEUPS_AT_ONCE="7").exit_code == 0

    [settings] = served
    assert (settings.serves, settings.executes, settings.db) == (False, True, SHARED)
    assert (settings.host, settings.port, settings.wakeups_at_once) == ("127.0.0.1", 0, 7)


def test_a_host_without_a_worker_serves_and_does_not_execute(
    local: Wopr, served: list[Settings]
) -> None:
    assert local("serve", "--no-worker", "--db", SHARED).exit_code == 0

    [settings] = served
    assert (settings.serves, settings.executes) == (True, False)


@pytest.mark.parametrize("arguments", [["worker"], ["serve", "--no-worker"]])
def test_several_processes_need_a_shared_database(
    local: Wopr, served: list[Settings], arguments: list[str]
) -> None:
    done = local(*arguments)

    assert done.exit_code == 2
    assert "postgresql://" in done.stderr
    assert served == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (SHARED, "postgresql://db.example.com/wopr"),
        ("postgres://u:p%40x@h:5433/d?sslmode=require&password=hush", "postgres://h:5433/d"),
        ("sqlite:////srv/w/wopr.db", "sqlite:////srv/w/wopr.db"),
    ],
)
def test_the_database_is_shown_without_its_password(url: str, shown: str) -> None:
    assert Settings(db=url).public_database_url == shown
