from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wopr.kahn.new_lines import History, WouldRewrite, align, align_packed, line_hash

LETTERS = st.text("abc", max_size=9)
CASES = 2_500


def hashes(text: str) -> list[bytes]:
    """Return the hashes of a log whose lines are letters."""
    return [line_hash(letter.encode()) for letter in text]


def pushed(held: str, incoming: str) -> str:
    return held + incoming[align(hashes(held), hashes(incoming)) :]


@pytest.mark.parametrize(
    ("held", "incoming", "after"),
    [
        ("", "", ""),
        ("", "abc", "abc"),
        ("abc", "", "abc"),
        ("abc", "abc", "abc"),
        ("abc", "abcde", "abcde"),
        ("abc", "b", "abc"),
        ("abc", "bcd", "abcd"),
        ("abc", "c", "abc"),
        ("abc", "de", "abcde"),
        ("aab", "ab", "aab"),
        ("aaa", "aaaa", "aaaa"),
        ("aba", "abab", "ababab"[:4]),
        ("abab", "aba", "abab"),
        ("xabxab", "abc", "xabxabc"),
    ],
)
def test_stored_lines_are_not_appended_again(held: str, incoming: str, after: str) -> None:
    assert pushed(held, incoming) == after


@pytest.mark.parametrize(
    ("held", "incoming", "lines"),
    [
        ("abc", "axc", (1,)),
        ("abc", "xbc", (0,)),
        ("abc", "abx", (2,)),
        ("abc", "acb", (1,)),
        ("abc", "ba", (1,)),
        ("abcdef", "abxyef", (2, 3)),
        ("abc", "xabc", (0,)),
        ("abc", "dea", (0, 1)),
    ],
)
def test_a_changed_past_is_refused_with_the_differing_lines(
    held: str, incoming: str, lines: tuple[int, ...]
) -> None:
    with pytest.raises(WouldRewrite) as refused:
        align(hashes(held), hashes(incoming))

    assert refused.value.lines == lines


def expected(held: str, incoming: str) -> str | None:
    """Implement the contract's words step by step; `None` is a refusal."""
    for j in range(len(held)):
        k = min(len(incoming), len(held) - j)
        if held[j : j + k] == incoming[:k]:
            return held + incoming[k:]
    if any(line in held for line in incoming):
        return None
    return held + incoming


@settings(max_examples=1_500, deadline=None)
@given(LETTERS, LETTERS)
def test_the_search_gives_the_result_that_the_contract_describes(held: str, incoming: str) -> None:
    try:
        found = pushed(held, incoming)
    except WouldRewrite:
        found = None

    assert found == expected(held, incoming)


def test_any_chunking_with_any_resends_gives_the_same_log() -> None:
    for case in range(CASES):
        chance = Random(case)
        log = hashes("abcdefghijkl"[: chance.randint(1, 12)])
        history = History()
        held: list[bytes] = []

        sent = 0
        while sent < len(log):
            begin = chance.randint(0, sent)
            end = chance.randint(begin, min(len(log), sent + 4))
            chunk = log[begin:end]
            new = chunk[history.overlap(chunk) :]
            history.extend(new)
            held += new
            sent = len(held)

        assert held == log
        assert history.overlap(log) == len(log)


def test_a_changed_history_is_refused_and_nothing_is_appended() -> None:
    for case in range(CASES):
        chance = Random(case)
        log = "abcdefghij"[: chance.randint(2, 10)]
        place = chance.randrange(len(log) - 1)
        altered = log[:place] + chance.choice(("X", "XY", "")) + log[place + 1 :]
        if place == 0 and altered == log[1:]:
            altered = "X" + altered

        with pytest.raises(WouldRewrite) as refused:
            align(hashes(log), hashes(altered + "k"))

        assert min(refused.value.lines) == place


def test_logs_of_equal_lines_are_searched_in_linear_time() -> None:
    same = hashes("a") * 20_000
    history = History(same)

    # A comparison position by position would need two hundred million steps.
    assert history.overlap([*same[:10_000], *hashes("b")]) == 10_000


def outcome(work: Callable[[], int]) -> int | tuple[int, ...]:
    """Return the result of an alignment, or the refused lines."""
    try:
        return work()
    except WouldRewrite as refused:
        return refused.lines


@settings(max_examples=CASES)
@given(held=st.text("abc", max_size=40), incoming=LETTERS)
def test_stored_hashes_are_aligned_like_lines(held: str, incoming: str) -> None:
    short = [each[:16] for each in hashes(held)]
    lines = [each[:16] for each in hashes(incoming)]

    packed = outcome(lambda: align_packed(b"".join(short), lines))

    assert packed == outcome(lambda: align(short, lines))


def test_a_match_across_two_hashes_is_not_found() -> None:
    held = b"aaaaaaaabbbbbbbbccccccccdddddddd"

    assert align_packed(held, [b"bbbbbbbbcccccccc"]) == 0
    assert align_packed(held, [b"ccccccccdddddddd"]) == 1


def test_many_equal_lines_are_aligned_like_any() -> None:
    held, incoming = "a" * 60 + "b", "a" * 59 + "bc"
    packed = b"".join(each[:16] for each in hashes(held))

    assert align_packed(packed, [each[:16] for each in hashes(incoming)]) == 60
