from __future__ import annotations

import json
import re

import pytest

from tests.console.client import Person
from tests.console.conftest import SignedIn
from tests.console.samples import Belongings
from tests.wire.client import Wire
from tests.wire.definitions import delay, edge, fresh, node, workflow
from tests.wire.host import ACME, DEVELOPER, REVIEWER, VIEWER, ServedHost
from wopr.protocol.documents import JsonObject


def run_of(location: str) -> str:
    """The run that an answer leads to."""
    return location.removeprefix("/runs/").partition("?")[0]


# The list


def test_the_list_shows_runs_with_what_they_wait_for(acme: Person, wire: Wire) -> None:
    tag = fresh("tag")
    gate = node("gate", "core.approvalGate", config={"title": "Ship the release?"})
    run_id = wire.create(wire.register(workflow([gate])), tags=[tag])
    wire.events_until(run_id, "interrupt.requested")

    page = acme.page(f"/runs?tag={tag}")

    assert f"/runs/{run_id}" in page.links
    assert "waiting for approval" in page.text
    assert "Ship the release?" in page.text
    assert "anyone who may respond" in page.text


@pytest.mark.parametrize(
    ("query", "is_there"),
    [
        ("status=ended", True),
        ("status=completed", True),
        ("status=active", False),
        ("workflowId=conformance-noop", True),
        ("workflowId=hello", False),
        ("within=1h", True),
        ("until=2020-01-01T00:00:00Z", False),
        ("status=&workflowId=&q=", True),
    ],
)
def test_filters_say_which_runs_are_listed(
    acme: Person, acme_s: Belongings, query: str, is_there: bool
) -> None:
    page = acme.page(f"/runs?tag={acme_s.tag}&{query}")

    assert (f"/runs/{acme_s.ended}" in page.links) == is_there


def test_a_filter_that_makes_no_sense_is_refused_with_its_name(acme: Person) -> None:
    for query, named in (("status=asleep", "status"), ("within=ever", "within")):
        answer = acme.get(f"/runs?{query}")

        assert answer.status_code == 400
        assert named in answer.text


def test_pages_follow_on_each_other_without_a_gap(acme: Person, wire: Wire) -> None:
    tag = fresh("tag")
    made = {str(wire.run("conformance-noop", tags=[tag])["runId"]) for _ in range(53)}
    seen: list[str] = []
    path = f"/runs?tag={tag}"
    while path:
        page = acme.page(path)
        seen += [found["title"] for found in page.all("a", **{"class": "id"})]
        path = next((found["href"] for found in page.all("a", rel="next")), "")

    assert len(seen) == 53
    assert set(seen) == made


def test_a_search_finds_what_a_run_was_given(acme: Person, wire: Wire) -> None:
    word = fresh("needle")
    run_id = wire.run("hello", {"name": word})["runId"]

    page = acme.page(f"/runs?q={word.upper()}")

    assert f"/runs/{run_id}" in page.links
    assert "Looked through" in page.text


def test_a_list_with_nothing_new_is_not_sent_again(acme: Person, acme_s: Belongings) -> None:
    path = f"/runs?tag={acme_s.tag}&status=completed"
    tag = acme.get(path, headers={"x-part": "1"}).headers["etag"]

    answer = acme.get(path, headers={"x-part": "1", "if-none-match": tag})

    assert (answer.status_code, answer.content) == (304, b"")


def test_an_empty_list_says_what_to_do_next(new_empty: Person) -> None:
    page = new_empty.page("/runs")

    assert "No runs yet" in page.text
    assert "/workflows" in page.links


@pytest.fixture
def new_empty(signed_in: SignedIn, host: ServedHost) -> Person:
    """Somebody of a tenant that has nothing."""
    key = host.command("keys", "create", "--tenant", fresh("new"), "--role", "admin")
    return signed_in(key.strip())


