"""The fleet's pages as a person gets them: agents, audits, one agent, one run, observed runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.console.client import Markup, Person
from tests.console.conftest import SignedIn
from tests.console.samples import PROBE, PROBES, Belongings
from tests.fleet.builders import line
from tests.wire.agent_definitions import MOCK_AGENT
from tests.wire.client import Wire
from tests.wire.definitions import fresh, node, workflow
from tests.wire.fleet import ASKS, Story, eventually, held, push, pushed
from tests.wire.host import ACME, OPERATOR, VIEWER, ServedHost
from wopr.fleet.instants import write_ts
from wopr.protocol.documents import UNSET, Unset

WINDOWED = ("/fleet", "/fleet/audits", "/fleet/agents/{fleet_agent_id}")
TABLE_ROW = re.compile(r"<tr[ >].*?</tr>", re.DOTALL)


def ended(agent_id: str, outcome: str, hours: float, score: float | Unset = UNSET) -> list[bytes]:
    """A run that ended so many hours ago."""
    story = Story(agent_id, write_ts(datetime.now(UTC) - timedelta(hours=hours)))
    end = story.end(outcome, total_duration_s=2.0, convergence_score=score)
    return [story.start(), end]


def rows(person: Person, path: str) -> list[str]:
    """The rows of a page's table, without its head."""
    return TABLE_ROW.findall(person.get(path).text)[1:]


def row(person: Person, path: str, word: str) -> str:
    [found] = [each for each in rows(person, path) if word in each]
    return found


@pytest.fixture
def new(new_host: Callable[..., ServedHost]) -> Iterator[Wire]:
    """A host with a fleet of its own: one busy agent, one that fell back, one that waits."""
    with Wire(new_host().url, ACME) as wire:
        for hours in range(1, 5):
            push(wire, *ended("busy", "converged", hours, 1.0))
        push(wire, *ended("fallen", "converged", 3, 1.0))
        push(wire, *ended("fallen", "partial", 2, 0.5))
        story = Story("asking")
        push(wire, story.start(), story.move(0, *ASKS))
        yield wire


@pytest.fixture
def person(new: Wire) -> Iterator[Person]:
    """Somebody who looks at that fleet."""
    with Person(str(new.http.base_url)) as found:
        found.sign_in(ACME)
        yield found


# Agents


def test_who_needs_somebody_most_comes_first_unless_the_busiest_is_asked_for(
    person: Person,
) -> None:
    def order(path: str) -> list[str]:
        return [re.findall("busy|fallen|asking", each)[0] for each in rows(person, path)]

    assert order("/fleet") == ["fallen", "asking", "busy"]
    assert order("/fleet?sort=runs") == ["busy", "fallen", "asking"]


def test_bars_have_one_scale_for_all_rows(person: Person) -> None:
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


def test_a_row_says_in_words_what_it_draws(person: Person) -> None:
    markup = Markup(row(person, "/fleet", ">fallen<"))

    labels = [found["aria-label"] for found in markup.all("svg")]
    assert labels == [
        "2 runs: 1 converged, 1 partial",
        "convergence of the last 2 scored runs, from 0 to 1: lowest 0.50, last 0.50",
    ]
    words = " ".join(markup.text.split())
    assert "fallen regressed" in words
    assert "1 of 2" in words
    assert "2.00 s 2.00 s 0.75" in words
    assert "1 001" in words


def test_an_agent_that_waits_outside_leads_to_its_run(person: Person) -> None:
    found = Markup(row(person, "/fleet", ">asking<"))

    assert "answered outside" in found.text
    assert [link for link in found.links if link.startswith("/fleet/runs/")]


def test_one_that_waits_is_told_even_when_the_window_has_no_run_of_it(
    acme: Person, wire: Wire
) -> None:
    story = Story(fresh("agent"), write_ts(datetime.now(UTC) - timedelta(days=9)))
    push(wire, story.start(), story.move(0, *ASKS))

    text = acme.page("/fleet").text

    assert "Not at work in the last 7 days, but waiting" in text
    assert story.agent_id in text
    assert not [each for each in rows(acme, "/fleet") if story.agent_id in each]


