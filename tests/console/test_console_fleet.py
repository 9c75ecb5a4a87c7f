"""The fleet's pages: agents, audits, one agent, one run, observed runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.console.conftest import SignedIn
from tests.console.samples import PROBE, PROBES, TenantData
from tests.support.agent_definitions import MOCK_AGENT
from tests.support.client import Wire
from tests.support.console import Markup, Person
from tests.support.definitions import fresh, node, workflow
from tests.support.eventually import eventually
from tests.support.host import ACME, OPERATOR, VIEWER, ServedHost
from tests.support.kahn import ASKS, KahnRun, push, push_run, stored_lines
from tests.support.kahn_lines import line
from wopr.kahn.timestamps import write_ts
from wopr.protocol.documents import UNSET, Unset

WINDOWED = ("/fleet", "/fleet/audits", "/fleet/agents/{fleet_agent_id}")
TABLE_ROW = re.compile(r"<tr[ >].*?</tr>", re.DOTALL)


def ended(agent_id: str, outcome: str, hours: float, score: float | Unset = UNSET) -> list[bytes]:
    """Return a run that ended so many hours ago."""
    story = KahnRun(agent_id, write_ts(datetime.now(UTC) - timedelta(hours=hours)))
    end = story.end(outcome, total_duration_s=2.0, convergence_score=score)
    return [story.start(), end]


def rows(person: Person, path: str) -> list[str]:
    """Return the rows of the page's table without its header."""
    return TABLE_ROW.findall(person.get(path).text)[1:]


def row(person: Person, path: str, word: str) -> str:
    [found] = [each for each in rows(person, path) if word in each]
    return found


@pytest.fixture
def new(new_host: Callable[..., ServedHost]) -> Iterator[Wire]:
    """Start a host with its own fleet: a busy agent, one that regressed, one that waits."""
    with Wire(new_host().url, ACME) as wire:
        for hours in range(1, 5):
            push(wire, *ended("busy", "converged", hours, 1.0))
        push(wire, *ended("fallen", "converged", 3, 1.0))
        push(wire, *ended("fallen", "partial", 2, 0.5))
        story = KahnRun("asking")
        push(wire, story.start(), story.move(0, *ASKS))
        yield wire


@pytest.fixture
def person(new: Wire) -> Iterator[Person]:
    """Sign in a person who views that fleet."""
    with Person(str(new.http.base_url)) as found:
        found.sign_in(ACME)
        yield found


# Agents


def test_rows_are_sorted_by_urgency_unless_another_order_is_chosen(
    person: Person,
) -> None:
    def order(path: str) -> list[str]:
        return [re.findall("busy|fallen|asking", each)[0] for each in rows(person, path)]

    assert order("/fleet") == ["fallen", "asking", "busy"]
    assert order("/fleet?sort=runs") == ["busy", "fallen", "asking"]


def test_bars_of_all_rows_have_the_same_scale(person: Person) -> None:
    found = {
        name: re.findall(r'<rect class="(\w+)" x="([\d.]+)%" width="([\d.]+)%"', each)
        for name in ("busy", "fallen", "asking")
        for each in [row(person, "/fleet", f">{name}<")]
    }

    assert found == {
        "busy": [("good", "0", "100")],
        "fallen": [("good", "0", "25"), ("waiting", "25", "25")],
        "asking": [("quiet", "0", "25")],
    }


def test_a_bar_has_a_text_description(person: Person) -> None:
    markup = Markup(row(person, "/fleet", ">fallen<"))

    labels = [found["aria-label"] for found in markup.all("svg")]
    assert labels == [
        "2 runs: 1 converged, 1 partial",
        "convergence scores of the last 2 runs with a score, from 0 to 1: lowest 0.50, last 0.50",
    ]
    words = " ".join(markup.text.split())
    assert "fallen regressed" in words
    assert "1 of 2" in words
    assert "2.00 s 2.00 s 0.75" in words
    assert "1 001" in words


