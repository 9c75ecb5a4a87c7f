from __future__ import annotations

import json
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr

DISCOVERY = {"protocolVersion": "1.0", "implementation": {"name": "wopr", "version": "0"}}


def findings(result: Any) -> dict[str, Any]:
    return {check["name"]: check for check in json.loads(result.stdout)["checks"]}


@pytest.fixture
def well(host: FakeHost) -> FakeHost:
    host.answer("GET /.well-known/openwop", DISCOVERY)
    host.answer("GET /v1/workflows", {"items": []})
    return host


def test_a_healthy_host_passes(well: FakeHost, wopr: Wopr) -> None:
    wopr("keys", "create")

    result = wopr("doctor", "--json")

    assert result.exit_code == 0
    assert {name: check["state"] for name, check in findings(result).items()} == {
        "python": "ok",
        "data dir": "ok",
        "credentials": "skipped",
        "database": "ok",
        "server": "ok",
        "discovery": "ok",
        "clock": "ok",
        "key": "ok",
    }


def test_scripts_get_a_json_list_of_checks(well: FakeHost, wopr: Wopr) -> None:
    lines = wopr("doctor").stdout.splitlines()

    assert lines[0].startswith("ok      python      Python 3.")
    assert any(line.startswith("ok      server") for line in lines)


def test_a_check_creates_no_files(local: Wopr, tmp_path: Path) -> None:
    result = local("doctor", "--offline")

    assert result.exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_fails_with_a_remedy(local: Wopr) -> None:
    result = local("doctor", "--json", "--url", "http://127.0.0.1:1")

    assert result.exit_code == 1
    assert "wopr serve" in findings(result)["server"]["wayOut"]


def test_another_service_at_the_address_fails_the_discovery_check(
    well: FakeHost, wopr: Wopr
) -> None:
    well.answers["GET /.well-known/openwop"] = []
    well.answer("GET /.well-known/openwop", {"hello": "world"})

    result = wopr("doctor", "--json")

    assert findings(result)["discovery"]["state"] == "failed"


@pytest.mark.parametrize(
    ("code", "state"),
    [("unauthenticated", "failed"), ("key_expired", "failed"), ("forbidden", "ok")],
)
def test_a_key_passes_unless_the_server_does_not_know_it(
    host: FakeHost, wopr: Wopr, code: str, state: str
) -> None:
    host.answer("GET /.well-known/openwop", DISCOVERY)
    host.refuse("GET /v1/workflows", 403 if code == "forbidden" else 401, code)

    assert findings(wopr("doctor", "--json"))["key"]["state"] == state


def test_without_a_key_the_command_to_create_one_is_shown(well: FakeHost, local: Wopr) -> None:
    result = local("doctor", "--json", "--url", well.url)

    assert "wopr keys create" in findings(result)["key"]["wayOut"]


def test_a_wrong_clock_is_reported(well: FakeHost, wopr: Wopr) -> None:
    well.answers["GET /.well-known/openwop"] = []
    off = {"Date": formatdate(0, usegmt=True)}
    well.answer("GET /.well-known/openwop", DISCOVERY, headers=off)

    check = findings(wopr("doctor", "--json"))["clock"]

    assert check["state"] == "failed"
    assert "NTP" in check["wayOut"]


def test_broken_credentials_are_reported(local: Wopr, tmp_path: Path) -> None:
    path = tmp_path / "data" / "credentials.json"
    path.parent.mkdir()
    path.write_text('{"url": "http://127.0.0.1:1", "apiKey": "k"}')
    path.chmod(0o644)

    check = findings(local("doctor", "--offline", "--json"))["credentials"]

    assert check["state"] == "failed"
    assert check["wayOut"].startswith("chmod 600 ")


def test_a_database_that_cannot_be_opened_is_reported(local: Wopr, tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_text("not a database" * 100)

    result = local("doctor", "--offline", "--json", "--db", f"sqlite:///{tmp_path}/bad.db")

    assert result.exit_code == 1
    assert findings(result)["database"]["state"] == "failed"


def test_a_data_directory_that_is_a_file_is_reported(local: Wopr, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")

    check = findings(local("doctor", "--offline", "--json"))["data dir"]

    assert check["state"] == "failed"
    assert "WOPR_DATA_DIR" in check["wayOut"]
