from __future__ import annotations

import httpx
import pytest

from tests.console.client import Markup, Person, plain
from tests.console.conftest import SignedIn
from tests.console.samples import (
    FORMS,
    LEADS_ON,
    MARKUP_PROBES,
    PROBE,
    PROBES,
    SAMPLES,
    SENT,
    SHOWN,
    WORDLESS,
    Belongings,
    Sample,
)
from tests.wire.client import Wire
from tests.wire.host import ROLES
from wopr.console.app import API_PREFIXES
from wopr.console.pages import PAGES
from wopr.http.app import OPERATIONS
from wopr.security.keys import scopes_of


def by_name(sample: Sample) -> str:
    return sample.page.name


def needed(sample: Sample) -> str:
    """The scope that sending the form takes; empty when none does."""
    return sample.page.post_scope or sample.page.scope or ""


LACKING = [
    (sample, role)
    for sample in SENT
    for role in ROLES
    if needed(sample) and needed(sample) not in scopes_of(role)
]
CLOSED = [s for s in SAMPLES if s.page.scope is not None]
BY_ID = [s for s in SAMPLES if "{" in s.path and s.page.name != "live"]


def test_every_form_of_the_console_is_in_the_table() -> None:
    assert {page.name for page in PAGES if page.post is not None} == FORMS.keys()


def test_every_page_has_a_name_and_a_path_of_its_own() -> None:
    assert len({page.name for page in PAGES}) == len(PAGES)
    assert len({page.path for page in PAGES}) == len(PAGES)


def test_no_page_is_in_the_way_of_the_api() -> None:
    pages = [page.path for page in PAGES]

    assert not [path for path in pages if path.startswith(API_PREFIXES)]
    assert not {operation.path for operation in OPERATIONS} & set(pages)


@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_a_page_is_all_our_own_and_holds_no_script_or_style_of_its_own(
    acme: Person, acme_s: Belongings, sample: Sample
) -> None:
    answer = acme.get(sample.filled(acme_s.probes))

    _is_safe(answer)


def _is_safe(answer: httpx.Response) -> None:
    """Nothing of a page can run but the files that this host serves."""
    assert answer.status_code == 200, answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    markup = Markup(answer.text)
    assert all(found.get("src", "").startswith("/static/") for found in markup.all("script"))
    assert not [tag for tag, _ in markup.elements if tag in ("style", "iframe", "object", "img")]
    for _, attributes in markup.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("href", "src", "action"):
            assert attributes.get(name, "/").startswith(("/", "?", "#")), attributes


@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_a_page_without_its_frame_is_as_safe(
    acme: Person, acme_s: Belongings, sample: Sample
) -> None:
    answer = acme.get(sample.filled(acme_s.probes), headers={"x-part": "1"})

    _is_safe(answer)
    assert "<html" not in answer.text


@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_somebody_else_s_words_stay_words(acme: Person, acme_s: Belongings, sample: Sample) -> None:
    answer = acme.get(sample.probed(acme_s.probes))

    markup = Markup(answer.text)
    shown = markup.text + " ".join(v for _, found in markup.elements for v in found.values())
    seen = [probe for probe in PROBES if probe in shown]
    assert bool(seen) == (sample.page.name not in WORDLESS)
    assert not [probe for probe in MARKUP_PROBES if probe in answer.text]


def test_a_run_s_page_shows_every_probe_as_text(acme: Person, acme_s: Belongings) -> None:
    markup = acme.page(f"/runs/{acme_s.probed}")

    # In the story, in the title of the wait, in a correction, in the description of a node.
    assert markup.text.count(PROBE) >= 4
    assert PROBES[0] not in acme.get(f"/runs/{acme_s.probed}").text


def test_markdown_is_served_as_text_that_no_browser_takes_for_markup(
    acme: Person, acme_s: Belongings
) -> None:
    answer = acme.get(f"/runs/{acme_s.probed}.md")

    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("sample", CLOSED, ids=by_name)
