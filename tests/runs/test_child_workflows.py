"""The inputs that a workflow reads, found once and looked up by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import overload

import msgspec
import pytest

from tests.support.definitions import node, variable, workflow
from wopr.protocol.documents import Json
from wopr.protocol.workflow import WorkflowDefinition
from wopr.runs.definitions.child_workflows import Interface, interface_of


def interface(*texts: str) -> Interface:
    config: dict[str, Json] = {"name": "v", "value": list(texts)}
    document = workflow(
        [node("set", "core.setVariable", config=config)], variables=[variable("v", "array")]
    )
    return interface_of(msgspec.convert(document, WorkflowDefinition))


@pytest.mark.parametrize(
    "text",
    ["city", "city.name", "size(inputs.city)", "variables['city'] + 1", "inputs", "a inputs"],
)
def test_an_input_read_by_a_text_of_the_definition_is_known(text: str) -> None:
    assert not list(interface("cit", "citz", text).unknown_inputs(["city", "v"]))


@pytest.mark.parametrize("text", ["cityname", "a.city", "inputs.cityname", "my.inputs", "cit"])
def test_an_input_read_by_no_text_of_the_definition_is_unknown(text: str) -> None:
    assert list(interface(text).unknown_inputs(["city", "v"])) == ["city"]


class Counted(Sequence[str]):
    """Texts that count how often one of them is read."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.reads = 0

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        self.reads += 1
        return self.texts[index]

    def __len__(self) -> int:
        return len(self.texts)


def test_a_name_is_searched_without_reading_every_text() -> None:
    made = interface(*(f"text-{index}" for index in range(20_000)))
    texts = Counted(made.texts)

    unknown = list(replace(made, texts=texts).unknown_inputs([f"n{index}" for index in range(100)]))

    assert len(unknown) == 100
    assert texts.reads < 100 * 50
