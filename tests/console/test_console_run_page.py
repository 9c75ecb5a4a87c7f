from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from tests.console.conftest import SignedIn
from tests.console.samples import TenantData
from tests.support.agent_definitions import agent_name, mock, scripted
from tests.support.client import Wire
from tests.support.console import Person
from tests.support.definitions import delay, edge, node, workflow
from tests.support.eventually import eventually
from tests.support.host import ServedHost
from tests.support.interrupts import gate, waiting_run
from wopr.protocol.documents import JsonObject

WAITS = 40

# The page of a run


def test_a_run_s_page_shows_everything_without_scripts(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Grace"})["runId"]

    page = acme.page(f"/runs/{run_id}")

    for told in ("completed", "Take a breath", "Hello, Grace!", "run.completed", "guestbook"):
        assert told in page.text
    assert "skipped: condition" in page.text


def test_the_graph_marks_the_edges_that_were_taken(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Grace"})["runId"]

    html = acme.get(f"/runs/{run_id}").text

    edges = {
        title: state
        for state, title in _edges(html)
        if "greet" in title and not title.startswith("who → ")
    }
    assert edges == {"greet-you → sign-in": "taken", "greet-everyone → sign-in": "open"}


def test_where_branches_join_every_taken_edge_is_marked(acme: Person, wire: Wire) -> None:
    nodes = [node("a"), delay("slow", 60), delay("quick", 20), node("join"), node("after")]
    edges = [edge("a", "slow"), edge("a", "quick"), edge("slow", "join"), edge("quick", "join")]
    definition = workflow(nodes, edges=[*edges, edge("join", "after", triggerRule="any_failed")])
    run_id = wire.run(wire.register(definition))["runId"]

    found = {title: state for state, title in _edges(acme.get(f"/runs/{run_id}").text)}

    assert (found["slow → join"], found["quick → join"]) == ("taken", "taken")
    assert found["join → after"] == "open"


def test_a_skipped_node_is_not_drawn_as_a_cause(acme: Person, wire: Wire) -> None:
    first, second = ({"agentId": agent_name(), "modelClass": "reasoning"} for _ in range(2))
    nodes = [mock("one", agent=first), node("skipped"), mock("two", agent=second)]
    never = {"type": "expression", "expression": "false"}
    edges = [edge("one", "skipped", condition=never), edge("one", "two")]
    run_id = wire.run(wire.register(scripted(nodes, edges=edges)))["runId"]
    by_id = {event["eventId"]: event for event in wire.log(run_id)}
    [handoff] = [event for event in by_id.values() if event["type"] == "agent.handoff"]

    states = [state for state, _ in _edges(acme.get(f"/runs/{run_id}").text)]

    assert by_id[handoff["causationId"]]["type"] == "node.skipped"
    assert states == ["open", "taken"]


def _edges(html: str) -> list[tuple[str, str]]:
    return re.findall(r'class="edge (\w+)"[^>]*><title>([^<]+?)(?: if [^<]*)?</title>', html)


def test_child_runs_are_expanded_in_place(acme: Person, wire: Wire) -> None:
    found = wire.run("conformance-subworkflow-parent")
    child = found["childRuns"][0]["runId"]
    path = f"/runs/{found['runId']}"

    closed, opened = acme.page(path), acme.page(f"{path}?open={child}")

    inside = f"/runs/{child}/nodes/"
    assert not [link for link in closed.links if link.startswith(inside)]
    assert [link for link in opened.links if link.startswith(inside)]
    assert f"?open={child}#timeline" in closed.links


def test_events_are_described_in_sentences(acme: Person, wire: Wire) -> None:
    run_id = wire.run("conformance-agent-reasoning")["runId"]

    text = acme.page(f"/runs/{run_id}").text

    for told in (
        "Decomposed query, decided to call a tool, then handed off.",
        "called openwop.echo:echo",
        "handed off to core.conformance.handoff-target",
        "100 %",
        "(needs 70 %)",
    ):
        assert told in text


def test_an_unsure_decision_shows_the_required_confidence(acme: Person, wire: Wire) -> None:
    run_id = wire.create("conformance-agent-low-confidence")
    wire.events_until(run_id, "interrupt.requested")

    text = acme.page(f"/runs/{run_id}").text

    assert "(needs 70 %)" in text
    assert "Waiting for a person to ratify a decision" in text


def test_events_are_filtered_and_searched(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Grace"})["runId"]

    def shown(query: str) -> list[str]:
        page = acme.page(f"/runs/{run_id}?{query}")
        return [found["id"] for found in page.all("li") if found.get("id", "").startswith("e")]

    assert len(shown("")) == 18
    assert shown("type=channel") == ["e8", "e13"]
    assert shown("type=channel.written&node=sign-out") == ["e13"]
    assert shown("q=hello%2C+grace") == ["e5", "e6", "e16", "e17"]
    assert shown("agent=nobody") == []


def test_a_long_log_is_paginated(acme: Person, wire: Wire) -> None:
    nodes = [node(f"n{index}") for index in range(200)]
    run_id = wire.run(wire.register(workflow(nodes)))["runId"]

    first = acme.page(f"/runs/{run_id}")
    second = acme.page(f"/runs/{run_id}?from=250")

    assert len(first.all("li", **{"class": "event "})) <= 250
    assert "?from=250#events" in first.links
    assert [found for found in second.all("li") if found.get("id") == "e250"]
    assert not [found for found in second.all("li") if found.get("id") == "e0"]


def test_an_event_s_page_names_its_cause_and_its_effects(acme: Person, wire: Wire) -> None:
    run_id = wire.run("conformance-agent-reasoning")["runId"]

    page = acme.page(f"/runs/{run_id}/events/3")

    assert "agent.toolCalled" in page.text
    assert f"/runs/{run_id}/events/1" in page.links
    assert f"/runs/{run_id}/events/4" in page.links


@pytest.mark.parametrize("path", ["events/99", "nodes/nobody", "events/x"])
def test_a_part_of_a_missing_run_is_not_found(
    acme: Person, acme_data: TenantData, path: str
) -> None:
    assert acme.get(f"/runs/{acme_data.ended}/{path}").status_code in (400, 404)


def test_a_node_id_can_contain_a_slash(acme: Person, wire: Wire) -> None:
    definition = workflow([node("a/b c")])
    run_id = wire.run(wire.register(definition))["runId"]
    link = next(link for link in acme.page(f"/runs/{run_id}").links if "/nodes/" in link)

    assert "core.noop" in acme.page(link).text


def test_the_markdown_report_contains_the_run(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Gr`ace"})["runId"]

    text = acme.get(f"/runs/{run_id}.md").text

    assert text.startswith(f"# Run `{run_id}`")
    assert "| `breathe` | completed | 1 |" in text
    assert '"message": "Hello, Gr`ace!"' in text


def test_the_bundle_equals_the_api_s_and_its_export_is_audited(acme: Person, wire: Wire) -> None:
    run_id = wire.run("conformance-noop")["runId"]

    answer = acme.get(f"/runs/{run_id}/bundle")

    assert answer.headers["content-disposition"] == f'attachment; filename="run-{run_id}.json"'
    own = wire.document(f"/v1/runs/{run_id}/debug-bundle")
    assert answer.json()["events"] == own["events"]
    entries = wire.document("/v1/audit", params={"limit": 20})["items"]
    assert ("run.export", run_id) in {(each["action"], each["resource"]) for each in entries}


# Live


def test_the_live_stream_sends_parts_and_rows_and_ends_with_the_run(
    acme: Person, wire: Wire
) -> None:
    definition = workflow([delay("wait", 400), node("after")], edges=[edge("wait", "after")])
    run_id = wire.create(wire.register(definition))

    events: list[tuple[str, JsonObject]] = []
    path = f"/runs/{run_id}/live?after=1"
    with acme.http.stream("GET", path, headers={"accept": "text/event-stream"}) as stream:
        for block in "".join(stream.iter_text()).split("\n\n")[:-1]:
            name, data = block.split("\n")
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))

    rows = {key: html for name, data in events if name == "rows" for key, html in data.items()}
    assert events[-1] == ("over", {})
    assert list(rows) == ["e2", "e3", "e4", "e5"]
    assert "run.completed" in rows["e5"]
    # The final state: an unchanged part is not sent again.
    parts = {key: html for name, data in events if name == "parts" for key, html in data.items()}
    assert "completed" in parts["head"]


Frame: TypeAlias = tuple[str, JsonObject]


def _live(acme: Person, run_id: str, query: str = "") -> Iterator[Frame]:
    """Return the frames of a run's live page."""
    path = f"/runs/{run_id}/live?{query}"
    with acme.http.stream("GET", path, headers={"accept": "text/event-stream"}) as stream:
        left = ""
        for piece in stream.iter_text():
            *blocks, left = (left + piece).split("\n\n")
            for block in blocks:
                name, data = block.split("\n")
                yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_the_live_stream_sends_only_the_lanes_that_changed(acme: Person, wire: Wire) -> None:
    nodes = [*(node(f"step-{number}") for number in range(100)), gate()]
    run_id = waiting_run(wire, *nodes)
    changes: list[JsonObject] = []

    for name, data in _live(acme, run_id):
        if name == "items" and "timeline" in data:
            changes.append(data["timeline"])
            target = {"nodeId": f"step-{len(changes)}"}
            note = {"signal": {"kind": "flag"}, "target": target}
            wire.post(f"/v1/runs/{run_id}/annotations", note)
        if len(changes) == 4:
            break

    assert len(changes[0]["html"]) == 102
    assert len(changes[0]["order"]) == 102
    # The axis, the gate that waits and the lane with the note; all lanes move when the axis grows.
    assert min(len(change["html"]) for change in changes[1:]) <= 3
    assert any("✎ 1" in html for change in changes[1:] for html in change["html"].values())
    assert all("order" not in change for change in changes[1:])


def test_a_large_run_is_sent_in_few_updates_and_few_bytes(acme: Person, wire: Wire) -> None:
    # Each wait ends in a separate commit, many more than may be sent.
    parts = [[delay(f"wait-{part}", 40), *_steps(part)] for part in range(WAITS)]
    nodes = [each for part in parts for each in part]
    run_id = wire.create(wire.register(workflow(nodes)))
    began = time.monotonic()

    frames = list(_live(acme, run_id))

    seconds = time.monotonic() - began
    total = len(wire.log(run_id))
    assert total > 1200
    updates = [data for name, data in frames if name == "items"]
    assert len(updates) <= 2 * seconds + 3
    html = acme.get(f"/runs/{run_id}").text
    assert len(json.dumps(frames)) < 6 * len(html)
    rows = [key for name, data in frames if name == "rows" for key in data]
    assert len(rows) == len(set(rows)) <= total
    assert rows[-1] == f"e{total - 1}"
    assert frames[-1] == ("over", {})


def _steps(part: int) -> list[JsonObject]:
    return [node(f"step-{part}-{number}") for number in range(15)]


def _many_steps(wire: Wire) -> str:
    """Start a run in which a gate waits since the beginning and 250 steps have ended."""
    nodes = [gate(), *(node(f"step-{number}") for number in range(250))]
    links = [edge(f"step-{number}", f"step-{number + 1}") for number in range(249)]
    run_id = wire.create(wire.register(workflow(nodes, edges=links)))
    _until_completed(wire, run_id, "step-249")
    return run_id


def _until_completed(wire: Wire, run_id: str, node_id: str) -> None:
    eventually(lambda: wire.snapshot(run_id)["nodeStates"][node_id]["status"] == "completed")


def test_the_page_of_a_large_run_shows_the_newest_lanes_and_a_link_to_all(
    acme: Person, wire: Wire
) -> None:
    run_id = _many_steps(wire)

    html = acme.get(f"/runs/{run_id}").text
    shown = _lanes(html)
    [link] = re.findall(r'of 251 nodes are shown.*?href="(\?[^"#]*)', html)
    every = _lanes(acme.get(f"/runs/{run_id}{link}").text)
    wire.post(f"/v1/runs/{run_id}/cancel")
    wire.finished(run_id)
    ended = _lanes(acme.get(f"/runs/{run_id}").text)

    # The gate waits, so it is shown although it began first.
    assert shown == ["gate", *(f"step-{number}" for number in range(150, 250))]
    assert sorted(every) == sorted(ended) == sorted(["gate", *(f"step-{n}" for n in range(250))])


def _lanes(html: str) -> list[str]:
    return re.findall(r'<div class="lane [^>]* data-item="[^":]+:([^"]+)"', html)


def test_the_live_stream_of_a_large_run_has_the_lanes_that_its_page_requested(
    acme: Person, wire: Wire
) -> None:
    run_id = _many_steps(wire)

    newest, every = (
        next(
            data["timeline"]["order"]
            for name, data in _live(acme, run_id, query)
            if name == "items"
        )
        for query in ("", "lanes=all")
    )

    assert len(newest) == 102
    assert len(every) == 252


def test_with_many_new_events_only_the_newest_rows_are_sent(acme: Person, wire: Wire) -> None:
    run_id = _many_steps(wire)

    rows = next(data for name, data in _live(acme, run_id) if name == "rows")

    total = len(wire.log(run_id))
    assert list(rows) == [f"e{number}" for number in range(total - 100, total)]


def test_a_large_run_with_continuous_events_is_drawn_at_most_twice_a_second(
    acme: Person, wire: Wire
) -> None:
    nodes = [*(node(f"step-{n}") for n in range(160)), *(delay(f"wait-{n}", 50) for n in range(60))]
    run_id = wire.create(wire.register(workflow(nodes)))
    _until_completed(wire, run_id, "step-159")
    began = time.monotonic()

    updates = [name for name, _ in _live(acme, run_id) if name == "items"]

    assert len(updates) <= 2 * (time.monotonic() - began) + 1


def test_lanes_and_bars_of_each_drawing_of_a_busy_run_agree(acme: Person, wire: Wire) -> None:
    parts = [
        [delay(f"wait-{n}", 20), *(node(f"step-{n}-{m}") for m in range(60))] for n in range(12)
    ]
    definition = wire.register(workflow([each for part in parts for each in part]))
    run_id = [wire.create(definition) for _ in range(3)][-1]

    drawn = [
        html
        for name, data in _live(acme, run_id)
        if name == "items"
        for html in data["timeline"]["html"].values()
    ]

    told = {
        (status, *re.findall(r'<rect class="(\w+)', html))
        for html in drawn
        for status in re.findall(
            r'<span class="sr">(\w+)</span><svg width="100%" height="18"', html
        )
        if "step-" in html
    }
    assert told >= {("pending",), ("completed", "good")}
    assert told <= {("pending",), ("running", "active"), ("completed", "good")}


def test_readers_of_one_page_with_different_filters_get_their_own_rows(
    acme: Person, wire: Wire
) -> None:
    run_id = wire.run("hello", {"name": "Ada"})["runId"]
    path = f"/runs/{run_id}/live?node=sign-in"

    text = acme.get(path, headers={"accept": "text/event-stream"}).text

    [rows] = re.findall(r"event: rows\ndata: (.*)", text)
    assert list(json.loads(rows)) == ["e7", "e8", "e9"]


def test_the_live_stream_ends_with_the_session(
    acme: Person, acme_data: TenantData, signed_in: SignedIn, host: ServedHost
) -> None:
    key = host.command("keys", "create", "--tenant", "acme", "--role", "viewer").strip()
    person = signed_in(key)
    name = person.page("/settings").text.partition("key_")[2][:16]
    path = f"/runs/{acme_data.run_id}/live"

    with person.http.stream("GET", path, headers={"accept": "text/event-stream"}) as stream:
        text = ""
        for piece in stream.iter_text():
            if not text:
                acme.post(f"/settings/keys/key_{name}/revoke")
            text += piece

    assert text.endswith("event: ended\ndata: {}\n\n")
