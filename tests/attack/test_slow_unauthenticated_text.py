"""Requests without a key whose path or headers are designed to be slow to parse."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.attacked_host import HonestClient, attacked

UNIT = "bearer=AgEIcHlwaS5vcmc"
LONG = UNIT * (60_000 // len(UNIT))
REQUESTS = 20
MAX_CHARACTERS = 1_500


def test_long_paths_without_a_key_do_not_delay_others(tmp_path: Path) -> None:
    with (
        attacked(tmp_path, "--conformance") as host,
        HonestClient(host) as honest,
        host.client(None) as mallory,
    ):
        for _ in range(REQUESTS):
            mallory.http.get(f"/v1/interrupt-kinds/{LONG}")
        refused = mallory.http.get(f"/v1/interrupt-kinds/{LONG}")
        page = mallory.http.get(f"/sign-in?next=/{LONG}")
        honest.wait_for_round()

    assert refused.status_code == 404
    assert refused.json()["message"].startswith("this host does not define the interrupt kind")
    assert len(refused.text) < MAX_CHARACTERS
    assert UNIT not in refused.text
    assert UNIT not in page.text


@pytest.mark.parametrize("path", ["/runs", "/sign-in", "/no-such-page"])
def test_a_cookie_that_is_slow_to_parse_does_not_delay_others(tmp_path: Path, path: str) -> None:
    escapes = 'wopr_session="' + '\\"' * 30_000 + '"'
    with (
        attacked(tmp_path) as host,
        HonestClient(host) as honest,
        host.client(None) as mallory,
    ):
        headers = {"Cookie": escapes, "Accept": "text/html"}
        answers = [mallory.http.get(path, headers=headers) for _ in range(3)]
        honest.wait_for_round()

    assert {answer.status_code for answer in answers} == {200 if path == "/sign-in" else 303}
