from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

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
    Sample,
    TenantData,
)
from tests.support.client import Wire
from tests.support.console import Markup, Person, plain
from tests.support.host import ACME, GLOBEX, ROLES, ServedHost
from wopr.console.app import API_PREFIXES, pages
from wopr.http.app import OPERATIONS
from wopr.security.api_keys import scopes_of


def by_name(sample: Sample) -> str:
    return sample.page.name


def needed(sample: Sample) -> str:
    """Return the scope that the form requires; empty when none."""
    return sample.page.post_scope or sample.page.scope or ""


LACKING = [
    (sample, role)
    for sample in SENT
    for role in ROLES
    if needed(sample) and needed(sample) not in scopes_of(role)
]
CLOSED = [s for s in SAMPLES if s.page.scope is not None]
BY_ID = [s for s in SAMPLES if "{" in s.path and s.page.name != "live"]
NAMES = """
    agent agents answer-many artifact bundle cancel compare create-key create-queue
    event feedback find-judge fleet fleet-agent fleet-audits fleet-demo fleet-run
    fleet-runs fork inbox inbox-count judge keys live manifest markdown next-item node
    pause queue resume review-item reviews revoke-key run runs settings signIn signOut
    start start-run theme usage wait workflow workflow-node workflow-source workflows
"""


@pytest.fixture(scope="module")
def people(host: ServedHost) -> Iterator[dict[str, Person]]:
    """Sign in with each key once: no test of this module ends or changes a session."""
    with ExitStack() as opened:
        keys = (GLOBEX, *ROLES.values())
        found = {key: opened.enter_context(Person(host.url)) for key in keys}
        assert {person.sign_in(key).status_code for key, person in found.items()} == {303}
        yield found


@pytest.fixture(scope="module")
def acme(people: dict[str, Person]) -> Person:
    return people[ACME]


@pytest.fixture(scope="module")
def globex(people: dict[str, Person]) -> Person:
    return people[GLOBEX]


def test_every_form_of_the_console_is_in_the_table() -> None:
    assert {page.name for page in pages() if page.post is not None} == FORMS.keys()


def test_every_page_has_a_unique_name_and_path() -> None:
    assert len({page.name for page in pages()}) == len(pages())
    assert len({page.path for page in pages()}) == len(pages())


def test_pages_keep_the_names_that_metrics_and_the_audit_log_have() -> None:
    assert {page.name for page in pages()} == set(NAMES.split())


def test_no_page_hides_an_api_route() -> None:
    paths = [page.path for page in pages()]

    assert not [path for path in paths if path.startswith(API_PREFIXES)]
    assert not {operation.path for operation in OPERATIONS} & set(paths)


@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_a_page_loads_only_own_resources_and_has_no_inline_script_or_style(
    acme: Person, acme_data: TenantData, sample: Sample
) -> None:
    answer = acme.get(sample.filled(acme_data.probes))

    _is_safe(answer)


def _is_safe(answer: httpx.Response) -> None:
    """Check that a page can run only the files that this host serves."""
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
def test_a_page_without_its_layout_is_equally_safe(
    acme: Person, acme_data: TenantData, sample: Sample
) -> None:
    answer = acme.get(sample.filled(acme_data.probes), headers={"x-part": "1"})

    _is_safe(answer)
    assert "<html" not in answer.text


@pytest.mark.parametrize("sample", SHOWN, ids=by_name)
def test_text_from_others_is_escaped(acme: Person, acme_data: TenantData, sample: Sample) -> None:
    answer = acme.get(sample.probed(acme_data.probes))

    markup = Markup(answer.text)
    shown = markup.text + " ".join(v for _, found in markup.elements for v in found.values())
    seen = [probe for probe in PROBES if probe in shown]
    assert bool(seen) == (sample.page.name not in WORDLESS)
    assert not [probe for probe in MARKUP_PROBES if probe in answer.text]


def test_a_run_s_page_shows_every_injected_markup_as_text(
    acme: Person, acme_data: TenantData
) -> None:
    markup = acme.page(f"/runs/{acme_data.probed}")

    # In the event list, in the title of the wait, in a correction, in the description of a node.
    assert markup.text.count(PROBE) >= 4
    assert PROBES[0] not in acme.get(f"/runs/{acme_data.probed}").text


def test_markdown_is_served_as_text_that_no_browser_renders(
    acme: Person, acme_data: TenantData
) -> None:
    answer = acme.get(f"/runs/{acme_data.probed}.md")

    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("sample", CLOSED, ids=by_name)
