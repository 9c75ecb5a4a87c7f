"""The page that shows usage and quotas."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.support.console import Markup, Person
from tests.support.host import ACME, GLOBEX, INGEST, ServedHost

NewHost = Callable[..., ServedHost]


def test_the_usage_page_shows_the_visitor_s_own_tenant_with_bars(new_host: NewHost) -> None:
    host = new_host("--conformance")
    with Person(host.url) as person, Person(host.url) as other:
        person.sign_in(ACME)
        other.sign_in(GLOBEX)

        page, theirs = person.get("/settings/usage"), other.get("/settings/usage")
        settings = person.get("/settings")

    assert page.status_code == 200
    assert "Tenant acme" in page.text
    assert "activeRuns" in page.text
    assert "workflowVersions" in page.text
    assert "definitions, annotations" in page.text
    assert re.search(r'aria-label="0 of 10.?000"', page.text)
    assert "20\N{NARROW NO-BREAK SPACE}GiB" in page.text
    assert "Tenant globex" in theirs.text
    # Without attributes: a random form token may contain any four letters.
    assert "acme" not in Markup(theirs.text).text + str(Markup(theirs.text).links)
    assert 'href="/settings/usage"' in settings.text


def test_a_key_that_may_not_read_runs_sees_no_usage(new_host: NewHost) -> None:
    with Person(new_host().url) as person:
        person.sign_in(INGEST)

        assert person.get("/settings/usage").status_code == 403
