from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.engine.escalation import Verbosity, bounded, is_low, threshold, verbosity
from wopr.protocol.documents import Json


def test_the_run_sets_the_threshold_before_the_agent_and_the_agent_before_the_default() -> None:
    assert threshold({"escalationThreshold": 0.2}, 0.9) == 0.2
    assert threshold({}, 0.9) == 0.9
    assert threshold({}, None) == 0.7


@pytest.mark.parametrize("edge", [0, 1, 0.0, 1.0])
def test_the_ends_of_the_range_are_thresholds(edge: float) -> None:
    assert threshold({"escalationThreshold": edge}, 0.9) == edge
    assert threshold({}, edge) == edge


@pytest.mark.parametrize("wrong", [-0.1, 1.1, True, "0.5", None, [], math.nan, math.inf, 10**400])
def test_a_value_that_is_no_threshold_is_passed_over(wrong: Json) -> None:
    assert threshold({"escalationThreshold": wrong}, 0.9) == 0.9


def test_a_decision_is_low_below_the_threshold_only() -> None:
    assert is_low(0.69, 0.7)
    assert is_low(0, 0.7)
    assert not is_low(0.7, 0.7)
    assert not is_low(1, 0.7)
    assert not is_low(0, 0)


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf, -math.inf, False, "0.1", [], {}])
def test_what_is_no_number_is_no_signal(nothing: Json) -> None:
    assert not is_low(nothing, 0.7)


@pytest.mark.parametrize("wanted", ["summary", "full", "off"])
def test_a_run_chooses_how_much_reasoning_is_told(wanted: Verbosity) -> None:
    assert verbosity({"reasoningVerbosity": wanted}, "summary") == wanted


@pytest.mark.parametrize("unknown", ["loud", "", None, 1, True, ["full"], {"full": 1}])
def test_an_unknown_verbosity_gives_the_hosts_own(unknown: Json) -> None:
    assert verbosity({"reasoningVerbosity": unknown}, "full") == "full"
    assert verbosity({}, "off") == "off"


def test_a_text_within_its_limit_is_left_alone() -> None:
    text = "eight by"

    assert bounded(text, 2) is text
    assert bounded("", 0) == ""


def test_a_longer_text_is_cut_and_ends_with_an_ellipsis() -> None:
    assert bounded("abcdefghij", 2) == "abcde…"
    assert bounded("abcdefghij", 1) == "a…"
    assert bounded("abcdefghij", 0) == ""


def test_a_text_is_never_cut_within_a_character() -> None:
    assert bounded("ééééé", 2) == "éé…"
    assert bounded("🙂🙂🙂", 2) == "🙂…"
    assert bounded("🙂🙂", 1) == "…"


@given(st.text(), st.integers(min_value=0, max_value=20))
def test_a_bounded_text_never_exceeds_its_limit_and_begins_as_the_whole(
    text: str, limit: int
) -> None:
    cut = bounded(text, limit)

    assert len(cut.encode()) <= limit * 4
    assert cut == text or text.startswith(cut.removesuffix("…"))
