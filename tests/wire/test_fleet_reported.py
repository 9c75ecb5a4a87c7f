"""Reported values of a producer are shown unchanged, beside the host's own counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.client import Wire
from tests.support.console import Person
from tests.support.host import ACME, ServedHost
from tests.support.kahn import KahnRun, agents_of, push, push_run, stored_lines

pytestmark = pytest.mark.both_stores

REPORTED = {
    "total_steps": 7,
    "total_tool_calls": 5,
    "total_audit_checkpoints": 4,
    "audits_passed": 3,
    "audits_failed": 1,
    "total_duration_s": 12.5,
}


def test_the_totals_of_an_end_are_shown_as_reported(acme: Wire) -> None:
    story = KahnRun()
    push_run(acme, story.start(), story.call(), story.check(), story.end("converged", **REPORTED))
    push_run(acme, story.check(result="fail"))

    [agent] = agents_of(acme, story.run_id)

    assert {name: agent[name] for name in REPORTED} == REPORTED
    assert agent["counted_steps"] == 1
    assert agent["counted_tool_calls"] == 1
    assert agent["counted_audit_checkpoints"] == agent["counted_audits_passed"] == 1
    assert agent["counted_audits_failed"] == 0
    assert agent["audits"] == {"pass": 1, "fail": 1, "warn": 0}


def test_an_agent_without_an_end_has_counts_and_no_totals(acme: Wire) -> None:
    story = KahnRun()
    push_run(acme, story.start(), story.call(), story.call(step=1))

    [agent] = agents_of(acme, story.run_id)

    assert {agent[name] for name in REPORTED} == {None}
    assert (agent["counted_steps"], agent["counted_tool_calls"]) == (2, 2)


def test_a_difference_is_a_warning_of_the_checker(acme: Wire, host: ServedHost) -> None:
    story = KahnRun()
    push_run(acme, story.start(), story.call(ok=True), story.end("partial", **REPORTED))

    findings = acme.document(f"/api/runs/{story.run_id}")["findings"]
    with Person(host.url) as person:
        person.sign_in(ACME)
        page = person.get(f"/fleet/runs/{story.run_id}").text

    found = [each for each in findings if each["code"] == "totals_mismatch"]
    assert [(each["line"], each["level"]) for each in found] == [(3, "warn")]
    assert "total_tool_calls is 5, the lines have 1" in found[0]["message"]
    assert "totals_mismatch" in page
    assert "1 counted" in page


def test_findings_are_omitted_on_a_page_with_a_part_of_the_run(acme: Wire) -> None:
    story = KahnRun()
    push_run(acme, *story.whole())

    first = acme.document(f"/api/runs/{story.run_id}", params={"limit": 3})

    assert first["findings"] is None
    assert first["next_line"] == 3


def test_a_run_has_ended_when_its_last_agent_has(acme: Wire) -> None:
    story = KahnRun()
    early, late = "2026-03-04T05:06:07.089Z", "2026-03-04T05:06:09.000Z"

    def ended() -> object:
        return acme.document(f"/api/runs/{story.run_id}")["run"]["ended"]

    push_run(acme, story.start(), story.start(agent_id="tester"), story.end(ts=early))
    while_one_goes_on = ended()
    push_run(acme, story.end(agent_id="tester", ts=late), story.check(agent_id=None))
    after_the_last = ended()
    push_run(acme, story.start(agent_id="third"))

    assert while_one_goes_on is None
    assert after_the_last == late
    assert ended() is None
    [listed] = [r for r in acme.document("/api/runs")["runs"] if r["run_id"] == story.run_id]
    assert listed["ended"] is None


SECOND: dict[str, Callable[[KahnRun], bytes]] = {
    "start": lambda story: story.start(task="another task"),
    "start at another time": lambda story: story.start(ts="2026-03-04T05:06:07.089Z"),
    "end": lambda story: story.end("partial"),
    "end at another time": lambda story: story.end(ts="2026-03-04T05:06:07.089Z"),
}


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("how", ["at once", "later"])
def test_a_second_start_or_end_would_rewrite_the_first(acme: Wire, second: str, how: str) -> None:
    story = KahnRun()
    whole, late = [story.start(), story.end()], SECOND[second](story)
    before = [] if how == "at once" else whole
    if before:
        push_run(acme, *before)

    response = push(acme, *([*whole, late] if how == "at once" else [late]))

    assert response.status_code == 409, response.text
    assert response.json()["error"] == "would_rewrite"
    [fault] = response.json()["details"]["errors"]
    assert fault["line"] == (3 if how == "at once" else 1)
    assert "coder" in fault["message"]
    assert stored_lines(acme, story.run_id) == before


def test_every_second_start_and_end_is_named(acme: Wire) -> None:
    story = KahnRun()

    response = push(
        acme, story.start(), story.end(), story.start(task="b"), story.end("partial"), story.call()
    )

    assert [each["line"] for each in response.json()["details"]["errors"]] == [3, 4]


def test_an_identical_start_or_end_is_a_duplicate(acme: Wire) -> None:
    story = KahnRun()
    lines = [story.start(), story.start(), story.call(), story.end(), story.end()]

    first, second = push(acme, *lines), push(acme, *lines)

    assert (first.json()["accepted"], first.json()["duplicate"]) == (3, 2)
    assert (second.json()["accepted"], second.json()["duplicate"]) == (0, 5)
    assert stored_lines(acme, story.run_id) == [story.start(), story.call(), story.end()]


def test_agents_of_one_run_start_and_end_each_once(acme: Wire) -> None:
    story = KahnRun()

    response = push(
        acme,
        story.start(),
        story.start(agent_id="tester"),
        story.end(),
        story.end(agent_id="tester"),
    )

    assert response.json()["accepted"] == 4