def test_without_a_session_a_page_redirects_to_sign_in_and_back(
    anonymous: Person, acme_data: TenantData, sample: Sample
) -> None:
    answer = anonymous.get(sample.filled(acme_data.real))

    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in?next=/")
    assert answer.text == ""


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_a_page_requires_its_scope(
    people: dict[str, Person], acme_data: TenantData, sample: Sample, role: str
) -> None:
    scope = sample.page.scope

    answer = people[ROLES[role]].get(sample.filled(acme_data.real))

    is_allowed = not scope or scope in scopes_of(role)
    # A fork shows data of the run, so it needs that scope too.
    if sample.page.name == "fork":
        is_allowed = is_allowed and "runs:read" in scopes_of(role)
    expected = 303 if sample.page.name in LEADS_ON else 200
    assert answer.status_code == (expected if is_allowed else 403)
    if not is_allowed:
        assert str(scope) in answer.text


@pytest.mark.parametrize(
    ("sample", "role"), LACKING, ids=[f"{sample.page.name}-{role}" for sample, role in LACKING]
)
def test_a_form_requires_its_scope(
    people: dict[str, Person], acme_data: TenantData, wire: Wire, sample: Sample, role: str
) -> None:
    answer = people[ROLES[role]].post(sample.filled(acme_data.real), **sample.form)

    assert answer.status_code == 403
    assert needed(sample) in answer.text
    assert wire.snapshot(acme_data.waiting)["status"] == "waiting-approval"


@pytest.mark.parametrize("sample", SENT, ids=by_name)
def test_a_form_without_its_token_is_refused_and_changes_nothing(
    acme: Person, acme_data: TenantData, wire: Wire, sample: Sample
) -> None:
    answer = acme.http.post(sample.filled(acme_data.real), data=sample.form)

    assert answer.status_code == 403
    assert wire.snapshot(acme_data.run_id)["status"] == "running"
    assert wire.snapshot(acme_data.waiting)["status"] == "waiting-approval"
    assert acme.get("/settings").status_code == 200


@pytest.mark.parametrize("sample", SENT, ids=by_name)
def test_the_token_of_another_session_is_refused(
    acme: Person, globex: Person, acme_data: TenantData, sample: Sample
) -> None:
    answer = acme.post(sample.filled(acme_data.real), token=globex.token(), **sample.form)

    assert answer.status_code == 403


@pytest.mark.parametrize("sample", SENT, ids=by_name)
def test_a_body_that_is_not_a_form_is_refused(
    acme: Person, acme_data: TenantData, sample: Sample
) -> None:
    answer = acme.http.post(sample.filled(acme_data.real), json={"csrf": acme.token()})

    assert answer.status_code in (403, 415)


@pytest.mark.parametrize("sample", BY_ID, ids=by_name)
def test_another_tenant_s_resource_gives_the_same_page_as_a_missing_one(
    globex: Person, acme_data: TenantData, sample: Sample
) -> None:
    foreign = plain(globex.get(sample.filled(acme_data.real)), acme_data.real)
    missing = plain(globex.get(sample.filled(acme_data.missing)), acme_data.missing)

    assert foreign == missing
    assert foreign[0] == 404


@pytest.mark.parametrize("sample", [s for s in SENT if "{" in s.path], ids=by_name)
def test_another_tenant_s_resource_accepts_no_form(
    globex: Person, acme_data: TenantData, wire: Wire, sample: Sample
) -> None:
    path = sample.filled(acme_data.real).partition("?")[0]

    answer = globex.post(path, **sample.form)

    assert answer.status_code == 404
    assert wire.snapshot(acme_data.run_id)["status"] == "running"


@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_no_page_of_one_tenant_shows_data_of_another(
    globex: Person, acme_data: TenantData, globex_data: TenantData, sample: Sample
) -> None:
    answer = globex.get(sample.filled(globex_data.real))

    assert answer.status_code == (303 if sample.page.name in LEADS_ON else 200)
    assert not [mark for mark in acme_data.marks() if mark in answer.text]


def test_a_missing_page_is_reported_to_signed_in_visitors(acme: Person) -> None:
    answer = acme.get("/nowhere", headers={"accept": "text/html"})

    assert answer.status_code == 404
    assert "Not found" in answer.text
    assert "Settings" in answer.text


@pytest.mark.parametrize(
    ("path", "accept"),
    [("/v1/nowhere", "text/html"), ("/healthz/x", "text/html"), ("/v2/runs", "*/*")],
)
def test_a_missing_path_outside_the_console_gets_the_api_s_error(
    anonymous: Person, path: str, accept: str
) -> None:
    answer = anonymous.get(path, headers={"accept": accept})

    assert answer.status_code == 404
    assert answer.json()["error"] == "not_found"
