from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from urllib.parse import quote, unquote_plus, urlencode

import pytest

from tests.console.conftest import SignedIn
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.eventually import eventually
from tests.support.host import ACME, VIEWER, ServedHost
from tests.support.interrupts import principal_of
from tests.support.surfaces import CANARIES, leaks

NewHost = Callable[..., ServedHost]


def is_signed_in(person: Person) -> bool:
    return person.get("/settings").status_code == 200


def test_signing_in_returns_to_the_requested_page(anonymous: Person) -> None:
    asked = anonymous.get("/runs?tag=x")

    answer = anonymous.sign_in(ACME, to="/runs?tag=x")

    assert asked.headers["location"] == "/sign-in?next=/runs%3Ftag%3Dx"
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs?tag=x")
    assert is_signed_in(anonymous)


def test_a_static_file_answers_head_with_the_headers_of_get(anonymous: Person) -> None:
    [sheet] = anonymous.page("/sign-in").all("link", rel="stylesheet")

    whole, head = anonymous.get(sheet["href"]), anonymous.http.head(sheet["href"])

    assert (head.status_code, head.content) == (200, b"")
    names = ("content-type", "content-length", "cache-control")
    assert [head.headers[name] for name in names] == [whole.headers[name] for name in names]


def test_the_cookie_is_hidden_from_scripts_and_other_sites(anonymous: Person) -> None:
    answer = anonymous.sign_in(ACME)

    cookie = answer.headers["set-cookie"]
    assert "; HttpOnly" in cookie
    assert "; SameSite=Strict" in cookie
    assert "; Secure" not in cookie
    assert ACME not in cookie


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "https://evil.example/", "/\\evil.example", "//[", "javascript:x", ""],
)
def test_signing_in_redirects_only_within_the_console(anonymous: Person, target: str) -> None:
    assert anonymous.sign_in(ACME, to=target).headers["location"] == "/"
    shown = anonymous.get(f"/sign-in?next={quote(target)}").text
    assert "evil.example" not in shown


def test_an_invalid_referer_redirects_to_the_start_page(anonymous: Person) -> None:
    answer = anonymous.http.post("/runs/x/cancel", data={}, headers={"referer": "http://["})

    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/")


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
def test_a_credential_in_a_path_or_query_is_not_repeated_in_the_redirect_to_sign_in(
    anonymous: Person, canary: str
) -> None:
    path, query = f"/runs/{quote(canary, safe='')}", f"/runs?{urlencode({'tag': canary})}"
    referer = {"referer": f"http://127.0.0.1{path}"}
    elsewhere = {"sec-fetch-site": "cross-site"}

    answers = [
        anonymous.get(path),
        anonymous.get(query),
        anonymous.http.post("/runs/x/cancel", data={}, headers=referer),
        anonymous.get(query, headers=elsewhere),
        *(anonymous.get(f"/sign-in?{urlencode({'next': target})}") for target in (path, query)),
        *(anonymous.sign_in(ACME, to=target) for target in (path, query)),
    ]

    for answer in answers:
        assert not leaks(unquote_plus(answer.text + str(answer.headers)))
    assert [a.headers["location"] for a in answers[:3]] == ["/sign-in?next=/"] * 3
    assert [a.headers["location"] for a in answers[-2:]] == ["/", "/"]


def test_an_unknown_key_is_refused_and_not_repeated(anonymous: Person) -> None:
    answer = anonymous.sign_in("wopr_live_nobody_knows_this")

    assert answer.status_code == 401
    assert "not known" in answer.text
    assert "wopr_live_nobody_knows_this" not in answer.text
    assert not is_signed_in(anonymous)


def test_the_sign_in_form_must_come_from_the_visitor_s_own_page(
    anonymous: Person, host: ServedHost
) -> None:
    with Person(host.url) as other:
        token = other.token("/sign-in")

    answer = anonymous.http.post("/sign-in", data={"csrf": token, "key": ACME})

    assert answer.status_code == 403
    assert not is_signed_in(anonymous)


def test_signing_out_ends_the_session_permanently(acme: Person, host: ServedHost) -> None:
    kept = acme.cookie

    answer = acme.post("/sign-out")

    assert answer.headers["location"] == "/sign-in"
    assert not is_signed_in(acme)
    with Person(host.url) as thief:
        thief.http.cookies.set("wopr_session", kept)
        assert not is_signed_in(thief)


@pytest.mark.sqlite("the test reads the table of stored responses")
def test_signing_in_and_out_stores_no_response_for_repeated_requests(
    new_host: NewHost, signed_in: SignedIn
) -> None:
    host = new_host()
    person = signed_in(at=host)
    person.http.headers["Idempotency-Key"] = "the same for both"

    person.post("/sign-out")
    person.sign_in(ACME)

    with closing(sqlite3.connect(host.data_dir / "wopr.db")) as database:
        assert database.execute("SELECT count(*) FROM answers").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM ended_sessions").fetchone() == (1,)


def test_a_link_cannot_sign_a_visitor_out(acme: Person) -> None:
    assert acme.get("/sign-out").status_code == 200
    assert is_signed_in(acme)


def test_a_session_survives_a_restart_and_an_ended_one_stays_ended(
    new_host: NewHost, signed_in: SignedIn
) -> None:
    host = new_host()
    staying, leaving = signed_in(at=host), signed_in(at=host)
    kept = leaving.cookie
    leaving.post("/sign-out")

    host.restart()

    with Person(host.url) as first, Person(host.url) as second:
        first.http.cookies.set("wopr_session", staying.cookie)
        second.http.cookies.set("wopr_session", kept)
        assert is_signed_in(first)
        assert not is_signed_in(second)


