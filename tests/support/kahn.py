"""KAHN runs to push, and requests to the fleet's API."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import httpx

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.kahn_lines import line
from wopr.kahn.timestamps import write_ts
from wopr.protocol.documents import JsonObject

NDJSON = {"Content-Type": "application/x-ndjson"}
ASKS = ("thinking", "blocked-on-clarification")
GOES_ON = ("blocked-on-clarification", "thinking")


class KahnRun:
    """The lines of one KAHN run with the same time, now by default."""

    def __init__(self, agent_id: str = "coder", ts: str | None = None) -> None:
        self.run_id = fresh("story")
        self.agent_id = agent_id
        self.ts = ts or write_ts(datetime.now(UTC))
        self._same = {"run_id": self.run_id, "ts": self.ts}

    def start(self, **changed: object) -> bytes:
        return self._line("agent_run_start", changed)

    def move(self, step: int, from_: str, to: str, **changed: object) -> bytes:
        return self._line("agent_transition", {"step": step, "from": from_, "to": to, **changed})

    def call(self, **changed: object) -> bytes:
        return self._line("tool_invocation", changed)

    def check(self, **changed: object) -> bytes:
        return self._line("audit_checkpoint", changed)

    def end(self, outcome: str = "converged", **changed: object) -> bytes:
        return self._line("agent_run_end", {"outcome": outcome, **changed})

    def _line(self, name: str, changed: dict[str, object]) -> bytes:
        return line(name, **({"agent_id": self.agent_id} | self._same | changed))

    def whole(self) -> list[bytes]:
        """Return a run with lines of every kind."""
        return [
            self.start(),
            self.move(0, "thinking", "tool_call", own="ü 1"),
            self.call(),
            self.check(),
            self.move(0, "tool_call", "tool_result"),
            self.move(1, *ASKS),
            self.move(2, *GOES_ON),
            self.end(),
            self.check(agent_id=None, checkpoint_id="policy:licence", result="warn"),
        ]


def push(wire: Wire, *lines: bytes) -> httpx.Response:
    return wire.request(
        "POST", "/v1/ingest/transitions", content=b"\n".join([*lines, b""]), headers=NDJSON
    )


def push_run(wire: Wire, *lines: bytes) -> str:
    """Push lines of one run and return the id of its observed run."""
    response = push(wire, *lines)
    assert response.status_code == 200, response.text
    run_id = json.loads(lines[0])["run_id"]
    found: str = wire.document(f"/api/runs/{run_id}")["run"]["openwop_run_id"]
    return found


def transitions(wire: Wire, run_id: str) -> list[bytes]:
    response = wire.get(f"/v1/runs/{run_id}/transitions")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return response.content.split(b"\n")[:-1]


def stored_lines(wire: Wire, run_id: str) -> list[bytes]:
    """Return the lines of a run in the fleet; none when it is unknown."""
    response = wire.get(f"/api/runs/{run_id}/transitions")
    return response.content.split(b"\n")[:-1] if response.status_code == 200 else []


def agents_of(wire: Wire, run_id: str) -> list[JsonObject]:
    found: list[JsonObject] = wire.document(f"/api/runs/{run_id}")["agents"]
    return found
