"""The views of the fleet: agents, checkpoints, runs, steps; and no data of another tenant."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.support.client import Wire
from tests.support.definitions import fresh
from tests.support.eventually import eventually
from tests.support.host import ACME, GLOBEX, ServedHost
from tests.support.kahn import ASKS, KahnRun, push
from tests.support.stored_files import age_pushes
from wopr.kahn.timestamps import write_ts
from wopr.protocol.documents import UNSET, JsonObject, Unset

pytestmark = pytest.mark.both_stores

WINDOWS = ("24h", "7d", "all")
AGGREGATE = "/api/agent-runs/aggregate"
FLAKINESS = "/api/audit-checkpoints/flakiness"


@pytest.fixture(scope="module")
def fleet_host(module_host: Callable[..., ServedHost]) -> ServedHost:
    """Start a host whose fleet only this file pushes to."""
    return module_host()


@pytest.fixture
def wire(fleet_host: ServedHost, connect: Callable[..., Wire]) -> Wire:
    return connect(ACME, fleet_host)


def ago(**span: float) -> str:
    return write_ts(datetime.now(UTC) - timedelta(**span))


def ended(
    agent_id: str, outcome: str, at: str, duration_s: float = 2.0, score: float | Unset = UNSET
) -> list[bytes]:
    """Return a run that began and ended at one time."""
    story = KahnRun(agent_id, at)
    end = story.end(outcome, total_duration_s=duration_s, convergence_score=score)
    return [story.start(), end]


def row(wire: Wire, agent_id: str, window: str = "all", **query: str) -> JsonObject | None:
    rows = wire.document(AGGREGATE, params={"window": window, **query})["agents"]
    found: list[JsonObject] = [each for each in rows if each["agent_id"] == agent_id]
    return found[0] if found else None


def push_all(wire: Wire, *runs: list[bytes]) -> None:
    response = push(wire, *(each for lines in runs for each in lines))
    assert response.status_code == 200, response.text


# Agents


def test_a_row_shows_the_state_of_an_agent(wire: Wire) -> None:
    agent = fresh("agent")
    push_all(
        wire,
        ended(agent, "converged", ago(minutes=60), 1.0, 1.0),
        ended(agent, "partial", ago(minutes=50), 2.0, 0.5),
        ended(agent, "aborted", ago(minutes=40), 3.0),
        ended(agent, "escaped", ago(minutes=30), 4.0, 0.0),
    )
    waiting = KahnRun(agent, ago(minutes=5))
    push(wire, waiting.start(), waiting.move(0, *ASKS))

    found = row(wire, agent)

    assert found is not None
    last_seen = found.pop("last_seen")
    assert found == {
        "agent_id": agent,
        "run_count": 5,
        "outcomes": {"converged": 1, "partial": 1, "escaped": 1, "aborted": 1, "unknown": 1},
        "in_flight": 1,
        "duration_p50_s": 2.5,
        "duration_p95_s": 3.85,
        "mean_convergence": 0.5,
        "convergence_series": [1.0, 0.5, 0.0],
        "regressed": False,
        "severity": 10 + 10 + 1 + 5,
    }
    assert last_seen.endswith("Z")


def test_a_run_is_in_the_windows_of_its_last_event(wire: Wire) -> None:
    agent = fresh("agent")
    for at in (ago(hours=1), ago(hours=25), ago(days=8)):
        push_all(wire, ended(agent, "converged", at))

    counts = [found["run_count"] for window in WINDOWS if (found := row(wire, agent, window))]

    assert counts == [1, 2, 3]


def test_the_default_window_is_seven_days(wire: Wire) -> None:
    assert wire.document(AGGREGATE)["window"] == "7d"
    assert wire.document(FLAKINESS)["window"] == "7d"


@pytest.mark.parametrize("path", [AGGREGATE, FLAKINESS, "/api/agents/coder/agent-runs"])
@pytest.mark.parametrize("window", ["30d", "", "24H", "7d ", "ALL"])
def test_an_unknown_window_is_refused_with_the_valid_ones(
    wire: Wire, path: str, window: str
) -> None:
    push(wire, KahnRun("coder", ago(hours=1)).start())

    response = wire.get(path, params={"window": window})

    assert response.status_code == 400
    assert response.json()["details"]["field"] == "window"
    assert all(name in response.json()["message"] for name in WINDOWS)


def test_a_regression_is_shown_until_the_next_converged_run(wire: Wire) -> None:
    agent = fresh("agent")
    push_all(wire, ended(agent, "converged", ago(hours=30)), ended(agent, "partial", ago(hours=3)))
    fallen = [row(wire, agent, window) for window in WINDOWS]

    push_all(wire, ended(agent, "converged", ago(hours=2)))
    recovered = row(wire, agent)

    assert [found["regressed"] for found in fallen if found] == [True] * 3
    assert [found["severity"] for found in fallen if found] == [1001] * 3
    assert recovered is not None
    assert (recovered["regressed"], recovered["severity"]) == (False, 1)


def test_an_old_regression_is_not_shown_in_a_shorter_window(wire: Wire) -> None:
    agent = fresh("agent")
    push_all(wire, ended(agent, "converged", ago(days=3)), ended(agent, "aborted", ago(days=2)))
    push(wire, KahnRun(agent, ago(hours=1)).start())

    told = {w: found["regressed"] for w in WINDOWS if (found := row(wire, agent, w))}

    assert told == {"24h": False, "7d": True, "all": True}


def test_rows_are_sorted_by_activity_or_by_severity(
    connect: Callable[..., Wire], new_host: Callable[..., ServedHost]
) -> None:
    wire = connect(ACME, new_host())
    push_all(wire, *(ended("busy", "converged", ago(hours=n)) for n in range(1, 4)))
    push_all(
        wire, ended("broken", "converged", ago(hours=2)), ended("broken", "escaped", ago(hours=1))
    )
    push_all(
        wire, ended("also-two", "partial", ago(hours=2)), ended("also-two", "partial", ago(hours=1))
    )

    def order(**query: str) -> list[str]:
        rows = wire.document(AGGREGATE, params=query)["agents"]
        return [each["agent_id"] for each in rows]

    assert order() == ["busy", "also-two", "broken"]
    assert order(sort="severity") == ["broken", "also-two", "busy"]
    assert wire.get(AGGREGATE, params={"sort": "name"}).status_code == 400


def test_runs_of_an_agent_are_listed_newest_first_in_pages(wire: Wire) -> None:
    agent = fresh("agent")
    runs = [ended(agent, "converged", ago(hours=n)) for n in (3, 2, 1)]
    push_all(wire, *runs)
    path = f"/api/agents/{agent}/agent-runs"

    first = wire.document(path, params={"limit": "2"})
    rest = wire.document(path, params={"limit": "2", "cursor": first["next_cursor"]})

    found = [run["run_id"] for run in (*first["runs"], *rest["runs"])]
    assert found == [json.loads(lines[0])["run_id"] for lines in reversed(runs)]
    assert rest["next_cursor"] is None
    assert first["runs"][0]["outcome"] == "converged"
    assert first["runs"][0]["duration_s"] == 2.0


def test_a_waiting_agent_shows_for_how_long(wire: Wire) -> None:
    agent = fresh("agent")
    story = KahnRun(agent, ago(minutes=10))
    push(wire, story.start(), story.move(0, *ASKS))

    [run] = wire.document(f"/api/agents/{agent}/agent-runs")["runs"]

    assert run["last_status"] == "blocked-on-clarification"
    assert 600 <= run["waiting_s"] < 660


def test_an_unknown_agent_is_not_found(wire: Wire) -> None:
    assert wire.get("/api/agents/nobody/agent-runs").status_code == 404


def test_a_request_with_an_agent_s_log_id_names_its_fleet_id(wire: Wire) -> None:
    agent = fresh("agent")
    push_all(wire, ended(f"local:{agent}", "converged", ago(hours=1)))

    answer = wire.get(f"/api/agents/local.{agent}/agent-runs")

    assert answer.status_code == 404
    assert answer.json()["message"].endswith(f": use its id local:{agent}")


# Checkpoints


def test_checkpoints_are_listed_most_uncertain_first(
    connect: Callable[..., Wire], new_host: Callable[..., ServedHost]
) -> None:
    wire = connect(ACME, new_host())
    story = KahnRun("coder", ago(hours=1))
    results = {
        "even": ["pass", "fail"],
        "nine-to-one": ["pass"] * 9 + ["fail"],
        "steady": ["pass"] * 3,
        "broken": ["fail"],
        "unsure": ["warn"] * 4,
    }
    checks = [
        story.check(checkpoint_id=name, result=result, agent_id=None, place=place)
        for name, given in results.items()
        for place, result in enumerate(given)
    ]
    assert push(wire, story.start(), *checks).status_code == 200

    rows = wire.document(FLAKINESS)["checkpoints"]

    assert [(each["checkpoint_id"], each["flakiness"], each["bucket"]) for each in rows] == [
        ("even", 1.0, "red"),
        ("nine-to-one", 0.2, "amber"),
        ("unsure", 0.0, "green"),
        ("steady", 0.0, "green"),
        ("broken", 0.0, "green"),
    ]
    assert rows[1] == {
        "checkpoint_id": "nine-to-one",
        "total": 10,
        "pass": 9,
        "fail": 1,
        "warn": 0,
        "flakiness": 0.2,
        "bucket": "amber",
        "last_fail_run_id": story.run_id,
    }
    assert rows[3]["last_fail_run_id"] is None


# Runs


def test_a_run_shows_its_agents_and_steps_in_pages(wire: Wire) -> None:
    story = KahnRun(fresh("agent"), ago(minutes=1))
    whole = story.whole()
    push(wire, *whole)
    path = f"/api/runs/{story.run_id}"

    first = wire.document(path, params={"limit": "4"})
    rest = wire.document(path, params={"line": str(first["next_line"])})

    assert first["run"]["kind"] == "agent"
    assert first["run"]["lines"] == len(whole)
    assert [agent["outcome"] for agent in first["agents"]] == ["converged"]
    assert first["agents"][0]["audits"] == {"pass": 1, "fail": 0, "warn": 0}
    assert first["next_line"] == 4
    assert rest["next_line"] is None
    events = [*first["events"], *rest["events"]]
    assert [each["event"] for each in events] == [
        "agent_run_start",
        "agent_transition",
        "tool_invocation",
        "audit_checkpoint",
        "agent_transition",
        "agent_transition",
        "agent_transition",
        "agent_run_end",
        "audit_checkpoint",
    ]
    assert events[1]["own"] == "ü 1"


def test_runs_are_listed_newest_first(wire: Wire) -> None:
    older, newer = KahnRun("coder", ago(minutes=2)), KahnRun("coder", ago(seconds=1))
    push(wire, newer.start(), older.start())

    listed = [run["run_id"] for run in wire.document("/api/runs", params={"limit": "200"})["runs"]]

    assert listed.index(newer.run_id) < listed.index(older.run_id)


def test_the_export_contains_every_line_of_every_run(
    connect: Callable[..., Wire], new_host: Callable[..., ServedHost]
) -> None:
    wire = connect(ACME, new_host())
    stories = sorted((KahnRun("coder", ago(hours=1)) for _ in range(3)), key=lambda s: s.run_id)
    for story in stories:
        push(wire, *story.whole())

    response = wire.get("/v1/export/transitions")

    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.content == b"".join(each + b"\n" for story in stories for each in story.whole())


def test_expired_runs_are_only_exported(
    connect: Callable[..., Wire], new_host: Callable[..., ServedHost]
) -> None:
    host = new_host(WOPR_FLEET_KEEP_DAYS="90")
    story = KahnRun("coder")
    with Wire(host.url, ACME) as wire:
        push(wire, *story.whole())
    host.stop()
    age_pushes(host, days=91)
    # Old runs are searched at the start, and then every minute.
    host.start()
    wire = connect(ACME, host)

    eventually(lambda: wire.document("/api/runs")["runs"] == [])

    path = f"/api/runs/{story.run_id}"
    assert wire.get(path).status_code == 404
    assert wire.document(AGGREGATE, params={"window": "all"})["agents"] == []
    assert wire.document(FLAKINESS, params={"window": "all"})["checkpoints"] == []
    assert wire.get(f"{path}/transitions").content.splitlines() == story.whole()
    assert wire.get("/v1/export/transitions").content.splitlines() == story.whole()
    assert push(wire, *story.whole()).json()["accepted"] == 0
    assert push(wire, story.check(checkpoint_id="late")).status_code == 410


# Tenants

ROUTES = [
    "/api/runs",
    f"{AGGREGATE}?window=all",
    f"{FLAKINESS}?window=all",
    "/v1/export/transitions",
    "/v1/runs?limit=200",
]


def test_no_view_shows_data_of_another_tenant(
    wire: Wire, fleet_host: ServedHost, connect: Callable[..., Wire]
) -> None:
    globex = connect(GLOBEX, fleet_host)
    agent = fresh("secret-agent")
    story = KahnRun(agent, ago(minutes=1))
    push(wire, *story.whole(), story.check(checkpoint_id=fresh("secret-check")))

    for route in ROUTES:
        marks = ("secret", story.run_id)
        assert any(mark in wire.get(route).text for mark in marks)
        assert not any(mark in globex.get(route).text for mark in marks)


def test_another_tenant_s_run_is_not_found(
    wire: Wire, fleet_host: ServedHost, connect: Callable[..., Wire]
) -> None:
    globex = connect(GLOBEX, fleet_host)
    story = KahnRun(fresh("agent"), ago(minutes=1))
    push(wire, *story.whole())

    def shown(response: httpx.Response) -> tuple[int, str]:
        return response.status_code, response.text

    for path, missing in (
        (f"/api/runs/{story.run_id}", "/api/runs/nothing"),
        (f"/api/runs/{story.run_id}/transitions", "/api/runs/nothing/transitions"),
        (f"/api/agents/{story.agent_id}/agent-runs", "/api/agents/nothing/agent-runs"),
    ):
        assert shown(globex.get(path)) == shown(globex.get(missing))
        assert globex.get(path).status_code == 404


def test_the_same_run_id_is_another_run_in_another_tenant(
    wire: Wire, fleet_host: ServedHost, connect: Callable[..., Wire]
) -> None:
    globex = connect(GLOBEX, fleet_host)
    story = KahnRun("coder", ago(minutes=1))
    push(wire, *story.whole())

    response = push(globex, story.start(task="mine"))

    assert response.json()["accepted"] == 1
    assert wire.document(f"/api/runs/{story.run_id}")["run"]["lines"] == len(story.whole())
    assert globex.document(f"/api/runs/{story.run_id}")["run"]["lines"] == 1
    mine, theirs = (each.document("/api/self/tenant") for each in (globex, wire))
    assert mine["agent_archived_runs"] < theirs["agent_archived_runs"]


def test_a_response_has_a_limited_number_of_rows_and_names_the_next_page(
    new_host: Callable[..., ServedHost],
) -> None:
    with Wire(new_host().url, ACME) as wire:
        story = KahnRun()
        push(wire, *(story.start(agent_id=f"agent-{number}") for number in range(2010)))
        push(wire, *(story.check(checkpoint_id=f"check:{number}") for number in range(2010)))

        for path, rows in ((AGGREGATE, "agents"), (FLAKINESS, "checkpoints")):
            first = wire.get(path).json()
            last = wire.get(path, params={"start": first["next_start"]}).json()

            assert (len(first[rows]), first["next_start"]) == (2000, 2000)
            assert (len(last[rows]), "next_start" in last) == (10, False)
