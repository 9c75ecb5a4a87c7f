from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.engine.escalation import (
    BYTES_PER_TOKEN,
    DEFAULT_THRESHOLD,
    confidence_threshold,
    is_low_confidence,
    reasoning_verbosity,
    truncate_text,
)
from wopr.protocol.documents import Json


@pytest.mark.parametrize(
    ("configurable", "manifest", "expected"),
    [
        ({}, None, 0.7),
        ({}, 0.9, 0.9),
        ({}, 0, 0),
        ({"escalationThreshold": 0.3}, 0.9, 0.3),
        ({"escalationThreshold": 0}, 0.9, 0),
        ({"escalationThreshold": 1}, None, 1),
        ({"escalationThreshold": 1.1}, 0.9, 0.9),
        ({"escalationThreshold": "0.3"}, None, 0.7),
        ({"escalationThreshold": True}, None, 0.7),
        ({"escalationThreshold": math.nan}, 0.9, 0.9),
    ],
)
def test_the_run_overrides_the_manifest_and_the_manifest_overrides_the_default(
    configurable: Json, manifest: float | None, expected: float
) -> None:
    assert confidence_threshold(configurable, manifest) == expected


@pytest.mark.parametrize(
    ("confidence", "expected"),
    [(0.69, True), (0.7, False), (0.71, False), (0, True), (1, False)],
)
def test_confidence_below_the_threshold_is_low_and_equality_is_not(
    confidence: float, expected: bool
) -> None:
    assert is_low_confidence(confidence, DEFAULT_THRESHOLD) is expected


@pytest.mark.parametrize("value", [None, "0.1", True, False, math.nan, math.inf, -math.inf, [0.1]])
def test_a_value_that_is_not_a_finite_number_is_no_signal(value: Json) -> None:
    assert is_low_confidence(value, 1) is False


@pytest.mark.parametrize(
    ("configurable", "expected"),
    [
        ({}, "full"),
        ({"reasoningVerbosity": "off"}, "off"),
        ({"reasoningVerbosity": "summary"}, "summary"),
        ({"reasoningVerbosity": "loud"}, "full"),
        ({"reasoningVerbosity": ["off"]}, "full"),
        ({"reasoningVerbosity": None}, "full"),
    ],
)
def test_the_run_chooses_one_of_three_verbosities(configurable: Json, expected: str) -> None:
    assert reasoning_verbosity(configurable, "full") == expected


@given(st.text(max_size=60), st.integers(min_value=0, max_value=12))
def test_shortened_text_fits_and_is_a_prefix_of_the_whole(text: str, tokens: int) -> None:
    cut = truncate_text(text, tokens)

    assert len(cut.encode("utf-8", "replace")) <= tokens * BYTES_PER_TOKEN
    assert cut == text or text.encode("utf-8", "replace").decode().startswith(cut.removesuffix("…"))


@given(st.text(max_size=40))
def test_a_text_that_fits_is_unchanged(text: str) -> None:
    assert truncate_text(text, len(text.encode("utf-8", "replace"))) == text