def test_an_agent_of_the_host_s_own_that_waits_leads_to_where_it_can_be_answered(
    acme: Person, wire: Wire
) -> None:
    agent_id = fresh("core.conformance.agent")
    unsure = {"mockDecision": {"decision": {"say": "yes"}, "confidence": 0.1}}
    ref = {"agentId": agent_id, "modelClass": "reasoning"}
    definition = workflow(
        [node("decide", MOCK_AGENT, config=unsure, agent=ref)], id=fresh("conformance-unsure")
    )
    run_id = wire.create(wire.register(definition))
    eventually(lambda: b"blocked-on" in b"".join(held(wire, run_id)))

    found = Markup(row(acme, "/fleet", agent_id.replace(".", ":")))

    assert {f"/inbox?runId={run_id}", f"/runs/{run_id}"} & set(found.links)
    assert "observed" not in acme.get(f"/fleet/runs/{run_id}").text
    assert f"/fleet/runs/{run_id}" in acme.page(f"/runs/{run_id}").links


@pytest.mark.parametrize("path", WINDOWED)
@pytest.mark.parametrize("window", ["30d", "24H", "<script>"])
def test_another_window_is_a_page_that_names_those_there_are(
    acme: Person, acme_s: Belongings, path: str, window: str
) -> None:
    answer = acme.get(path.format(**acme_s.real), params={"window": window})

    assert answer.status_code == 400
    assert "window must be one of 24h, 7d, all" in answer.text
    assert "<script>" not in answer.text.partition("<body>")[2]


@pytest.mark.parametrize("path", WINDOWED)
def test_windows_are_links_and_the_current_one_is_marked(
    acme: Person, acme_s: Belongings, path: str
) -> None:
    markup = acme.page(path.format(**acme_s.real) + "?window=24h")

    links = {found["href"]: "aria-current" in found for found in markup.all("a")}
    assert [links[f"?window={name}"] for name in ("24h", "7d", "all")] == [True, False, False]


def test_another_order_is_refused_with_those_there_are(acme: Person) -> None:
    answer = acme.get("/fleet?sort=name")

    assert answer.status_code == 400
    assert "sort must be one of runs, severity" in answer.text


def test_a_script_is_spared_a_fleet_that_it_has(person: Person, new: Wire) -> None:
    first = person.get("/fleet/audits", headers={"x-part": "1"})
    known = {"x-part": "1", "if-none-match": first.headers["etag"]}

    same = person.get("/fleet/audits", headers=known)
    story = Story("checker")
    push(new, story.start(), story.check())
    other = person.get("/fleet/audits", headers=known)

    assert (same.status_code, same.text) == (304, "")
    assert other.status_code == 200


# Audits


def test_a_checkpoint_shows_how_undecided_it_is_and_where_it_failed_last(
    acme: Person, wire: Wire
) -> None:
    checkpoint = fresh("check")
    story = Story(fresh("agent"))
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


def test_an_agent_s_page_has_its_runs_its_trend_and_what_is_said_of_it(
    acme: Person, wire: Wire
) -> None:
    agent_id = fresh("agent")
    good, bad = ended(agent_id, "converged", 3, 1.0), ended(agent_id, "aborted", 2)
    pushed(wire, *good)
    run_id = pushed(wire, *bad)
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


def test_a_run_s_page_tells_its_lines_and_leads_to_the_run(acme: Person, wire: Wire) -> None:
    story = Story(fresh("agent"))
    run_id = pushed(wire, *story.whole())

    markup = acme.page(f"/fleet/runs/{story.run_id}")

    assert f"/runs/{run_id}" in markup.links
    assert f"/fleet/agents/{story.agent_id}" in markup.links
    words = " ".join(markup.text.split())
    assert "thinking → tool_call" in words
    assert "policy:licence warn" in words
    assert "ended converged" in words
    assert '"own": "ü 1"' in words


def test_a_graph_s_run_is_told_too(acme: Person, wire: Wire) -> None:
    run_id = fresh("graph")
    variants = ("run_start", "node_transition", "node_attempt", "run_end")
    push(wire, *(line(name, run_id=run_id, ts=Story().ts) for name in variants))

    words = " ".join(acme.page(f"/fleet/runs/{run_id}").text.split())

    assert "3 nodes to run" in words
    assert "attempt 2 did not converge" in words
    assert "make: no rule" in words
    assert "ended stuck" in words


