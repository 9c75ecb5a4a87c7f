"""Finding 11: the number of guessed keys is limited, and guesses do not delay others."""

from __future__ import annotations

from pathlib import Path

from tests.attack.attacked_host import MALLORY, HonestClient, attacked

FLOOD = 300


def test_a_client_that_guesses_keys_is_refused_with_429(tmp_path: Path) -> None:
    with attacked(tmp_path) as host:
        with HonestClient(host) as honest, host.client(None) as mallory:
            guesses = [
                mallory.http.get(
                    "/v1/runs",
                    headers={
                        "Authorization": f"Bearer wopr_live_guess_{number:016}",
                        "X-Forwarded-For": f"203.0.113.{number}",
                    },
                )
                for number in range(200)
            ]
            honest.wait_for_round()
            valid = mallory.http.get("/v1/runs", headers={"Authorization": f"Bearer {MALLORY}"})

        assert guesses[0].status_code == 401
        assert guesses[-1].status_code == 429
        assert guesses[-1].json()["error"] == "rate_limited"
        assert int(guesses[-1].headers["retry-after"]) >= 1
        assert valid.status_code == 200
        assert honest.growth_mib < 50

        host.kill_and_recover()


def test_a_flood_of_requests_without_a_key_is_refused_and_does_not_delay_others(
    tmp_path: Path,
) -> None:
    paths = ("/.well-known/openwop", "/sign-in", "/nothing", "/v1/interrupts/no-such-token")
    with attacked(tmp_path) as host, HonestClient(host) as honest, host.client(None) as mallory:
        refused = {path: 0 for path in paths}
        for _ in range(FLOOD):
            for path in paths:
                answer = mallory.http.get(path)
                if answer.status_code == 429:
                    refused[path] += 1
                    assert int(answer.headers["retry-after"]) >= 1
        probe = mallory.http.get("/healthz")
        valid = mallory.http.get("/v1/runs", headers={"Authorization": f"Bearer {MALLORY}"})
        honest.wait_for_round()

    assert all(refused.values()), refused
    assert probe.status_code == 200
    assert valid.status_code == 200
