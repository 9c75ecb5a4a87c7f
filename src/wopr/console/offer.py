"""What a wait offers: the answers that can be given by a button, and the fields that they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wopr.console.form import Form
from wopr.console.schema_fields import Field
from wopr.protocol.documents import Json
from wopr.protocol.errors import Refused


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer that a button gives."""

    name: str
    title: str
    key: str = ""
    tone: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """All answers to one wait. `edited` are the fields of the answer that replaces what is asked."""

    choices: Sequence[Choice]
    fields: Sequence[Field] = ()
    edit: Choice | None = None
    edited: Sequence[Field] = ()
    read: Callable[[str, Form], Json]

    @property
    def names(self) -> tuple[str, ...]:
        """What the buttons send."""
        edit = () if self.edit is None else (self.edit.name,)
        return (*(choice.name for choice in self.choices), *edit)

    def value(self, form: Form) -> Json:
        """The answer that a form stands for. Raises `Refused` with the field at fault."""
        return self.read(form.choice("answer", self.names), form)

    def filled(self, form: Form, refused: Refused) -> Offer:
        """The form as it was sent, with what is wrong beside the field at fault."""
        path = str(refused.details.get("field", ""))

        def again(field: Field) -> Field:
            return field.filled(form).blamed(path, refused.message)

        return replace(
            self,
            fields=[again(field) for field in self.fields],
            edited=[again(field) for field in self.edited],
        )

    @property
    def has_problem(self) -> bool:
        """Whether a field says what is wrong."""
        return any(field.problem for field in (*self.fields, *self.edited))


CHOICES: Final = {
    "accept": Choice("accept", "Accept", "a", "primary"),
    "reject": Choice("reject", "Reject", "r", "danger"),
    "refine": Choice("refine", "Send back", "s"),
    "ask": Choice("ask", "Ask back", "q"),
    "edit-accept": Choice("edit-accept", "Accept my version", "e"),
    "granted": Choice("granted", "Grant", "a", "primary"),
    "rejected": Choice("rejected", "Reject", "r", "danger"),
    "decision": Choice("decision", "Decide this instead", "e"),
    "answers": Choice("answers", "Answer", "a", "primary"),
    "exchange": Choice("exchange", "Say it", "a", "primary"),
    "close": Choice("close", "Close the conversation", "r"),
    "value": Choice("value", "Answer", "a", "primary"),
}
