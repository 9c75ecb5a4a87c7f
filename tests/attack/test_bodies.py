"""Large request bodies: complete ones count until they are answered, on every route."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.attack.attacked_host import MALLORY, AttackedHost, HonestClient, attacked
from tests.support.sockets import RawConnection, request

BODIES = 100
BODY_BYTES = 3_900_000
# Without a limit each body takes about 9 MiB.
MAX_GROWTH_MIB = 450.0


def test_complete_bodies_of_one_key_use_bounded_memory(tmp_path: Path) -> None:
    document = {
        "workflowId": "conformance-identity",
        "inputs": {"payload": {"x": "x" * BODY_BYTES}},
    }
    body = json.dumps(document).encode()
    headers = (f"Content-Length: {len(body)}", "Content-Type: application/json")
    head = request("/v1/runs", *headers, "Connection: close", method="POST", key=MALLORY)

    def create(host: AttackedHost) -> int:
        with RawConnection(host) as connection:
            return connection.send(head, body).answer().status

    with attacked(tmp_path, "--conformance") as host:
        with HonestClient(host) as honest, ThreadPoolExecutor(BODIES) as clients:
            answers = Counter(clients.map(create, [host] * BODIES))
            honest.wait_for_round()

        assert set(answers) == {201, 503}
        assert honest.growth_mib < MAX_GROWTH_MIB