def test_an_agent_that_waits_in_another_system_links_to_its_run(person: Person) -> None:
    found = Markup(row(person, "/fleet", ">asking<"))

    assert "answered in the other system" in found.text
    assert [link for link in found.links if link.startswith("/fleet/runs/")]


def test_a_waiting_agent_is_shown_even_without_a_run_in_the_window(
    acme: Person, wire: Wire
) -> None:
    story = KahnRun(fresh("agent"), write_ts(datetime.now(UTC) - timedelta(days=9)))
    push(wire, story.start(), story.move(0, *ASKS))

    text = acme.page("/fleet").text

    assert "No runs in the last 7 days, but waiting for an answer" in text
    assert story.agent_id in text
    assert not [each for each in rows(acme, "/fleet") if story.agent_id in each]


def test_a_waiting_agent_of_this_host_links_to_the_answer_form(acme: Person, wire: Wire) -> None:
    agent_id = fresh("core.conformance.agent")
    unsure = {"mockDecision": {"decision": {"say": "yes"}, "confidence": 0.1}}
    ref = {"agentId": agent_id, "modelClass": "reasoning"}
    definition = workflow(
        [node("decide", MOCK_AGENT, config=unsure, agent=ref)], id=fresh("conformance-unsure")
    )
    run_id = wire.create(wire.register(definition))
    eventually(lambda: b"blocked-on" in b"".join(stored_lines(wire, run_id)))

    found = Markup(row(acme, "/fleet", agent_id.replace(".", ":")))

    assert {f"/inbox?runId={run_id}", f"/runs/{run_id}"} & set(found.links)
    assert "observed" not in acme.get(f"/fleet/runs/{run_id}").text
    assert f"/fleet/runs/{run_id}" in acme.page(f"/runs/{run_id}").links


@pytest.mark.parametrize("path", WINDOWED)
@pytest.mark.parametrize("window", ["30d", "24H", "<script>"])
def test_an_unknown_window_is_an_error_page_that_names_the_valid_ones(
    acme: Person, acme_data: TenantData, path: str, window: str
) -> None:
    answer = acme.get(path.format(**acme_data.real), params={"window": window})

    assert answer.status_code == 400
    assert "window must be one of 24h, 7d, all" in answer.text
    assert "<script>" not in answer.text.partition("<body>")[2]


@pytest.mark.parametrize("path", WINDOWED)
def test_windows_are_links_and_the_current_one_is_marked(
    acme: Person, acme_data: TenantData, path: str
) -> None:
    markup = acme.page(path.format(**acme_data.real) + "?window=24h")

    links = {found["href"]: "aria-current" in found for found in markup.all("a")}
    assert [links[f"?window={name}"] for name in ("24h", "7d", "all")] == [True, False, False]


def test_an_unknown_order_is_refused_with_the_valid_ones(acme: Person) -> None:
    answer = acme.get("/fleet?sort=name")

    assert answer.status_code == 400
    assert "sort must be one of runs, severity" in answer.text


def test_an_unchanged_fleet_is_not_sent_again(person: Person, new: Wire) -> None:
    first = person.get("/fleet/audits", headers={"x-part": "1"})
    known = {"x-part": "1", "if-none-match": first.headers["etag"]}

    same = person.get("/fleet/audits", headers=known)
    story = KahnRun("checker")
    push(new, story.start(), story.check())
    other = person.get("/fleet/audits", headers=known)

    assert (same.status_code, same.text) == (304, "")
    assert other.status_code == 200


# Audits


def test_a_checkpoint_shows_its_uncertainty_and_its_last_failure(acme: Person, wire: Wire) -> None:
    checkpoint = fresh("check")
    story = KahnRun(fresh("agent"))
    push(
        wire,
        story.start(),
        *(story.check(checkpoint_id=checkpoint, result=result) for result in ("pass", "fail")),
        story.check(checkpoint_id=checkpoint, result="warn", duration_s=9.0),
    )

    found = row(acme, "/fleet/audits", checkpoint)

    labels = [svg["aria-label"] for svg in Markup(found).all("svg")]
    assert labels == ["flakiness 1.00 of 1", "3 results: 1 pass, 1 fail, 1 warn"]
    assert f"/fleet/runs/{story.run_id}" in Markup(found).links