def test_children_forks_and_feedback_are_marked(acme: Person, wire: Wire) -> None:
    tag = fresh("tag")
    parent = wire.run("conformance-subworkflow-parent", tags=[tag])
    fork = wire.post(f"/v1/runs/{parent['runId']}:fork", {"mode": "branch", "fromSeq": 1})
    wire.post(f"/v1/runs/{parent['runId']}/annotations", {"signal": {"kind": "flag"}})

    page = acme.page("/runs?workflowId=conformance-subworkflow-child")
    own = acme.page(f"/runs?tag={tag}")

    assert f"child of {parent['runId']}" in str(page.elements)
    assert f"forked from {parent['runId']}" in str(own.elements)
    assert "⚑ 1" in own.text
    assert fork.status_code == 201


# The page of a run


def test_a_run_s_page_tells_all_of_it_without_scripts(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Grace"})["runId"]

    page = acme.page(f"/runs/{run_id}")

    for told in ("completed", "Take a breath", "Hello, Grace!", "run.completed", "guestbook"):
        assert told in page.text
    assert "skipped: condition" in page.text


def test_the_graph_marks_the_edges_that_the_log_says_were_taken(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Grace"})["runId"]

    html = acme.get(f"/runs/{run_id}").text

    edges = {
        title: state
        for state, title in _edges(html)
        if "greet" in title and not title.startswith("who → ")
    }
    assert edges == {"greet-you → sign-in": "taken", "greet-everyone → sign-in": "open"}


def test_where_branches_meet_every_one_that_came_is_marked(acme: Person, wire: Wire) -> None:
    nodes = [node("a"), delay("slow", 60), delay("quick", 20), node("join"), node("after")]
    edges = [edge("a", "slow"), edge("a", "quick"), edge("slow", "join"), edge("quick", "join")]
    definition = workflow(nodes, edges=[*edges, edge("join", "after", triggerRule="any_failed")])
    run_id = wire.run(wire.register(definition))["runId"]

    found = {title: state for state, title in _edges(acme.get(f"/runs/{run_id}").text)}

    assert (found["slow → join"], found["quick → join"]) == ("taken", "taken")
    assert found["join → after"] == "open"


def _edges(html: str) -> list[tuple[str, str]]:
    return re.findall(r'class="edge (\w+)"[^>]*><title>([^<]+?)(?: if [^<]*)?</title>', html)


def test_child_runs_open_in_place(acme: Person, wire: Wire) -> None:
    found = wire.run("conformance-subworkflow-parent")
    child = found["childRuns"][0]["runId"]
    path = f"/runs/{found['runId']}"

    closed, opened = acme.page(path), acme.page(f"{path}?open={child}")

    inside = f"/runs/{child}/nodes/"
    assert not [link for link in closed.links if link.startswith(inside)]
    assert [link for link in opened.links if link.startswith(inside)]
    assert f"?open={child}#timeline" in closed.links


def test_agents_are_told_as_a_story(acme: Person, wire: Wire) -> None:
    run_id = wire.run("conformance-agent-reasoning")["runId"]

    text = acme.page(f"/runs/{run_id}").text

    for told in (
        "Decomposed query, decided to call a tool, then handed off.",
        "called openwop.echo:echo",
        "handed over to core.conformance.handoff-target",
        "100 %",
        "of 70 % needed",
    ):
        assert told in text


def test_an_unsure_decision_shows_how_sure_it_had_to_be(acme: Person, wire: Wire) -> None:
    run_id = wire.create("conformance-agent-low-confidence")
    wire.events_until(run_id, "interrupt.requested")

    text = acme.page(f"/runs/{run_id}").text

    assert "below 70 %" in text
    assert "Waits for a person to ratify a decision" in text


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


def test_a_long_log_comes_in_pages(acme: Person, wire: Wire) -> None:
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
def test_a_part_of_a_run_that_is_not_there_is_not_found(
    acme: Person, acme_s: Belongings, path: str
) -> None:
    assert acme.get(f"/runs/{acme_s.ended}/{path}").status_code in (400, 404)


def test_a_node_s_id_may_hold_a_slash(acme: Person, wire: Wire) -> None:
    definition = workflow([node("a/b c")])
    run_id = wire.run(wire.register(definition))["runId"]
    link = next(link for link in acme.page(f"/runs/{run_id}").links if "/nodes/" in link)

    assert "core.noop" in acme.page(link).text


def test_markdown_holds_the_run(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Gr`ace"})["runId"]

    text = acme.get(f"/runs/{run_id}.md").text

    assert text.startswith(f"# Run `{run_id}`")
    assert "| `breathe` | completed | 1 |" in text
    assert '"message": "Hello, Gr`ace!"' in text


def test_the_bundle_is_the_api_s_own_and_its_export_is_on_record(acme: Person, wire: Wire) -> None:
    run_id = wire.run("conformance-noop")["runId"]

    answer = acme.get(f"/runs/{run_id}/bundle")

    assert answer.headers["content-disposition"] == f'attachment; filename="run-{run_id}.json"'
    own = wire.document(f"/v1/runs/{run_id}/debug-bundle")
    assert answer.json()["events"] == own["events"]
    entries = wire.document("/v1/audit", params={"limit": 20})["items"]
    assert ("run.export", run_id) in {(each["action"], each["resource"]) for each in entries}


# What can be done


def test_a_run_is_paused_resumed_and_cancelled(acme: Person, wire: Wire) -> None:
    run_id = wire.create(wire.register(workflow([delay("wait", 600_000)])))
    path = f"/runs/{run_id}"

    acme.post(f"{path}/pause", drainPolicy="immediate", reason="lunch")
    paused = wire.snapshot(run_id)["status"]
    acme.post(f"{path}/resume")
    resumed = wire.snapshot(run_id)["status"]
    answer = acme.post(f"{path}/cancel", reason="enough")

    assert (paused, resumed) == ("paused", "running")
    assert answer.headers["location"] == f"{path}?done=cancelled"
    assert wire.snapshot(run_id)["status"] == "cancelled"
    assert "The run is cancelled." in acme.get(f"{path}?done=cancelled").text


def test_what_cannot_be_done_says_why(acme: Person, acme_s: Belongings) -> None:
    answer = acme.post(f"/runs/{acme_s.ended}/pause")

    assert answer.status_code == 409
    assert "only a running run can be paused" in answer.text


def test_a_fork_shows_what_it_would_do_and_then_does_it(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Grace"})["runId"]

    preview = acme.page(f"/runs/{run_id}/fork?mode=branch&from=9")
    answer = acme.post(f"/runs/{run_id}/fork", **{"mode": "branch", "from": "9", "tags": "a, b"})

    for told in ("who", "greet-you", "breathe", "sign-out"):
        assert told in preview.text
    forked = wire.finished(run_of(answer.headers["location"]))
    assert forked["sourceRunId"] == run_id
    assert forked["outputs"] == {"message": "Hello, Grace!"}


def test_a_replay_repeats_the_record(acme: Person, wire: Wire) -> None:
    run_id = wire.run("hello", {"name": "Grace"})["runId"]

    answer = acme.post(f"/runs/{run_id}/fork", **{"mode": "replay", "from": "0"})

    replayed = run_of(answer.headers["location"])
    assert wire.finished(replayed)["status"] == "completed"
    assert wire.types(replayed) == wire.types(run_id)


@pytest.mark.parametrize(
    ("form", "signal"),
    [
        ({"rating": "4"}, {"kind": "rating", "rating": 4}),
        ({"kind": "correction", "text": "No."}, {"kind": "correction", "correction": "No."}),
        ({"kind": "label", "text": "odd"}, {"kind": "label", "label": "odd"}),
        ({"kind": "flag"}, {"kind": "flag"}),
    ],
)
def test_feedback_is_stored_where_it_was_given(
    acme: Person, wire: Wire, form: dict[str, str], signal: JsonObject
) -> None:
    run_id = wire.run("conformance-noop")["runId"]
    event = wire.log(run_id)[1]["eventId"]

    answer = acme.post(f"/runs/{run_id}/feedback", eventId=event, place="e1", **form)

    assert answer.headers["location"] == f"/runs/{run_id}?done=annotated#e1"
    [stored] = wire.document(f"/v1/runs/{run_id}/annotations")["annotations"]
    assert stored["signal"] == signal
    assert stored["target"] == {"runId": run_id, "eventId": event}
    assert "event 1" in acme.page(f"/runs/{run_id}").text


@pytest.mark.parametrize(
    "form",
    [{}, {"rating": "6"}, {"kind": "label"}, {"kind": "love"}, {"kind": "flag", "eventId": "x"}],
)
def test_feedback_that_makes_no_sense_is_refused(
    acme: Person, wire: Wire, form: dict[str, str]
) -> None:
    run_id = wire.run("conformance-noop")["runId"]

    assert acme.post(f"/runs/{run_id}/feedback", **form).status_code == 400
    assert wire.document(f"/v1/runs/{run_id}/annotations")["annotations"] == []


@pytest.mark.parametrize(
    ("key", "offers"),
    [
        (ACME, {"cancel", "fork", "feedback"}),
        (DEVELOPER, {"cancel", "fork", "feedback"}),
        (REVIEWER, {"feedback"}),
        (VIEWER, set[str]()),
    ],
)
def test_nobody_sees_what_they_may_not_do(
    signed_in: SignedIn, acme_s: Belongings, key: str, offers: set[str]
) -> None:
    page = signed_in(key).page(f"/runs/{acme_s.run_id}")

    actions = [*page.links, *(found["action"] for found in page.all("form"))]
    path = f"/runs/{acme_s.run_id}/"
    seen = {
        name
        for name in ("cancel", "pause", "fork", "feedback")
        if any(each.startswith(path + name) for each in actions)
    }
    assert seen - {"pause"} == offers


# Keys


def test_a_new_key_is_shown_once_and_works(acme: Person, signed_in: SignedIn) -> None:
    answer = acme.post("/settings/keys", name="for Ada", role="reviewer", days="30")

    [key] = re.findall(r"wopr_live_[\w-]+", answer.text)
    assert answer.status_code == 200
    person = signed_in(key)
    assert "reviewer" in person.page("/settings").text
    assert key not in acme.get("/settings").text


def test_nobody_gives_away_more_than_they_have(signed_in: SignedIn, host: ServedHost) -> None:
    made = ("keys", "create", "--tenant", "acme", "--role", "viewer", "--scope", "keys:manage")
    person = signed_in(host.command(*made).strip())

    assert person.post("/settings/keys", role="admin").status_code == 403
    assert person.post("/settings/keys", role="viewer").status_code == 200
    assert person.post("/settings/keys", role="boss").status_code == 400


def test_settings_show_the_scopes_that_one_has(signed_in: SignedIn) -> None:
    text = signed_in(VIEWER).page("/settings").text

    assert "runs:read" in text
    assert "Make a key" not in text


# Live


def test_the_live_stream_brings_parts_and_rows_and_ends_with_the_run(
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
    last = [data for name, data in events if name == "parts"][-1]
    assert "completed" in last["head"]


def test_the_live_stream_ends_with_the_session(
    acme: Person, acme_s: Belongings, signed_in: SignedIn, host: ServedHost
) -> None:
    key = host.command("keys", "create", "--tenant", "acme", "--role", "viewer").strip()
    person = signed_in(key)
    name = person.page("/settings").text.partition("key_")[2][:16]
    path = f"/runs/{acme_s.run_id}/live"

    with person.http.stream("GET", path, headers={"accept": "text/event-stream"}) as stream:
        text = ""
        for piece in stream.iter_text():
            if not text:
                acme.post(f"/settings/keys/key_{name}/revoke")
            text += piece

    assert text.endswith("event: ended\ndata: {}\n\n")
