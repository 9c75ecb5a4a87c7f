"""The attacks of the hostile clients of the soak test. Each attack ends after a limited time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, TypeAlias
from uuid import uuid4

import httpx

KIB: Final = 1024
# The number of connections that one attack opens, and how long it keeps them open.
CONNECTIONS: Final = 100
STREAMS: Final = 350
BODIES: Final = 30
HOLD_SECONDS: Final = 5.0
_NUMBERS: Final = ", ".join(["1"] * 60)
_SLOW: Final = f"[{_NUMBERS}].exists(x, [{_NUMBERS}].exists(y, x + y < 0))"


class Attacker:
    """A hostile client. It counts the responses by attack, status and error code."""

    def __init__(
        self,
        port: int,
        key: str,
        responses: Counter[tuple[str, str]],
        only: Sequence[str] | None = None,
    ) -> None:
        self._port = port
        self._attacks = sorted(only or ATTACKS)
        self._key = key
        self._responses = responses
        self._attack = ""
        self._http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {key}"},
            timeout=30,
            trust_env=False,
        )

    async def attack_until(self, is_over: Callable[[], bool]) -> None:
        """Run the attacks in random order until the soak is over."""
        while not is_over():
            for name in random.sample(self._attacks, len(self._attacks)):
                if is_over():
                    break
                self._attack = name
                try:
                    await ATTACKS[name](self)
                except (httpx.HTTPError, OSError) as error:
                    self.count_result(type(error).__name__)
                await asyncio.sleep(random.uniform(0.5, 3.0))
        await self._http.aclose()

    def count_result(self, result: str) -> None:
        """Count the result of a request."""
        self._responses[self._attack, result] += 1

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request and count its response."""
        response = await self._http.request(method, path, **options)
        code = ""
        if response.status_code >= 400:
            with suppress(ValueError, KeyError, TypeError):
                code = f" {response.json()['error']}"
        self.count_result(f"{response.status_code}{code}")
        return response

    async def start(self, definition: dict[str, Any], **body: Any) -> str | None:
        """Register a definition and start a run; return None if one of them is refused."""
        registered = await self.call("POST", "/v1/workflows", json=definition)
        if registered.status_code not in (200, 201):
            return None
        request = {"workflowId": definition["id"], **body}
        accepted = await self.call("POST", "/v1/runs", json=request)
        return str(accepted.json()["runId"]) if accepted.status_code == 201 else None

    async def wait_for_end(self, run_id: str) -> None:
        """Wait for the end of a run and count its status."""
        found: dict[str, Any] = {"status": "unknown"}
        for _ in range(30):
            found = (await self._http.get(f"/v1/runs/{run_id}")).json()
            if found.get("status") in ("completed", "failed", "cancelled"):
                break
            await asyncio.sleep(1)
        error: dict[str, Any] = found.get("error", {})
        code = error.get("code", "")
        self.count_result(f"run {found.get('status')} {code}".rstrip())

    async def hold_connections(self, request: bytes, count: int) -> None:
        """Open connections, send the same bytes, and count the first lines of the responses."""
        opened = [await asyncio.open_connection("127.0.0.1", self._port) for _ in range(count)]
        for _, writer in opened:
            writer.write(request)
        await asyncio.sleep(HOLD_SECONDS)
        for reader, writer in opened:
            line = b""
            with suppress(OSError, TimeoutError):
                line = await asyncio.wait_for(reader.readline(), 0.01)
            self.count_result(line.decode("latin-1").strip()[9:12] or "nothing")
            writer.transport.abort()

    def request_head(self, method: str, path: str, *lines: str) -> bytes:
        """Return the head of a request with the attacker's key."""
        given = (f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self._key}")
        return "\r\n".join((*given, *lines, "", "")).encode()


# Definitions


