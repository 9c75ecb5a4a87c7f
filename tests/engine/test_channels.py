from __future__ import annotations

import copy
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.engine.channels import allows_access, check_write, reduce, wrap
from wopr.protocol.documents import UNSET, Json, JsonObject
from wopr.protocol.workflow import ChannelAccess

REDUCERS = (
    "replace",
    "append",
    "merge",
    "counter",
    "votes",
    "feedback",
    "message",
    "vendor.acme.ring",
)
NOW = 1_000_000

json_values: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.builds(lambda key, ts: {"value": key, "_ts": ts}, st.text(max_size=3), st.integers()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["userId", "messageId", "value", "_ts", "action", "a"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def write(
    current: Json,
    entry: Json,
    reducer: str,
    *,
    at: int = NOW,
    ttl_ms: int | None = None,
    max_size: int | None = None,
) -> Json:
    return reduce(current, entry, reducer=reducer, at=at, ttl_ms=ttl_ms, max_size=max_size)


def write_all(entries: list[Json], reducer: str, *, max_size: int | None = None) -> Json:
    value: Json = UNSET
    for entry in entries:
        value = write(value, entry, reducer, max_size=max_size)
    return value


def vote(user: str, action: str = "approve") -> JsonObject:
    return {"userId": user, "action": action, "timestamp": "2026-01-01T00:00:00Z"}


def message(message_id: str, content: str = "hello") -> JsonObject:
    return {"messageId": message_id, "from": "user", "content": content, "ts": 1}


def test_replace_keeps_the_last_write() -> None:
    assert write_all([1, None, "b"], "replace") == "b"


def test_append_adds_an_array_as_one_element() -> None:
    assert write_all(["a", ["b", "c"]], "append") == ["a", ["b", "c"]]


def test_merge_is_shallow() -> None:
    assert write_all([{"a": {"x": 1}, "b": 1}, {"a": {"y": 2}}], "merge") == {
        "a": {"y": 2},
        "b": 1,
    }


def test_counter_accepts_negative_numbers() -> None:
    assert write_all([3, -5, 0.5], "counter") == -1.5


def test_a_second_vote_of_a_user_moves_to_the_end() -> None:
    votes = write_all([vote("ann"), vote("bob"), vote("ann", "reject")], "votes")

    assert votes == [vote("bob"), vote("ann", "reject")]


def test_feedback_keeps_every_entry() -> None:
    entry = {"feedback": "shorter", "timestamp": "2026-01-01T00:00:00Z", "iteration": 1}

    assert write_all([entry, entry], "feedback") == [entry, entry]


def test_a_message_with_a_known_id_is_dropped() -> None:
    messages = write_all([message("id-1", "a"), message("id-1", "b"), message("id-2")], "message")

    assert messages == [message("id-1", "a"), message("id-2")]


def test_a_reducer_of_an_unknown_vendor_works_as_replace() -> None:
    assert write_all([[1], [2]], "vendor.acme.ring") == [2]


def test_max_size_drops_the_oldest_of_a_list() -> None:
    assert write_all([1, 2, 3, 4], "append", max_size=2) == [3, 4]


def test_a_write_prunes_entries_older_than_the_time_to_live_before_it_appends() -> None:
    events = [wrap(name, at=NOW) for name in "abc"]

    folded = write(events, wrap("d", at=NOW + 300), "append", at=NOW + 300, ttl_ms=200)

    assert folded == [{"value": "d", "_ts": NOW + 300}]


def test_an_entry_exactly_as_old_as_the_time_to_live_is_kept() -> None:
    folded = write([wrap("a", at=NOW)], wrap("b", at=NOW + 200), "append", at=NOW + 200, ttl_ms=200)

    assert [entry["value"] for entry in folded] == ["a", "b"]


def test_max_size_applies_after_pruning() -> None:
    current = [wrap("old", at=0), wrap("b", at=NOW), wrap("c", at=NOW)]

    folded = write(current, wrap("d", at=NOW), "append", ttl_ms=10, max_size=3)

    assert [entry["value"] for entry in folded] == ["b", "c", "d"]


def test_a_vote_with_a_time_to_live_still_replaces_the_same_users_vote() -> None:
    current = [wrap(vote("ann"), at=NOW - 1), wrap(vote("bob"), at=NOW - 1)]

    folded = write(current, wrap(vote("ann", "reject"), at=NOW), "votes", ttl_ms=100)

    assert [entry["value"] for entry in folded] == [vote("bob"), vote("ann", "reject")]


def test_an_unstamped_write_to_a_channel_with_a_time_to_live_gets_the_event_s_time() -> None:
    assert write(UNSET, "a", "append", ttl_ms=100) == [{"value": "a", "_ts": NOW}]


def test_an_entry_of_unknown_age_is_kept() -> None:
    assert write(["a"], wrap("b", at=NOW), "append", ttl_ms=1) == ["a", wrap("b", at=NOW)]


@pytest.mark.parametrize("reducer", ["replace", "merge", "counter", "message"])
def test_a_time_to_live_is_ignored_by_other_reducers(reducer: str) -> None:
    entry = {"counter": 1}.get(reducer, message("id-1"))

    assert write(UNSET, entry, reducer, ttl_ms=1) == write(UNSET, entry, reducer)


@pytest.mark.parametrize(
    ("current", "entry", "reducer", "folded"),
    [
        (UNSET, "x", "counter", 0),
        (2, True, "counter", 2),
        ([1], 2, "counter", 2),
        (10**400, 0.5, "counter", 10**400),
        (UNSET, "x", "merge", {}),
        ({"a": 1}, [1], "merge", {"a": 1}),
        ("x", {"a": 1}, "merge", {"a": 1}),
        ({"a": 1}, 1, "append", [1]),
        (None, 1, "append", [1]),
        ([vote("ann")], "x", "votes", [vote("ann"), "x"]),
        ([message("id-1")], {"role": "user"}, "message", [message("id-1"), {"role": "user"}]),
    ],
)
def test_an_invalid_write_folds_to_a_neutral_value(
    current: Json, entry: Json, reducer: str, folded: Json
) -> None:
    assert write(current, entry, reducer) == folded


@given(
    current=json_values | st.just(UNSET),
    entry=json_values,
    reducer=st.sampled_from(REDUCERS) | st.text(max_size=5),
    ttl_ms=st.none() | st.integers(-5, 1000),
    max_size=st.none() | st.integers(-2, 5),
)
def test_folding_is_total_deterministic_and_does_not_change_its_arguments(
    current: Json, entry: Json, reducer: str, ttl_ms: int | None, max_size: int | None
) -> None:
    before = copy.deepcopy((current, entry))

    first = write(current, entry, reducer, ttl_ms=ttl_ms, max_size=max_size)
    second = write(current, entry, reducer, ttl_ms=ttl_ms, max_size=max_size)

    assert first == second
    assert first is not UNSET
    assert (current, entry) == before


@given(st.lists(st.sampled_from("abcd").map(message), max_size=12), st.sampled_from([None, 1, 3]))
def test_writing_a_message_twice_equals_writing_it_once(
    messages: list[JsonObject], max_size: int | None
) -> None:
    once: Json = UNSET
    twice: Json = UNSET
    for entry in messages:
        once = write(once, entry, "message", max_size=max_size)
        twice = write(twice, entry, "message", max_size=max_size)
        twice = write(twice, entry, "message", max_size=max_size)

    assert once == twice


@given(st.lists(st.builds(vote, st.sampled_from("abc"), st.sampled_from(["yes", "no"]))))
def test_votes_contain_the_last_vote_of_each_user_and_no_other(votes: list[JsonObject]) -> None:
    folded = [] if not votes else write_all([*votes], "votes")

    assert sorted(entry["userId"] for entry in folded) == sorted({v["userId"] for v in votes})
    assert all(entry == {v["userId"]: v for v in votes}[entry["userId"]] for entry in folded)


@given(st.lists(st.integers(0, 500), min_size=1), st.integers(1, 400))
def test_no_entry_is_older_than_the_time_to_live_at_the_last_write(
    pauses: list[int], ttl_ms: int
) -> None:
    at = NOW
    value: Json = UNSET
    for pause in pauses:
        at += pause
        value = write(value, wrap("x", at=at), "append", at=at, ttl_ms=ttl_ms)

    assert value[-1]["_ts"] == at
    assert all(entry["_ts"] >= at - ttl_ms for entry in value)


@given(st.lists(st.integers(), min_size=1))
def test_a_counter_is_the_sum_of_its_writes(numbers: list[int]) -> None:
    assert write_all([*numbers], "counter") == sum(numbers)


@pytest.mark.parametrize(
    ("reducer", "value", "fault"),
    [
        ("counter", "1", "must be a number"),
        ("counter", True, "must be a number"),
        ("counter", float("inf"), "finite"),
        ("merge", [1], "must be an object"),
        ("votes", "yes", "must be an object"),
        ("votes", {"userId": "ann", "action": "approve"}, "needs timestamp"),
        ("votes", {**vote("ann"), "userId": ""}, "needs userId"),
        ("votes", {**vote("ann"), "reason": 3}, "reason"),
        ("feedback", {"feedback": "x", "timestamp": 1, "iteration": True}, "needs iteration"),
        ("feedback", {"timestamp": 1, "iteration": 1}, "needs feedback"),
        ("message", {"from": "user", "content": "x", "ts": 1}, "needs messageId"),
        ("message", {**message("id-1"), "role": ["user"]}, "needs role"),
        ("message", {**message(""), "ts": True}, 'not empty, not ""; needs ts, '),
        ("message", {**message("a"), "ts": True}, "since the epoch, not true"),
        (
            "message",
            {"from": "me", "ts": "x"},
            "needs messageId, a string that is not empty; needs from, ",
        ),
    ],
)
def test_an_invalid_write_is_named_before_it_is_written(
    reducer: str, value: Json, fault: str
) -> None:
    found = check_write(value, reducer=reducer, max_size=None)

    assert found is not None
    assert fault in found


@pytest.mark.parametrize(
    ("reducer", "value"),
    [
        ("replace", None),
        ("append", [1]),
        ("counter", -0.5),
        ("merge", {}),
        ("votes", {**vote("ann"), "reason": "late"}),
        ("feedback", {"feedback": "x", "timestamp": 1, "iteration": 0}),
        ("message", {**message("id-1"), "agentId": "core.writer"}),
        ("vendor.acme.ring", 1),
    ],
)
def test_a_valid_write_has_no_fault(reducer: str, value: Json) -> None:
    assert check_write(value, reducer=reducer, max_size=None) is None


def test_a_message_from_a_shared_context_names_its_group() -> None:
    said = message("id-1")

    wrong = check_write(said, reducer="message", max_size=None, group="desk")

    assert wrong is not None
    assert "needs groupId" in wrong
    named = said | {"groupId": "desk"}
    assert check_write(named, reducer="message", max_size=None, group="desk") is None
    assert check_write(said, reducer="append", max_size=None, group="desk") is None


@pytest.mark.parametrize("value", ["abc", [1, 2, 3], {"a": 1, "b": 2, "c": 3}])
def test_a_value_over_max_size_is_refused_outside_the_list_reducers(value: Json) -> None:
    assert check_write(value, reducer="replace", max_size=2) is not None
    assert check_write(value, reducer="replace", max_size=3) is None
    assert check_write(value, reducer="append", max_size=2) is None


def test_a_number_has_size_one() -> None:
    assert check_write(12345, reducer="replace", max_size=1) is None


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        (["writer"], True),
        (["core.identity"], False),
        (["core.*"], True),
        (["core.ident.*"], False),
        (["cor.*"], False),
        (["*"], True),
        ([], False),
    ],
)
def test_an_access_entry_matches_a_node_exactly_or_a_type_by_prefix(
    entries: list[str], allowed: bool
) -> None:
    access = ChannelAccess(writers=entries)

    assert allows_access(access, "writers", node_id="writer", type_id="core.identity") is allowed


def test_a_side_that_access_leaves_out_is_open() -> None:
    access = ChannelAccess(writers=[])

    assert allows_access(access, "readers", node_id="n", type_id="core.noop")
    assert not allows_access(access, "writers", node_id="n", type_id="core.noop")


@pytest.mark.parametrize("side", ["readers", "writers"])
def test_public_is_open_and_private_is_closed(side: Literal["readers", "writers"]) -> None:
    assert allows_access(UNSET, side, node_id="n", type_id="core.noop")
    assert allows_access("public", side, node_id="n", type_id="core.noop")
    assert not allows_access("private", side, node_id="n", type_id="core.noop")