def test_a_long_run_comes_in_pages(acme: Person, wire: Wire) -> None:
    story = Story(fresh("agent"))
    push(wire, story.start(), *(story.move(step, "reflect", "thinking") for step in range(450)))
    first = acme.page(f"/fleet/runs/{story.run_id}")

    rest = acme.page(f"/fleet/runs/{story.run_id}?line=400")

    assert "?line=400#steps" in first.links
    assert "too many to draw" in first.text
    assert len(rest.all("a", **{"class": "seq"})) == 51
    assert "?line=0#steps" in rest.links


def test_words_of_producers_stay_words(acme: Person, acme_s: Belongings) -> None:
    story = acme_s.story
    pages = [
        acme.get(path).text
        for path in (
            f"/fleet/agents/{story.agent_id}",
            f"/fleet/runs/{story.run_id}",
            f"/runs/{acme_s.observed}",
            f"/runs/{acme_s.observed}/nodes/{story.agent_id}",
        )
    ]

    assert not [page for page in pages if PROBES[0] in page]
    assert all(PROBE in Markup(page).text for page in pages[:2])
    assert Markup(pages[1]).text.count(PROBE) >= 6


# Observed runs among the others


def test_an_observed_run_is_marked_and_offers_nothing_that_cannot_be_done(
    acme: Person, acme_s: Belongings
) -> None:
    markup = acme.page(f"/runs/{acme_s.observed}")

    offered = [link.rpartition("/")[2].partition("?")[0] for link in markup.links]
    assert not {"cancel", "pause", "resume", "fork"} & set(offered)
    assert f"/fleet/runs/{acme_s.story.run_id}" in markup.links
    words = " ".join(markup.text.split())
    assert "only who runs it can move it" in words
    assert f"{acme_s.story.agent_id} waits for an answer there" in words
    assert "observed" in row(acme, "/runs?workflowId=kahn.observed", acme_s.observed)


def test_an_observed_run_s_events_nodes_and_files_are_there(
    acme: Person, acme_s: Belongings
) -> None:
    base = f"/runs/{acme_s.observed}"

    answers = {
        path: acme.get(base + path).status_code
        for path in ("/events/1", f"/nodes/{acme_s.story.agent_id}", "/feedback", ".md", "/bundle")
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
def test_whoever_tries_to_move_an_observed_run_is_told_why_not(
    acme: Person, acme_s: Belongings, action: str, form: dict[str, str]
) -> None:
    path = f"/runs/{acme_s.observed}/{action}"

    asked, sent = acme.get(path), acme.post(path, **form)

    assert (asked.status_code, sent.status_code) == (409, 409)
    assert "observed and is not run here" in sent.text


def test_an_observed_run_can_be_judged(acme: Person, wire: Wire) -> None:
    story = Story(fresh("agent"))
    run_id = pushed(wire, *story.whole())

    answer = acme.post(f"/runs/{run_id}/feedback", kind="flag", nodeId=story.agent_id)

    assert answer.status_code == 303
    assert "⚑" in row(acme, f"/fleet/agents/{story.agent_id}", story.run_id)


# Roles


@pytest.mark.parametrize("key", [VIEWER, OPERATOR])
def test_who_may_not_push_is_not_offered_the_demo(
    new_host: Callable[..., ServedHost], signed_in: SignedIn, key: str
) -> None:
    person = signed_in(key, new_host())

    markup = person.page("/fleet")

    assert not [form for form in markup.all("form") if form["action"] == "/fleet/demo"]
    assert "fleet:ingest" in markup.text
    assert person.post("/fleet/demo", do="load").status_code == 403


def test_a_page_shows_some_agents_of_a_large_fleet_and_leads_to_the_next(
    new_host: Callable[..., ServedHost],
) -> None:
    host = new_host()
    with Wire(host.url, ACME) as wire, Person(host.url) as person:
        push(wire, *(Story(f"agent-{number}").start() for number in range(250)))
        push(wire, *(Story().check(checkpoint_id=f"check:{n}") for n in range(250)))
        person.sign_in(ACME)

        pages = [rows(person, path) for path in ("/fleet", "/fleet?start=200")]
        audits = [rows(person, path) for path in ("/fleet/audits", "/fleet/audits?start=200")]

        assert [len(page) for page in pages] == [200, 50]
        assert [len(page) for page in audits] == [200, 50]
        assert "?start=200" in person.page("/fleet").links
        assert "?start=400" not in person.page("/fleet?start=200").links