# One agent


def test_an_agent_s_page_has_its_runs_its_trend_and_its_feedback(acme: Person, wire: Wire) -> None:
    agent_id = fresh("agent")
    good, bad = ended(agent_id, "converged", 3, 1.0), ended(agent_id, "aborted", 2)
    push_run(wire, *good)
    run_id = push_run(wire, *bad)
    for signal in ({"kind": "rating", "rating": 2}, {"kind": "flag"}):
        event = {"eventId": wire.log(run_id)[1]["eventId"]}
        wire.post(f"/v1/runs/{run_id}/annotations", {"signal": signal, "target": event})

    markup = acme.page(f"/fleet/agents/{agent_id}")

    assert len(rows(acme, f"/fleet/agents/{agent_id}")) == 2
    titles = [found["aria-label"] for found in markup.all("a") if "aria-label" in found]
    assert [title.partition(": ")[2] for title in titles[-2:]] == [
        "converged, score 1.00, 2.00 s",
        "aborted, no score, 2.00 s",
    ]
    words = " ".join(markup.text.split())
    assert "2.0 of 5 from 1" in words
    assert "Flags1" in words
    assert f"/runs/{run_id}#feedback" in markup.links


def test_older_runs_of_an_agent_are_on_the_next_page(acme: Person, wire: Wire) -> None:
    agent_id = fresh("agent")
    runs = [each for hours in range(45) for each in ended(agent_id, "converged", hours / 10)]
    push(wire, *runs)
    first = acme.page(f"/fleet/agents/{agent_id}?window=24h")

    [following] = [found["href"] for found in first.all("a", rel="next")]

    assert "window=24h" in following
    assert len(rows(acme, f"/fleet/agents/{agent_id}")) == 40
    assert len(rows(acme, f"/fleet/agents/{agent_id}{following}")) == 5


# One run


def test_a_run_s_page_shows_its_lines_and_links_to_the_run(acme: Person, wire: Wire) -> None:
    story = KahnRun(fresh("agent"))
    run_id = push_run(wire, *story.whole())

    markup = acme.page(f"/fleet/runs/{story.run_id}")

    assert f"/runs/{run_id}" in markup.links
    assert f"/fleet/agents/{story.agent_id}" in markup.links
    words = " ".join(markup.text.split())
    assert "thinking → tool_call" in words
    assert "policy:licence warn" in words
    assert "ended converged" in words
    assert '"own": "ü 1"' in words


def test_the_run_of_a_graph_is_shown(acme: Person, wire: Wire) -> None:
    run_id = fresh("graph")
    variants = ("run_start", "node_transition", "node_attempt", "run_end")
    push(wire, *(line(name, run_id=run_id, ts=KahnRun().ts) for name in variants))

    words = " ".join(acme.page(f"/fleet/runs/{run_id}").text.split())

    assert "3 nodes to run" in words
    assert "attempt 2 did not converge" in words
    assert "make: no rule" in words
    assert "ended stuck" in words


def test_a_long_run_is_paginated(acme: Person, wire: Wire) -> None:
    story = KahnRun(fresh("agent"))
    push(
        wire,
        story.start(),
        *(story.move(step, "reflect", "thinking") for step in range(450)),
    )
    first = acme.page(f"/fleet/runs/{story.run_id}")

    rest = acme.page(f"/fleet/runs/{story.run_id}?line=400")

    assert "?line=400#steps" in first.links
    assert "too many for a" in first.text
    assert len(rest.all("a", **{"class": "seq"})) == 51
    assert "?line=0#steps" in rest.links