def test_without_a_session_a_page_leads_to_the_sign_in_page_and_back(
    anonymous: Person, acme_s: Belongings, sample: Sample
) -> None:
    answer = anonymous.get(sample.filled(acme_s.real))

    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in?next=/")
    assert answer.text == ""


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_a_page_is_for_those_who_hold_its_scope(
    signed_in: SignedIn, acme_s: Belongings, sample: Sample, role: str
) -> None:
    person = signed_in(ROLES[role])
    scope = sample.page.scope

    answer = person.get(sample.filled(acme_s.real))

    is_allowed = not scope or scope in scopes_of(role)
    # A fork shows what is in the run, so it needs that scope too.
    if sample.page.name == "fork":
        is_allowed = is_allowed and "runs:read" in scopes_of(role)
    expected = 303 if sample.page.name in LEADS_ON else 200
    assert answer.status_code == (expected if is_allowed else 403)
    if not is_allowed:
        assert str(scope) in answer.text


@pytest.mark.parametrize(
    ("sample", "role"), LACKING, ids=[f"{sample.page.name}-{role}" for sample, role in LACKING]
)
def test_a_form_is_taken_from_nobody_who_lacks_its_scope(
    signed_in: SignedIn, acme_s: Belongings, wire: Wire, sample: Sample, role: str
) -> None:
    person = signed_in(ROLES[role])

    answer = person.post(sample.filled(acme_s.real), **sample.form)

    assert answer.status_code == 403
    assert needed(sample) in answer.text
    assert wire.snapshot(acme_s.waiting)["status"] == "waiting-approval"


@pytest.mark.parametrize("sample", SENT, ids=by_name)
def test_a_form_without_its_token_is_refused_and_changes_nothing(
    acme: Person, acme_s: Belongings, wire: Wire, sample: Sample
) -> None:
    answer = acme.http.post(sample.filled(acme_s.real), data=sample.form)

    assert answer.status_code == 403
    assert wire.snapshot(acme_s.run_id)["status"] == "running"
    assert wire.snapshot(acme_s.waiting)["status"] == "waiting-approval"
    assert acme.get("/settings").status_code == 200


@pytest.mark.parametrize("sample", SENT, ids=by_name)
def test_the_token_of_another_session_is_refused(
    acme: Person, globex: Person, acme_s: Belongings, sample: Sample
) -> None:
    answer = acme.post(sample.filled(acme_s.real), token=globex.token(), **sample.form)

    assert answer.status_code == 403


@pytest.mark.parametrize("sample", SENT, ids=by_name)
def test_what_is_no_form_is_refused(acme: Person, acme_s: Belongings, sample: Sample) -> None:
    answer = acme.http.post(sample.filled(acme_s.real), json={"csrf": acme.token()})

    assert answer.status_code in (403, 415)


@pytest.mark.parametrize("sample", BY_ID, ids=by_name)
def test_another_tenant_s_thing_looks_to_the_letter_like_one_that_is_not_there(
    globex: Person, acme_s: Belongings, sample: Sample
) -> None:
    foreign = plain(globex.get(sample.filled(acme_s.real)), acme_s.real)
    missing = plain(globex.get(sample.filled(acme_s.missing)), acme_s.missing)

    assert foreign == missing
    assert foreign[0] == 404


@pytest.mark.parametrize("sample", [s for s in SENT if "{" in s.path], ids=by_name)
def test_another_tenant_s_thing_takes_no_form(
    globex: Person, acme_s: Belongings, wire: Wire, sample: Sample
) -> None:
    path = sample.filled(acme_s.real).partition("?")[0]

    answer = globex.post(path, **sample.form)

    assert answer.status_code == 404
    assert wire.snapshot(acme_s.run_id)["status"] == "running"


@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_no_page_of_one_tenant_shows_anything_of_another(
    globex: Person, acme_s: Belongings, globex_s: Belongings, sample: Sample
) -> None:
    answer = globex.get(sample.filled(globex_s.real))

    assert answer.status_code == (303 if sample.page.name in LEADS_ON else 200)
    assert not [mark for mark in acme_s.marks() if mark in answer.text]


def test_a_page_that_is_not_there_says_so_to_those_who_are_signed_in(acme: Person) -> None:
    answer = acme.get("/nowhere", headers={"accept": "text/html"})

    assert answer.status_code == 404
    assert "There is nothing here" in answer.text
    assert "Settings" in answer.text


@pytest.mark.parametrize(
    ("path", "accept"),
    [("/v1/nowhere", "text/html"), ("/healthz/x", "text/html"), ("/v2/runs", "*/*")],
)
def test_a_path_that_is_not_there_and_not_for_people_is_the_api_s(
    anonymous: Person, path: str, accept: str
) -> None:
    answer = anonymous.get(path, headers={"accept": accept})

    assert answer.status_code == 404
    assert answer.json()["error"] == "not_found"
