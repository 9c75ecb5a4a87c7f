from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from wopr.process.settings import Settings

if TYPE_CHECKING:
    from tests.cli.conftest import Wopr


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Return the arguments that the server would be started with."""
    settings: list[Settings] = []
    server = ModuleType("wopr.http.server")
    vars(server)["serve"] = lambda checked, *_: settings.append(checked)
    monkeypatch.setitem(sys.modules, "wopr.http.server", server)
    return settings


def test_without_options_the_host_listens_on_this_machine_only(
    local: Wopr, served: list[Settings]
) -> None:
    assert local("serve").exit_code == 0

    assert served == [Settings(db="sqlite:///data/wopr.db", data_dir=Path("data"))]
    assert (served[0].host, served[0].port) == ("127.0.0.1", 8642)


def test_options_become_settings(local: Wopr, served: list[Settings]) -> None:
    local(
        *("serve", "--host", "0.0.0.0", "--port", "0", "--data-dir", "/srv/w", "--conformance"),
        *("--workflows", "a", "--workflows", "b", "--log-format", "json", "--log-level", "debug"),
    )

    assert served == [
        Settings(
            host="0.0.0.0",
            port=0,
            data_dir=Path("/srv/w"),
            db="sqlite:////srv/w/wopr.db",
            workflows=(Path("a"), Path("b")),
            conformance=True,
            log_format="json",
            log_level="debug",
        )
    ]


def test_variables_become_settings(local: Wopr, served: list[Settings]) -> None:
    local(
        "serve",
        WOPR_HOST="::1",
        WOPR_PORT="9000",
        WOPR_DB="sqlite:///x.db",
        WOPR_DATA_DIR="d",
        WOPR_WORKFLOWS="a:b",
        WOPR_CONFORMANCE="1",
        WOPR_LOG_FORMAT="json",
        WOPR_LOG_LEVEL="error",
        WOPR_API_KEYS="0123456789abcdef:acme",
        WOPR_RETENTION_DAYS="9",
    )

    assert served == [
        Settings(
            host="::1",
            port=9000,
            db="sqlite:///x.db",
            data_dir=Path("d"),
            workflows=(Path("a"), Path("b")),
            conformance=True,
            log_format="json",
            log_level="error",
            api_keys="0123456789abcdef:acme",
            retention_days=9,
        )
    ]


@pytest.mark.parametrize(
    ("args", "variables"),
    [
        (("--port", "70000"), {}),
        (("--log-format", "xml"), {}),
        ((), {"WOPR_PORT": "many"}),
        ((), {"WOPR_RETENTION_DAYS": "1"}),
        ((), {"WOPR_RATE_LIMIT": "lots"}),
        ((), {"WOPR_WEBHOOK_OPEN_SECONDS": "inf"}),
        ((), {"WOPR_DB_STATEMENT_TIMEOUT_SECONDS": "inf"}),
        ((), {"WOPR_CHECK_SECONDS": "inf"}),
    ],
)
def test_invalid_settings_are_wrong_usage(
    local: Wopr, served: list[Settings], args: tuple[str, ...], variables: dict[str, str]
) -> None:
    assert local("serve", *args, **variables).exit_code == 2
    assert served == []


def test_a_key_that_is_too_short_is_reported_in_one_line_without_the_key(
    local: Wopr, served: list[Settings]
) -> None:
    done = local("serve", WOPR_API_KEYS="0123456789abcdef:acme,s3cr3t:globex")

    assert (done.exit_code, served) == (2, [])
    assert done.stderr.startswith("error: entry 2 of WOPR_API_KEYS has a key shorter than 16")
    assert "Traceback" not in done.stderr
    assert "s3cr3t" not in done.stderr


def test_an_address_in_use_is_named(local: Wopr) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        done = local("serve", "--port", str(port))

    assert done.exit_code == 6
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in done.stderr
