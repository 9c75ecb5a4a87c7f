from __future__ import annotations

from typing import Any

import pytest

from tests.support.kahn_lines import SAMPLES, TS, fields, line
from wopr.kahn.events import AuditCheckpoint, event_name
from wopr.kahn.lines import BadLine, encode_line, read_line, split_lines
from wopr.kahn.timestamps import seconds_between, to_ts
from wopr.protocol.documents import UNSET

# The variant on which a field is tested, where any will do.
BARE = "run_start"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_line_of_every_variant_is_parsed_and_kept_unchanged(name: str) -> None:
    raw = b" " + line(name, x_own="\u00fc", nested={"a": [None, 1.50]})

    read = read_line(raw)

    assert event_name(read.event) == name
    assert read.raw == raw
    assert read.fields == fields(name, x_own="\u00fc", nested={"a": [None, 1.5]})


REQUIRED = [
    (name, field)
    for name in SAMPLES
    for field in fields(name)
    if (name, field) not in {("audit_checkpoint", "agent_id"), ("node_transition", "attempt")}
    and field
    not in "model reason input_summary output_summary error evidence convergence_score backoff_s "
    "total_attempts flake_retries".split()
]


@pytest.mark.parametrize(("name", "field"), REQUIRED)
def test_a_line_without_a_required_field_is_refused(name: str, field: str) -> None:
    with pytest.raises(BadLine):
        read_line(line(name, **{field: UNSET}))


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name in SAMPLES for field in fields(name)]
)
def test_null_is_legal_in_one_place_only(name: str, field: str) -> None:
    raw = line(name, **{field: None})

    if (name, field) == ("audit_checkpoint", "agent_id"):
        assert read_line(raw).raw == raw
    else:
        with pytest.raises(BadLine):
            read_line(raw)


def test_a_checkpoint_without_an_agent_belongs_to_the_run() -> None:
    event = read_line(line("audit_checkpoint", agent_id=UNSET)).event

    assert isinstance(event, AuditCheckpoint)
    assert event.agent_id is None


PATTERNS: list[tuple[str, str, str, bool]] = [
    *(
        (BARE, "ts", ts, good)
        for ts, good in [
            ("2026-02-28T23:59:59.999Z", True),
            ("2024-02-29T00:00:00.000Z", True),
            ("2026-02-29T00:00:00.000Z", False),
            ("2026-13-01T00:00:00.000Z", False),
            ("2026-01-01T24:00:00.000Z", False),
            ("2026-01-01T23:59:60.000Z", False),
            ("0000-01-01T00:00:00.000Z", False),
            ("2026-01-01T00:00:00Z", False),
            ("2026-01-01T00:00:00.00Z", False),
            ("2026-01-01T00:00:00.0000Z", False),
            ("2026-01-01T00:00:00.000+00:00", False),
            ("2026-01-01t00:00:00.000z", False),
            ("2026-01-01 00:00:00.000Z", False),
            ("2026-01-01T00:00:00.000Z\n", False),
            ("\u0662026-01-01T00:00:00.000Z", False),
        ]
    ),
    *(
        (BARE, "run_id", run_id, good)
        for run_id, good in [
            ("a", True),
            ("Z9_-", True),
            ("a" * 64, True),
            ("a" * 65, False),
            ("", False),
            ("-a", False),
            ("_a", False),
            ("a.b", False),
            ("a/b", False),
            ("..", False),
            ("a\n", False),
            ("\u00e4", False),
        ]
    ),
    *(
        ("agent_run_start", "agent_id", agent_id, good)
        for agent_id, good in [
            ("0", True),
            ("a:b-c", True),
            ("a" * 64, True),
            ("a" * 65, False),
            ("", False),
            ("A", False),
            ("a.b", False),
            ("a_b", False),
            (":a", False),
            ("-a", False),
            ("a\n", False),
        ]
    ),
    *(
        ("audit_checkpoint", "checkpoint_id", checkpoint_id, good)
        for checkpoint_id, good in [
            ("0", True),
            ("a:b.c-d", True),
            ("a" * 128, True),
            ("a" * 129, False),
            ("", False),
            (".a", False),
            ("A", False),
            ("a_b", False),
            ("a\n", False),
        ]
    ),
    *(
        ("node_attempt", "node_id", node_id, good)
        for node_id, good in [
            ("0", True),
            ("a-b", True),
            ("a" * 64, True),
            ("a" * 65, False),
            ("-a", False),
            ("a:b", False),
            ("a\n", False),
        ]
    ),
]


@pytest.mark.parametrize(("name", "field", "value", "good"), PATTERNS)
def test_a_pattern_matches_only_at_the_real_end_of_the_string(
    name: str, field: str, value: str, good: bool
) -> None:
    assert _is_good(name, **{field: value}) is good