def workflow(nodes: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a definition whose nodes run in sequence, unless `edges` is given."""
    definition: dict[str, Any] = {
        "id": f"soak-{uuid4().hex[:12]}",
        "name": "Soak",
        "version": "1.0",
        "nodes": nodes,
        "edges": [edge(one["id"], other["id"]) for one, other in pairwise(nodes)],
        "triggers": [],
        "variables": [],
        "metadata": {},
        "settings": {},
    }
    return definition | fields


def node(node_id: str, type_id: str = "core.noop", **fields: Any) -> dict[str, Any]:
    """Return a node without inputs."""
    place = {"name": node_id, "position": {"x": 0, "y": 0}}
    return {"id": node_id, "typeId": type_id, **place, "config": {}, "inputs": {}} | fields


def edge(source: str, target: str, **fields: Any) -> dict[str, Any]:
    """Return an edge from one node to another."""
    ends = {"sourceNodeId": source, "targetNodeId": target}
    return {"id": f"{source}-{target}", **ends} | fields


# Attacks


async def _schema_bomb(attacker: Attacker) -> None:
    names = [f"d{number}" for number in range(31)]
    definitions: dict[str, Any] = {names[-1]: {}}
    for name, following in pairwise(names):
        definitions[name] = {"allOf": [{"$ref": f"#/$defs/{following}"}] * 2}
    schema = {"$defs": definitions, "$ref": "#/$defs/d0"}
    definition = workflow([node("a")], configurableSchema=schema)
    await attacker.call("POST", "/v1/workflows:validate", json=definition)
    run_id = await attacker.start(definition, configurable={"a": 1})
    if run_id is not None:
        await attacker.wait_for_end(run_id)


async def _fork_bomb(attacker: Attacker) -> None:
    own = f"soak-{uuid4().hex[:12]}"
    calls = [node(name, "core.subWorkflow", config={"workflowId": own}) for name in ("a", "b")]
    run_id = await attacker.start(workflow(calls, id=own, edges=[]))
    if run_id is not None:
        await attacker.wait_for_end(run_id)


async def _many_runs(attacker: Attacker) -> None:
    definition = workflow([node("wait", "core.delay", config={"delayMs": 5000})])
    if await attacker.start(definition) is None:
        return
    for _ in range(300):
        await attacker.call("POST", "/v1/runs", json={"workflowId": definition["id"]})


async def _slow_headers(attacker: Attacker) -> None:
    await attacker.hold_connections(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", CONNECTIONS)


async def _slow_bodies(attacker: Attacker) -> None:
    await attacker.hold_connections(
        attacker.request_head("POST", "/v1/runs", "Content-Length: 800"), CONNECTIONS
    )


async def _slow_sign_in(attacker: Attacker) -> None:
    head = b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 800\r\n\r\n"
    await attacker.hold_connections(head, CONNECTIONS)


async def _big_headers(attacker: Attacker) -> None:
    await attacker.call("GET", "/v1/runs", headers={"X-Big": "x" * 100 * KIB})


async def _big_bodies(attacker: Attacker) -> None:
    headers = {"Content-Type": "application/json"}
    big = b'{"workflowId":"' + b"x" * (5 * KIB * KIB) + b'"}'
    await attacker.call("POST", "/v1/runs", content=big, headers=headers)
    await attacker.call("POST", "/v1/runs", content=b"[" * 100_000, headers=headers)
    await attacker.call("POST", "/sign-in", content=b"key=" + b"x" * KIB * KIB)


async def _expressions(attacker: Attacker) -> None:
    conditions = [
        edge(
            "a",
            "b",
            id=f"e{n}",
            condition={"type": "expression", "expression": f"{_SLOW} || {n} < 0"},
        )
        for n in range(950)
    ]
    definition = workflow([node("a"), node("b")], edges=conditions)
    await attacker.call("POST", "/v1/workflows:validate", json=definition)


async def _dense_graph(attacker: Attacker) -> None:
    ids = [f"n{number}" for number in range(150)]
    edges = [edge(one, two) for at, one in enumerate(ids) for two in ids[at + 1 :]]
    definition = workflow([node(name) for name in ids], edges=edges)
    await attacker.call("POST", "/v1/workflows", json=definition)


async def _doubling(attacker: Attacker) -> None:
    config = {"name": "v", "expression": "variables.v + variables.v"}
    nodes = [node(f"n{number}", "core.setVariable", config=config) for number in range(18)]
    start = {"name": "v", "type": "string", "defaultValue": "x" * KIB}
    run_id = await attacker.start(workflow(nodes, variables=[start]))
    if run_id is not None:
        await attacker.wait_for_end(run_id)


async def _many_streams(attacker: Attacker) -> None:
    definition = workflow([node("wait", "core.delay", config={"delayMs": 20_000})])
    run_id = await attacker.start(definition)
    if run_id is not None:
        await attacker.hold_connections(
            attacker.request_head("GET", f"/v1/runs/{run_id}/events"), STREAMS
        )


async def _unread_streams(attacker: Attacker) -> None:
    payload = {"type": "variable", "variableName": "payload"}
    echoes = [node(f"n{n}", "core.identity", inputs={"payload": payload}) for n in range(10)]
    variables = [{"name": "payload", "type": "object", "required": True}]
    inputs = {"payload": {"text": "x" * 50_000}}
    run_id = await attacker.start(workflow(echoes, variables=variables), inputs=inputs)
    if run_id is not None:
        await attacker.wait_for_end(run_id)
        path = f"/v1/runs/{run_id}/events?streamMode=debug"
        await attacker.hold_connections(attacker.request_head("GET", path), CONNECTIONS)


async def _wrong_keys(attacker: Attacker) -> None:
    for number in range(50):
        headers = {"Authorization": f"Bearer wopr_live_wrong_{number:032d}"}
        await attacker.call("GET", "/v1/runs", headers=headers)


async def _credential_shapes(attacker: Attacker) -> None:
    text = "sk-ant-api03-" * 3000
    await attacker.call("POST", "/v1/runs", json={"workflowId": text})


async def _quoted_cookies(attacker: Attacker) -> None:
    cookie = 'wopr_session="' + '\\"' * 25 * KIB + '"'
    await attacker.call("GET", "/runs", headers={"Cookie": cookie})


async def _many_bodies(attacker: Attacker) -> None:
    body = b'{"workflowId":"hello","inputs":{"v":[' + b"[]," * KIB * KIB + b"[]]}}"
    headers = {"Content-Type": "application/json"}
    posts = (
        attacker.call("POST", "/v1/runs", content=body, headers=headers) for _ in range(BODIES)
    )
    for failure in await asyncio.gather(*posts, return_exceptions=True):
        if isinstance(failure, Exception):
            attacker.count_result(type(failure).__name__)


async def _unread_files(attacker: Attacker) -> None:
    await attacker.hold_connections(attacker.request_head("GET", "/sign-in") * 16, CONNECTIONS)


async def _odd_references(attacker: Attacker) -> None:
    definitions: dict[str, Any] = {"d27": {}}
    for number in range(27):
        reference = {"$ref": f"#/$defs/d{number + 1}"}
        definitions[f"d{number}"] = {"allOf": [reference, reference]}
    steps = {"allOf": [{}, {}, {}, definitions.pop("d0")]}
    schema = {"$defs": {**definitions, "l": steps}, "$ref": "#/$defs/l/allOf/+3"}
    run_id = await attacker.start(
        workflow([node("a")], configurableSchema=schema), configurable={"a": 1}
    )
    if run_id is not None:
        await attacker.wait_for_end(run_id)


async def _large_patterns(attacker: Attacker) -> None:
    schema = {"type": "string", "allOf": [{"pattern": f"\\pL{{10{n}}}"} for n in range(5)]}
    channels = {f"c{n}": {"reducer": "replace", "schema": schema} for n in range(50)}
    definition = workflow([node("a")], channels=channels)
    await attacker.call("POST", "/v1/workflows:validate", json=definition)


async def _upgrade(attacker: Attacker) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
    await attacker.call("GET", "/v1/runs", headers=headers)


Attack: TypeAlias = Callable[[Attacker], Awaitable[None]]
ATTACKS: Final[dict[str, Attack]] = {
    "schema bomb": _schema_bomb,
    "fork bomb": _fork_bomb,
    "many runs": _many_runs,
    "slow headers": _slow_headers,
    "slow bodies": _slow_bodies,
    "slow sign-in": _slow_sign_in,
    "big headers": _big_headers,
    "big bodies": _big_bodies,
    "950 expressions": _expressions,
    "dense graph": _dense_graph,
    "doubling variables": _doubling,
    "many streams": _many_streams,
    "unread streams": _unread_streams,
    "wrong keys": _wrong_keys,
    "credential shapes": _credential_shapes,
    "quoted cookies": _quoted_cookies,
    "many bodies": _many_bodies,
    "unread files": _unread_files,
    "odd references": _odd_references,
    "large patterns": _large_patterns,
    "WebSocket upgrade": _upgrade,
}
