from __future__ import annotations

import pytest

from tests.support.kahn_lines import AGENT, fields, findings, line, move
from wopr.kahn.checker import CODES, LEVELS, check
from wopr.kahn.lines import encode_line
from wopr.protocol.documents import UNSET

START = line("agent_run_start")
END = line(
    "agent_run_end",
    total_tool_calls=0,
    total_audit_checkpoints=0,
    audits_passed=0,
    convergence_score=UNSET,
)
LOOP = [
    move(0, "thinking", "tool_call"),
    line("tool_invocation"),
    move(0, "tool_call", "tool_result"),
    move(0, "tool_result", "response"),
    move(0, "response", "reflect"),
]
RUN_START = line("run_start")
RUNNING = line("node_transition", attempt=2)
ATTEMPT = line("node_attempt")
RUN_END = line("run_end")


def test_an_ordinary_agent_run_has_no_findings() -> None:
    log = [
        START,
        *LOOP,
        move(0, "reflect", "thinking"),
        move(1, "thinking", "blocked-on-clarification"),
        move(1, "blocked-on-clarification", "thinking"),
        line("audit_checkpoint"),
        line("audit_checkpoint", agent_id=None, result="fail"),
        move(2, "thinking", "tool_call"),
        move(2, "tool_call", "tool_result"),
        move(2, "tool_result", "response"),
        move(2, "response", "reflect"),
        move(2, "reflect", "converged"),
        line("agent_run_end", outcome="converged"),
        line("audit_checkpoint"),
    ]

    assert findings(log) == []


def test_an_ordinary_ci_run_has_no_findings() -> None:
    log = [
        RUN_START,
        line("node_transition", **{"from": "pending", "to": "ready", "attempt": UNSET}),
        RUNNING,
        ATTEMPT,
        line("node_transition", **{"from": "running", "to": "failed", "attempt": UNSET}),
        RUN_END,
        line("audit_checkpoint", agent_id=None),
    ]

    assert findings(log) == []


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([b"{}"], [(1, "schema")]),
        ([line("audit_checkpoint")], [(1, "not_started")]),
        ([END], [(1, "not_started")]),
        ([START, START], [(2, "second_start")]),
        (
            [START, move(0, "tool_call", "tool_result")],
            [(2, "bad_first_from")],
        ),
        (
            [START, move(0, "thinking", "tool_call"), move(0, "response", "reflect")],
            [(3, "discontinuous")],
        ),
        ([START, move(0, "thinking", "reflect")], [(2, "unlisted_transition")]),
        ([START, move(0, "thinking", "converged")], [(2, "unlisted_transition")]),
        ([START, move(0, "thinking", "response")], [(2, "extension_transition")]),
        (
            [START, move(0, "thinking", "tool_call"), move(0, "tool_call", "failed")],
            [(3, "extension_transition")],
        ),
        ([START, move(0, "thinking", "failed")], []),
        ([START, move(0, "thinking", "thinking")], [(2, "self_transition")]),
        (
            [START, move(0, "thinking", "failed"), move(0, "failed", "thinking")],
            [(3, "after_terminal")],
        ),
        (
            [START, move(0, "thinking", "failed"), move(0, "thinking", "tool_call")],
            [(3, "discontinuous"), (3, "after_terminal")],
        ),
        (
            [START, move(0, "thinking", "failed"), move(0, "failed", "failed")],
            [(3, "after_terminal"), (3, "self_transition")],
        ),
        (
            [START, move(3, "thinking", "tool_call"), line("tool_invocation", step=2)],
            [(3, "step_backwards")],
        ),
        (
            [START, line("tool_invocation", step=3), move(2, "thinking", "tool_call")],
            [(3, "step_backwards")],
        ),
        (
            [START, *(line("tool_invocation", step=step) for step in (3, 1, 2, 3))],
            [(3, "step_backwards"), (4, "step_backwards")],
        ),
        ([START, END, move(0, "thinking", "tool_call")], [(3, "after_end")]),
        ([START, END, line("tool_invocation")], [(3, "after_end")]),
        ([START, END, END], [(3, "after_end")]),
        ([START, END, line("audit_checkpoint")], []),
        ([START, END, START], [(3, "second_start")]),
        ([START, line("agent_run_end")], [(2, "totals_mismatch")]),
        ([START, line("tool_invocation", step=0, ok=True)], [(2, "error_on_ok")]),
        ([START, line("tool_invocation", ok=True, error=UNSET)], []),
        (
            [START, encode_line(fields("agent_run_end") | {"outcome": "converged"})],
            [(2, "totals_mismatch"), (2, "outcome_status")],
        ),
        (
            [
                START,
                *LOOP,
                move(0, "reflect", "converged"),
                line("agent_run_end", total_audit_checkpoints=0, audits_passed=0),
            ],
            [(8, "outcome_status")],
        ),
        ([ATTEMPT, RUN_START], [(1, "ci_order")]),
        ([RUN_START, RUN_END, ATTEMPT], [(3, "ci_order")]),
        ([RUN_START, RUNNING, RUN_END], [(2, "attempt_pairing")]),
        ([RUN_START, RUNNING], []),
        ([RUN_START, RUNNING, RUN_END, RUN_END], [(2, "attempt_pairing"), (4, "ci_order")]),
        ([RUN_START, ATTEMPT, RUNNING, RUN_END], []),
        ([RUN_START, line("node_transition", attempt=UNSET)], [(2, "ci_conditional")]),
        ([RUN_START, line("node_transition", to="done")], [(2, "ci_conditional")]),
        ([RUN_START, line("node_attempt", attempt=1)], [(2, "ci_conditional")]),
        (
            [
                RUN_START,
                line(
                    "node_attempt",
                    done_when_results=[
                        {"cmd": "a", "rc": 0, "duration_s": 0, "tail": ""},
                        {"cmd": "b", "rc": 1, "duration_s": 0, "truncated": True},
                    ],
                ),
            ],
            [(2, "ci_conditional"), (2, "ci_conditional")],
        ),
    ],
)
def test_a_fault_is_found_at_its_place_and_nothing_else(
    log: list[bytes], expected: list[tuple[int, str]]
) -> None:
    assert findings(log) == expected


