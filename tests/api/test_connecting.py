from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import wopr
from wopr import HostRefused, HostUnreachable, connect
from wopr.api.events import Frame, read_event

pytestmark = pytest.mark.anyio


def answering(*responses: httpx.Response) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    asked: list[httpx.Request] = []
    left = list(responses)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return left.pop(0) if len(left) > 1 else left[0]

    return httpx.MockTransport(answer), asked


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WOPR_URL", "WOPR_API_KEY", "WOPR_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def note(url: str, text: str = "") -> None:
    Path("data").mkdir()
    noted = json.dumps({"url": url, "apiKey": "noted"})
    Path("data/credentials.json").write_text(text or noted)


async def used(url: str | None = None, key: str | None = None) -> tuple[str, str | None]:
    """Return the address and the key of one request."""
    transport, asked = answering(httpx.Response(200, json={"items": []}))
    async with connect(url, key, transport=transport) as host:
        await host.runs()
    return str(asked[0].url.copy_with(path="/", query=None)), asked[0].headers.get("authorization")


async def test_the_default_host_is_the_local_one() -> None:
    assert await used() == ("http://127.0.0.1:8642/", None)


async def test_the_connection_file_in_the_directory_is_used() -> None:
    note("http://127.0.0.1:9000")

    assert await used() == ("http://127.0.0.1:9000/", "Bearer noted")


async def test_a_key_stored_for_one_host_is_not_sent_to_another() -> None:
    note("http://127.0.0.1:9000")

    assert await used("https://example.org") == ("https://example.org/", None)


async def test_the_environment_takes_precedence_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note("http://127.0.0.1:9000")
    monkeypatch.setenv("WOPR_URL", "http://127.0.0.1:9001")
    monkeypatch.setenv("WOPR_API_KEY", "from-environment")

    assert await used() == ("http://127.0.0.1:9001/", "Bearer from-environment")


async def test_an_unreadable_file_is_ignored() -> None:
    note("http://127.0.0.1:9000", text="{")

    assert await used() == ("http://127.0.0.1:8642/", None)


async def test_an_unreachable_host_is_reported_with_its_address() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with connect("http://h", transport=httpx.MockTransport(refuse)) as host:
        with pytest.raises(HostUnreachable, match=r"cannot reach http://h/?: refused") as away:
            await host.runs()

    assert away.value.is_transient


async def test_an_answer_without_an_error_envelope_is_reported_with_its_status() -> None:
    transport, _ = answering(httpx.Response(502, text="<html>"))

    async with connect("http://h", transport=transport) as host:
        with pytest.raises(
            HostRefused, match="responded 502 Bad Gateway, which is not an OpenWOP error"
        ) as refused:
            await host.runs()

    assert (refused.value.code, refused.value.is_transient) == ("bad_answer", True)


async def test_an_answer_of_another_form_is_not_a_document() -> None:
    transport, _ = answering(httpx.Response(200, text="[]"))

    async with connect("http://h", transport=transport) as host:
        with pytest.raises(HostUnreachable, match="is not an OpenWOP response"):
            await host.runs()


async def test_a_broken_stream_is_resumed_where_it_stopped() -> None:
    first = 'id: 0\nevent: run.started\ndata: {"type":"run.started","sequence":0}\n\n'
    second = 'id: 1\nevent: run.completed\ndata: {"type":"run.completed","sequence":1}\n\n'
    snapshot = {"runId": "r1", "workflowId": "w", "status": "running"}
    transport, asked = answering(
        httpx.Response(200, text=first),
        httpx.Response(200, json=snapshot),
        httpx.Response(200, text=second),
    )

    async with connect("http://h", transport=transport) as host:
        events = [event.type async for event in host.run("r1").events()]

    assert events == ["run.started", "run.completed"]
    assert asked[2].headers["last-event-id"] == "0"


async def test_a_refused_stream_is_not_requested_again() -> None:
    envelope = {"error": "not_found", "message": "there is no run"}
    transport, asked = answering(httpx.Response(404, json=envelope))

    async with connect("http://h", transport=transport) as host:
        with pytest.raises(HostRefused, match="there is no run"):
            [event async for event in host.run("r1").events()]

    assert len(asked) == 1


def test_a_frame_that_is_not_a_log_event_is_a_notice() -> None:
    notice = read_event(Frame("run.annotated", b'{"annotationId":"a"}'))

    assert (notice.type, notice.payload, notice.data) == (
        "run.annotated",
        {"annotationId": "a"},
        None,
    )
    with pytest.raises(HostUnreachable, match="not JSON"):
        read_event(Frame("run.annotated", b"{"))


def test_importing_the_package_imports_no_submodule() -> None:
    code = "import sys, wopr; print(sorted(m for m in sys.modules if m.startswith('wopr')))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['wopr']"


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(wopr, name) is not None for name in wopr.__all__)
    assert set(wopr.__all__) <= set(dir(wopr))
    with pytest.raises(AttributeError, match="has no attribute 'Agnet'"):
        _ = wopr.Agnet