def _is_good(name: str, **changed: Any) -> bool:
    try:
        read_line(line(name, **changed))
    except BadLine:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "changed", "good"),
    [
        ("tool_invocation", {"output_summary": "\U0001f600" * 2048}, True),
        ("tool_invocation", {"output_summary": "x" * 2049}, False),
        ("tool_invocation", {"input_summary": "x" * 100_000}, True),
        ("tool_invocation", {"error": "x" * 100_000}, True),
        ("tool_invocation", {"tool_name": ""}, False),
        ("tool_invocation", {"step": 0}, True),
        ("tool_invocation", {"step": -1}, False),
        ("tool_invocation", {"step": True}, False),
        ("tool_invocation", {"step": 1.5}, False),
        ("tool_invocation", {"duration_s": 0}, True),
        ("tool_invocation", {"duration_s": -0.001}, False),
        ("tool_invocation", {"duration_s": True}, False),
        ("tool_invocation", {"duration_s": "1"}, False),
        ("tool_invocation", {"ok": 1}, False),
        ("agent_run_start", {"task": ""}, False),
        ("agent_run_end", {"convergence_score": 0}, True),
        ("agent_run_end", {"convergence_score": 1.0}, True),
        ("agent_run_end", {"convergence_score": 1.0001}, False),
        ("agent_run_end", {"convergence_score": -0.1}, False),
        ("agent_run_end", {"convergence_score": True}, False),
        ("agent_run_end", {"total_steps": -1}, False),
        ("agent_run_end", {"outcome": "unknown"}, False),
        ("agent_transition", {"to": "blocked_on_clarification"}, False),
        ("agent_transition", {"from": "converged", "to": "thinking"}, True),
        ("audit_checkpoint", {"result": "passed"}, False),
        ("audit_checkpoint", {"evidence": []}, False),
        ("audit_checkpoint", {"evidence": {"deep": {"null": None}}}, True),
        ("run_start", {"total_nodes": 0}, True),
        ("run_start", {"total_nodes": -1}, False),
        ("run_start", {"event": "run_begin"}, False),
        ("node_transition", {"attempt": 0}, False),
        ("node_transition", {"attempt": UNSET}, False),
        ("node_transition", {"to": "done"}, False),
        ("node_transition", {"to": "done", "attempt": UNSET}, True),
        ("node_attempt", {"attempt": 1}, False),
        ("node_attempt", {"attempt": 1, "backoff_s": UNSET}, True),
        ("node_attempt", {"done_when_results": []}, True),
        ("run_end", {"exit_code": UNSET}, False),
        ("run_end", {"outcome": "catastrophic", "exit_code": UNSET}, False),
        ("run_end", {"outcome": "partial", "exit_code": UNSET}, True),
        ("run_end", {"outcome": "clean", "exit_code": 0}, True),
    ],
)
def test_a_field_is_checked_at_its_bounds(name: str, changed: dict[str, Any], good: bool) -> None:
    assert _is_good(name, **changed) is good


@pytest.mark.parametrize(
    ("result", "good"),
    [
        ({"cmd": "make", "rc": 0, "duration_s": 1}, True),
        ({"cmd": "make", "rc": -9, "duration_s": 1, "tail": "x" * 4096}, True),
        ({"cmd": "make", "rc": 1, "duration_s": 1, "tail": "x" * 4097}, False),
        ({"cmd": "make", "rc": 0, "duration_s": 1, "tail": ""}, False),
        ({"cmd": "make", "rc": 1, "duration_s": 1, "truncated": True}, False),
        ({"cmd": "make", "rc": 1, "duration_s": 1, "own": None}, True),
        ({"cmd": "make", "rc": 1}, False),
    ],
)
def test_the_result_of_a_check_is_checked(result: dict[str, Any], good: bool) -> None:
    assert _is_good("node_attempt", done_when_results=[result]) is good


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (b"{", "truncated"),
        (b'{"ts":1} {}', "malformed"),
        (b'{"x":"\xff"}', "UTF-8"),
        (b'{"x":NaN}', "malformed"),
        (b'{"x":1e999}', "range"),
        (b'{"x":' + b"[" * 100_000, "deep"),
        (b"\xef\xbb\xbf{}", "malformed"),
    ],
)
def test_a_line_that_is_not_a_json_object_is_refused_with_a_reason(raw: bytes, said: str) -> None:
    with pytest.raises(BadLine, match=said) as refused:
        read_line(raw)

    assert refused.value.code == "schema"


def test_an_invalid_value_in_an_unknown_field_makes_the_line_invalid() -> None:
    raw = line("run_start")[:-1] + b',"own":"\xc3\x28"}'

    with pytest.raises(BadLine, match="UTF-8"):
        read_line(raw)


def test_only_a_line_feed_ends_a_line_and_blank_lines_are_counted_and_skipped() -> None:
    body = b'{"a":"\xe2\x80\xa8"}\n\n  \r\n{"b":1}\r\n{"c":2}'

    assert list(split_lines(body)) == [
        (1, b'{"a":"\xe2\x80\xa8"}'),
        (4, b'{"b":1}\r'),
        (5, b'{"c":2}'),
    ]


def test_a_line_is_written_compactly_without_escapes_and_without_nan() -> None:
    assert encode_line({"b": "\u00fc", "a": [1, 2.0]}) == '{"b":"\u00fc","a":[1,2.0]}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        encode_line({"a": float("nan")})


@pytest.mark.parametrize(
    ("timestamp", "ts"),
    [
        ("2026-03-04T05:06:07.089Z", TS),
        ("2026-03-04T05:06:07.089999Z", TS),
        ("2026-03-04T07:06:07.089999+02:00", TS),
        ("2026-03-04T05:06:07.089", TS),
        ("2026-03-04T05:06:07Z", "2026-03-04T05:06:07.000Z"),
        ("2025-12-31T23:59:59.9999-01:00", "2026-01-01T00:59:59.999Z"),
    ],
)
def test_a_timestamp_becomes_utc_with_truncated_milliseconds(timestamp: str, ts: str) -> None:
    assert to_ts(timestamp) == ts


def test_time_between_two_lines_is_never_negative() -> None:
    later = "2026-03-05T05:06:08.090Z"

    assert seconds_between(TS, later) == 86_401.001
    assert seconds_between(later, TS) == 0
