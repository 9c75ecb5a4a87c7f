"""Suggestions for unknown names, and the limits of the comparison."""

from __future__ import annotations

from difflib import SequenceMatcher

import pytest

from wopr.protocol import suggestions as names
from wopr.protocol.suggestions import nearest, suggest_name, unknown_key


def test_the_nearest_of_several_hundred_names_is_suggested() -> None:
    known = [f"node-{index:03}" for index in range(490)]

    assert nearest("Nodee_042", known) == "node-042"


def test_a_name_is_not_compared_with_very_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(names, "SequenceMatcher")

    hint = suggest_name("output", [f"output{index}" for index in range(9000)])

    assert hint == "none of the 9000 known names is similar"


def test_a_very_long_name_is_cut_and_compared_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(names, "SequenceMatcher")

    message = unknown_key("k" * 4_000_000, ["kind"])

    assert message == f"unknown key '{'k' * 200}…': expected one of kind"


def test_only_the_names_with_the_most_common_letters_are_compared_closely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    class Counting(SequenceMatcher[str]):
        def ratio(self) -> float:
            compared.append("")
            return super().ratio()

    monkeypatch.setattr(names, "SequenceMatcher", Counting)

    nearest("abcdefgh", ["".join(sorted("abcdefgh", key=f"{n}bdfaceghx".find)) for n in range(400)])
    nearest("output", [f"output{index}" for index in range(400)])

    assert len(compared) <= 10