def test_a_modified_cookie_is_not_a_session(acme: Person, anonymous: Person) -> None:
    cookie = acme.cookie
    changed = cookie[:-3] + ("AAA" if not cookie.endswith("AAA") else "BBB")

    for value in (changed, "x", "", cookie[:20], "=" * 40):
        anonymous.http.cookies.set("wopr_session", value)
        assert not is_signed_in(anonymous)


def test_the_cookie_of_another_host_is_not_a_session(acme: Person, new_host: NewHost) -> None:
    with Person(new_host().url) as elsewhere:
        elsewhere.http.cookies.set("wopr_session", acme.cookie)

        assert not is_signed_in(elsewhere)


def test_revoking_a_key_ends_its_sessions(
    acme: Person, signed_in: SignedIn, host: ServedHost
) -> None:
    key = host.command("keys", "create", "--tenant", "acme", "--role", "viewer").strip()
    person = signed_in(key)
    name = person.page("/settings").text.partition("key_")[2][:16]

    answer = acme.post(f"/settings/keys/key_{name}/revoke")

    assert answer.headers["location"] == "/settings?done=revoked"
    gone = person.get("/runs")
    assert gone.headers["location"] == "/sign-in?next=/runs&ended=1"
    assert "ended" in person.get(gone.headers["location"]).text


@pytest.fixture
def soon_over(anonymous: Person, host: ServedHost) -> Person:
    """Sign in with a key that expires soon; later on a busy machine."""
    made = ("keys", "create", "--tenant", "acme", "--role", "viewer", "--expires")
    for life in ("3s", "6s", "12s", "24s"):
        if anonymous.sign_in(host.command(*made, life).strip()).status_code == 303:
            return anonymous
    raise AssertionError("the key has expired before anybody could sign in with it")


def test_the_expiry_of_a_key_ends_its_sessions(soon_over: Person) -> None:
    eventually(lambda: not is_signed_in(soon_over))


def test_too_many_wrong_keys_must_wait_and_a_valid_one_need_not(new_host: NewHost) -> None:
    with Person(new_host(WOPR_FAILED_AUTH_LIMIT="3").url) as person:
        answers = [person.sign_in("wrong").status_code for _ in range(3)]

        refused = person.sign_in("wrong")

        assert answers == [401] * 3
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert not is_signed_in(person)
        assert person.sign_in(ACME).status_code == 303
        assert is_signed_in(person)


def test_behind_tls_the_cookie_is_sent_over_tls_only(new_host: NewHost) -> None:
    host = new_host(WOPR_PUBLIC_URL="https://wopr.example.com")

    with Person(host.url) as person:
        visitor = person.get("/sign-in").headers["set-cookie"]
        # Over plain HTTP the client stores no such cookie, so the test sends it.
        headers = {"cookie": visitor.partition(";")[0]}
        page = Markup(person.get("/sign-in", headers=headers).text)
        form = {"csrf": page.all("input", name="csrf")[0]["value"], "key": ACME}
        answer = person.http.post("/sign-in", data=form, headers=headers)

    assert answer.status_code == 303
    assert "; Secure" in visitor
    assert "; Secure" in answer.headers["set-cookie"]


def test_a_host_can_run_without_the_console(new_host: NewHost) -> None:
    with Person(new_host(WOPR_CONSOLE="0").url) as person:
        for path in ("/", "/runs", "/sign-in"):
            answer = person.get(path)
            assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


def test_a_script_with_an_ended_session_gets_an_error_and_no_redirect(
    anonymous: Person,
) -> None:
    answer = anonymous.get("/runs", headers={"accept": "text/event-stream"})

    assert answer.status_code == 401


def test_a_link_from_another_site_works_after_one_extra_step(
    anonymous: Person,
) -> None:
    answer = anonymous.get("/runs?tag=x", headers={"sec-fetch-site": "cross-site"})

    assert answer.status_code == 200
    assert '<meta http-equiv="refresh" content="0">' in answer.text


def test_a_form_sent_after_the_end_of_the_session_returns_to_its_page(
    anonymous: Person,
) -> None:
    answer = anonymous.http.post(
        "/runs/x/cancel", data={}, headers={"referer": "http://127.0.0.1/runs/x?done=paused"}
    )

    assert answer.headers["location"] == "/sign-in?next=/runs/x"


def test_signing_in_and_out_is_in_the_audit_log(signed_in: SignedIn, wire: Wire) -> None:
    person = signed_in(VIEWER)
    person.post("/sign-out")

    entries = wire.document("/v1/audit", params={"limit": 50})["items"]

    done = {(entry["action"], entry["principal"]) for entry in entries}
    assert {
        ("console.signIn", principal_of(VIEWER)),
        ("console.signOut", principal_of(VIEWER)),
    } <= done


def test_the_chosen_theme_is_kept(acme: Person) -> None:
    answer = acme.post("/theme", theme="dark", next="/runs")

    assert answer.headers["location"] == "/runs"
    assert '<html lang="en" data-theme="dark">' in acme.get("/runs").text


def test_a_script_can_send_the_token_in_a_header(acme: Person) -> None:
    answer = acme.http.post(
        "/theme", data={"theme": "light"}, headers={"x-csrf-token": acme.token()}
    )

    assert answer.status_code == 303


@pytest.mark.parametrize("value", ['"a\\015\\012x: y"', '"a\\073 Domain=evil"', "é" * 22, "short"])
def test_an_unknown_visitor_cookie_is_not_sent_back(anonymous: Person, value: str) -> None:
    headers = [(b"cookie", f"wopr_visitor={value}".encode("latin-1"))]

    answer = anonymous.http.get("/sign-in", headers=headers)

    assert answer.status_code == 200
    given = answer.headers["set-cookie"].partition(";")[0]
    assert re.fullmatch(r"wopr_visitor=[\w-]{22}", given)
    assert "x" not in answer.headers