def test_text_of_producers_is_escaped(acme: Person, acme_data: TenantData) -> None:
    story = acme_data.story
    pages = [
        acme.get(path).text
        for path in (
            f"/fleet/agents/{story.agent_id}",
            f"/fleet/runs/{story.run_id}",
            f"/runs/{acme_data.observed}",
            f"/runs/{acme_data.observed}/nodes/{story.agent_id}",
        )
    ]

    assert not [page for page in pages if PROBES[0] in page]
    assert all(PROBE in Markup(page).text for page in pages[:2])
    assert Markup(pages[1]).text.count(PROBE) >= 6


# Observed runs in the run list


def test_an_observed_run_is_marked_and_offers_no_impossible_action(
    acme: Person, acme_data: TenantData
) -> None:
    markup = acme.page(f"/runs/{acme_data.observed}")

    offered = [link.rpartition("/")[2].partition("?")[0] for link in markup.links]
    assert not {"cancel", "pause", "resume", "fork"} & set(offered)
    assert f"/fleet/runs/{acme_data.story.run_id}" in markup.links
    words = " ".join(markup.text.split())
    assert "Only the other system can control it" in words
    assert f"{acme_data.story.agent_id} is waiting for an answer there" in words
    assert "observed" in row(acme, "/runs?workflowId=kahn.observed", acme_data.observed)


def test_an_observed_run_s_page_has_events_nodes_and_files(
    acme: Person, acme_data: TenantData
) -> None:
    base = f"/runs/{acme_data.observed}"

    answers = {
        path: acme.get(base + path).status_code
        for path in (
            "/events/1",
            f"/nodes/{acme_data.story.agent_id}",
            "/feedback",
            ".md",
            "/bundle",
        )
    }

    assert set(answers.values()) == {200}
    assert "Fork from here" not in acme.get(f"{base}/events/1").text


@pytest.mark.parametrize(
    ("action", "form"),
    [
        ("cancel", {}),
        ("pause", {"drainPolicy": "immediate"}),
        ("resume", {}),
        ("fork", {"mode": "branch", "from": "1"}),
    ],
)
def test_an_attempt_to_control_an_observed_run_is_refused_with_the_reason(
    acme: Person, acme_data: TenantData, action: str, form: dict[str, str]
) -> None:
    path = f"/runs/{acme_data.observed}/{action}"

    asked, sent = acme.get(path), acme.post(path, **form)

    assert (asked.status_code, sent.status_code) == (409, 409)
    assert "observed and is not executed by this host" in sent.text


def test_an_observed_run_can_be_annotated(acme: Person, wire: Wire) -> None:
    story = KahnRun(fresh("agent"))
    run_id = push_run(wire, *story.whole())

    answer = acme.post(f"/runs/{run_id}/feedback", kind="flag", nodeId=story.agent_id)

    assert answer.status_code == 303
    assert "⚑" in row(acme, f"/fleet/agents/{story.agent_id}", story.run_id)


# Roles


@pytest.mark.parametrize("key", [VIEWER, OPERATOR])
def test_without_the_right_to_push_the_demo_is_not_offered(
    new_host: Callable[..., ServedHost], signed_in: SignedIn, key: str
) -> None:
    person = signed_in(key, new_host())

    markup = person.page("/fleet")

    assert not [form for form in markup.all("form") if form["action"] == "/fleet/demo"]
    assert "fleet:ingest" in markup.text
    assert person.post("/fleet/demo", do="load").status_code == 403


def test_a_large_fleet_is_paginated(
    new_host: Callable[..., ServedHost],
) -> None:
    host = new_host()
    with Wire(host.url, ACME) as wire, Person(host.url) as person:
        push(wire, *(KahnRun(f"agent-{number}").start() for number in range(250)))
        push(wire, *(KahnRun().check(checkpoint_id=f"check:{n}") for n in range(250)))
        person.sign_in(ACME)

        pages = [rows(person, path) for path in ("/fleet", "/fleet?start=200")]
        audits = [rows(person, path) for path in ("/fleet/audits", "/fleet/audits?start=200")]

        assert [len(page) for page in pages] == [200, 50]
        assert [len(page) for page in audits] == [200, 50]
        assert "?start=200" in person.page("/fleet").links
        assert "?start=400" not in person.page("/fleet?start=200").links