def test_agents_and_runs_are_checked_separately() -> None:
    log = [
        START,
        line("agent_run_start", agent_id="other"),
        line("agent_run_start", run_id="r-2"),
        move(5, "thinking", "tool_call"),
        move(0, "thinking", "tool_call", "other"),
        move(0, "thinking", "tool_call", run_id="r-2"),
    ]

    assert findings(log) == []


def test_a_mismatch_names_every_wrong_total() -> None:
    (found,) = check([START, line("agent_run_end", audits_failed=2)])

    assert found.message == (
        "total_tool_calls is 1, the lines have 0; total_audit_checkpoints is 1, the lines have 0; "
        "audits_passed is 1, the lines have 0; audits_failed is 2, the lines have 0"
    )


def test_blank_lines_are_skipped_but_counted_as_line_numbers() -> None:
    assert findings([b"\n", b"  \n", START + b"\n", b"{}\n"]) == [(4, "schema")]


def test_one_bad_line_does_not_stop_the_check_of_the_rest() -> None:
    torn = move(0, "thinking", "tool_call")[:40]

    assert findings([START, torn, move(0, "tool_call", "tool_result")]) == [
        (2, "schema"),
        (3, "bad_first_from"),
    ]


def test_every_code_of_the_contract_is_used_with_its_level() -> None:
    assert len(CODES) == 17
    assert {code for code, level in LEVELS.items() if level == "error"} == {
        "schema",
        "after_terminal",
        "step_backwards",
        "after_end",
        "ci_conditional",
    }
    assert {code for code, level in LEVELS.items() if level == "info"} == {"extension_transition"}


def test_a_checkpoint_of_another_agent_does_not_count_for_this_one() -> None:
    log = [
        START,
        line("agent_run_start", agent_id="auditor"),
        line("audit_checkpoint", agent_id="auditor"),
        line("audit_checkpoint", agent_id=None),
        END,
    ]

    assert AGENT != "auditor"
    assert findings(log) == []
