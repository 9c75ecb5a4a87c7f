from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import FakeHost, Wopr


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "validation_error", 2),
        (401, "unauthenticated", 4),
        (403, "forbidden", 4),
        (404, "not_found", 3),
        (409, "run_already_active", 5),
        (410, "run_expired", 3),
        (413, "payload_too_large", 2),
        (422, "unprocessable", 2),
        (429, "rate_limited", 6),
        (500, "internal_error", 6),
        (503, "service_unavailable", 6),
    ],
)
def test_an_error_response_becomes_its_exit_code(
    host: FakeHost, wopr: Wopr, status: int, code: str, exit_code: int
) -> None:
    host.refuse("GET /v1/runs/r1", status, code, "because of this")

    result = wopr("runs", "show", "r1")

    assert result.exit_code == exit_code
    assert "because of this" in result.stderr
    assert result.stdout == ""


def test_every_fault_of_a_refusal_is_printed(host: FakeHost, wopr: Wopr) -> None:
    errors = [{"path": "inputs.a", "message": "missing"}, {"path": "", "message": "odd"}]
    host.refuse("POST /v1/runs", 400, "validation_error", "no good", errors=errors)

    result = wopr("run", "hello")

    assert "  inputs.a: missing\n  odd\n" in result.stderr


def test_a_fault_in_the_message_is_not_printed_twice(host: FakeHost, wopr: Wopr) -> None:
    errors = [{"path": "inputs.a", "message": "is missing"}]
    host.refuse("POST /v1/runs", 400, "validation_error", "inputs.a is missing", errors=errors)

    result = wopr("run", "hello")

    assert result.stderr.count("is missing") == 1


def test_with_json_an_error_is_json_on_stderr(host: FakeHost, wopr: Wopr) -> None:
    host.refuse("GET /v1/runs/r1", 404, "not_found", "gone", x=1)

    result = wopr("runs", "show", "r1", "--json")

    assert json.loads(result.stderr) == {
        "error": "not_found",
        "message": "gone",
        "exitCode": 3,
        "details": {"x": 1},
    }


def test_an_unreachable_server_ends_with_6_and_a_remedy(local: Wopr) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    result = local("runs", "list", "--url", f"http://127.0.0.1:{port}")

    assert result.exit_code == 6
    assert "wopr serve" in result.stderr


def test_a_response_outside_the_protocol_ends_with_6(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/runs/r1", b"<html>")

    result = wopr("runs", "show", "r1")

    assert result.exit_code == 6
    assert "is not an OpenWOP response" in result.stderr


def test_an_error_page_of_a_proxy_ends_with_6(host: FakeHost, wopr: Wopr) -> None:
    host.answer("GET /v1/runs/r1", b"<html>", 502)

    result = wopr("runs", "show", "r1")

    assert result.exit_code == 6
    assert "responded 502" in " ".join(result.stderr.split())


def test_a_run_id_cannot_reach_another_path(host: FakeHost, wopr: Wopr) -> None:
    wopr("runs", "show", "../workflows?x=1#y")

    assert host.requests[0].scope["raw_path"] == b"/v1/runs/..%2Fworkflows%3Fx%3D1%23y"


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8642", "http://[bad", "http://x:port"])
def test_an_invalid_url_is_wrong_usage(local: Wopr, url: str) -> None:
    assert local("runs", "list", "--url", url).exit_code == 2


def test_a_key_that_no_header_can_carry_is_wrong_usage(host: FakeHost, wopr: Wopr) -> None:
    result = wopr("runs", "list", "--api-key", "a\nb")

    assert result.exit_code == 2
    assert "a\nb" not in result.stderr


def test_the_credentials_file_sets_server_and_key(
    host: FakeHost, local: Wopr, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    note = {"url": host.url + "/", "apiKey": "noted-key"}
    (tmp_path / "data" / "credentials.json").write_text(json.dumps(note))
    host.answer("GET /v1/runs", {"items": []})

    result = local("runs", "list")

    assert result.exit_code == 0
    assert host.requests[0].headers["authorization"] == "Bearer noted-key"


def test_the_key_of_the_credentials_file_is_sent_to_no_other_server(
    host: FakeHost, local: Wopr, tmp_path: Path
) -> None:
    note = {"url": "http://127.0.0.1:1", "apiKey": "noted-key"}
    (tmp_path / "credentials.json").write_text(json.dumps(note))
    host.answer("GET /v1/runs", {"items": []})

    local("runs", "list", "--url", host.url, WOPR_DATA_DIR=str(tmp_path))

    assert "authorization" not in host.requests[0].headers


@pytest.mark.parametrize("content", ["{", "{}", '{"url": 1, "apiKey": "k"}'])
def test_a_broken_credentials_file_is_reported(local: Wopr, tmp_path: Path, content: str) -> None:
    (tmp_path / "credentials.json").write_text(content)

    result = local("runs", "list", WOPR_DATA_DIR=str(tmp_path))

    assert result.exit_code == 2
    assert "credentials.json" in result.stderr
