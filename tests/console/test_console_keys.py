from __future__ import annotations

import re

from tests.console.conftest import SignedIn
from tests.support.console import Person
from tests.support.host import VIEWER, ServedHost
from tests.support.stored_files import stored


def test_a_new_key_is_shown_once_and_works(acme: Person, signed_in: SignedIn) -> None:
    answer = acme.post("/settings/keys", name="for Ada", role="reviewer", days="30")

    [key] = re.findall(r"wopr_live_[\w-]+", answer.text)
    assert answer.status_code == 200
    person = signed_in(key)
    assert "reviewer" in person.page("/settings").text
    assert key not in acme.get("/settings").text


def test_a_page_with_a_new_key_is_not_stored_for_a_repeated_request(
    acme: Person, host: ServedHost
) -> None:
    form = {"csrf": acme.token(), "name": "for Bob", "role": "viewer"}
    headers = {"Idempotency-Key": "the same twice"}

    pages = [acme.http.post("/settings/keys", data=form, headers=headers).text for _ in range(2)]

    first, second = (re.findall(r"wopr_live_[\w-]+", page) for page in pages)
    assert len(first) == len(second) == 1
    assert first != second
    assert first[0].encode() not in stored(host)


def test_no_one_can_grant_more_than_their_own_scopes(signed_in: SignedIn, host: ServedHost) -> None:
    made = ("keys", "create", "--tenant", "acme", "--role", "viewer", "--scope", "keys:manage")
    person = signed_in(host.command(*made).strip())

    assert person.post("/settings/keys", role="admin").status_code == 403
    assert person.post("/settings/keys", role="viewer").status_code == 200
    assert person.post("/settings/keys", role="boss").status_code == 400


def test_settings_show_the_scopes_of_the_key(signed_in: SignedIn) -> None:
    text = signed_in(VIEWER).page("/settings").text

    assert "runs:read" in text
    assert "Create key" not in text


def test_settings_show_the_processes_and_their_code_to_operators_only(
    acme: Person, signed_in: SignedIn
) -> None:
    assert "Code version" in acme.page("/settings").text
    assert "Code version" not in signed_in(VIEWER).page("/settings").text
