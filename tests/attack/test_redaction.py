"""Text designed to be slow to redact, or to reveal another tenant's secrets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.attack.attacked_host import MALLORY, HonestClient, attacked
from tests.support.client import Wire
from wopr.protocol.documents import Json
from wopr.security.credential_names import variable_of

KILOBYTES = 36
MAX_GROWTH_MIB = 200
ROUNDS = 1
VALUE = "winter oak river 17"
# Marks, values, and beginnings of credentials, each repeated to fill the text.
UNITS = (
    "[REDACTED] ",
    "[REDACTED:",
    f"[REDACTED] {VALUE} ",
    "password=[REDACTED",
    "-eyJabcdefgh.",
    "Bearer ",
    "Basic dXNlcjpw",
    '"password":"',
    "-----BEGIN ",
)
# One request of almost four megabytes for each unit.
LARGE_BYTES = 3_900_000
AT_ONCE = 3
MAX_LARGE_GROWTH_MIB = 600
LARGE_UNITS = ("://a:b@", "password='", "Basic dXNlcjpw ", "x-api-key: ", "_", "Bearer ")


def test_text_that_is_slow_to_redact_does_not_delay_others(tmp_path: Path) -> None:
    secrets = {variable_of("mallory", "vault"): VALUE, variable_of("mallory", "word"): "REDACTED"}
    with attacked(tmp_path, "--conformance", **secrets) as host:
        with HonestClient(host) as honest, host.client() as mallory:
            for _ in range(ROUNDS):
                for unit in UNITS:
                    _write_everywhere(mallory, unit * (KILOBYTES * 1024 // len(unit)))
            honest.wait_for_round()
            assert VALUE not in mallory.get("/v1/runs", params={"limit": 50}).text

        host.kill_and_recover()

    assert honest.growth_mib < MAX_GROWTH_MIB


def test_many_requests_that_are_slow_to_redact_do_not_delay_others(tmp_path: Path) -> None:
    texts: list[Json] = [unit * (LARGE_BYTES // len(unit)) for unit in LARGE_UNITS]
    many: Json = [*["password"] * (LARGE_BYTES // 13), "password=hunter2hunter2"]
    with attacked(tmp_path, "--conformance") as host:
        with HonestClient(host) as honest, host.client() as mallory:

            def start(value: Json) -> str:
                body = {"workflowId": "conformance-identity", "inputs": {"payload": {"x": value}}}
                taken = mallory.http.post("/v1/runs", json=body, timeout=60)
                assert taken.status_code == 201, taken.text[:200]
                return str(taken.json()["runId"])

            with ThreadPoolExecutor(AT_ONCE) as clients:
                runs = list(clients.map(start, (*texts, many)))
            honest.wait_for_round()
            statuses = {mallory.finished(run_id)["status"] for run_id in runs}

        host.kill_and_recover()

    assert statuses == {"completed"}
    assert honest.growth_mib < MAX_LARGE_GROWTH_MIB


def test_guesses_of_another_tenant_s_secret_are_not_confirmed(tmp_path: Path) -> None:
    secret = {variable_of("alice", "alice-vault"): VALUE}
    with attacked(tmp_path, "--conformance", **secret) as host:
        with HonestClient(host) as honest, host.client(MALLORY) as mallory:
            found = mallory.run("conformance-identity", {"payload": {"guess": VALUE}})
            refused = mallory.get(f"/v1/runs/{VALUE}")
            honest.wait_for_round()
        log = host.log()

    assert found["variables"]["payload"] == {"guess": VALUE}
    assert "alice-vault" not in refused.text
    assert VALUE not in log


def _write_everywhere(wire: Wire, text: str) -> None:
    """Send a text where it is stored, and where a refusal repeats it."""
    taken = wire.http.post(
        "/v1/runs", json={"workflowId": "conformance-identity", "inputs": {"payload": {"x": text}}}
    )
    assert taken.status_code == 201, taken.text[:200]
    told = wire.http.post("/v1/runs", json={"workflowId": text})
    assert told.status_code == 400, told.text[:200]
