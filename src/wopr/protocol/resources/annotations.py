"""Annotations: judgments about a run, one of its events or one of its nodes (RFC 0056)."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import force_setattr

from wopr.protocol.documents import UNSET, Closed, NonEmpty, Unset
from wopr.protocol.errors import Refused

SignalKind: TypeAlias = Literal["rating", "correction", "label", "flag"]
SIGNAL_KINDS: Final[tuple[SignalKind, ...]] = get_args(SignalKind)
TargetKind: TypeAlias = Literal["run", "event", "node"]
TARGETS: Final[tuple[TargetKind, ...]] = get_args(TargetKind)
# The kinds with a value. The field of the value has the name of the kind.
KINDS_WITH_VALUE: Final[tuple[SignalKind, ...]] = ("rating", "correction", "label")
# The longest label, correction and note of a new annotation.
MAX_TEXT_BYTES: Final = 64 * 1024

# 4.0 is an integer in JSON Schema. It is accepted and stored as 4.
Rating: TypeAlias = (
    Annotated[int, msgspec.Meta(ge=1, le=5)]
    | Annotated[float, msgspec.Meta(ge=1, le=5, multiple_of=1)]
)


class Signal(Closed, frozen=True, kw_only=True):
    """The signal of an annotation. Exactly the field of its kind is present."""

    kind: SignalKind
    rating: Rating | Unset = UNSET
    label: str | Unset = UNSET
    correction: str | Unset = UNSET

    def __post_init__(self) -> None:
        for name in KINDS_WITH_VALUE:
            is_given = getattr(self, name) is not UNSET
            if is_given and name != self.kind:
                raise ValueError(f"unknown field `{name}` for a signal of kind {self.kind}")
            if not is_given and name == self.kind:
                raise ValueError(f"missing required field `{name}` of a signal of that kind")
        if isinstance(self.rating, float):
            force_setattr(self, "rating", int(self.rating))

    @property
    def stars(self) -> int | None:
        """The rating as a whole number, or None for another kind."""
        return None if isinstance(self.rating, Unset) else int(self.rating)


class Anchor(Closed, frozen=True, kw_only=True):
    """The target of an annotation within a run. Without members it is the run itself."""

    event_id: str | Unset = UNSET
    node_id: str | Unset = UNSET


class AnnotationCreate(Closed, frozen=True, kw_only=True):
    """The body of `POST /v1/runs/{runId}/annotations`."""

    signal: Signal
    target: Anchor = Anchor()
    note: str | Unset = UNSET


def check_texts(request: AnnotationCreate) -> None:
    """Raise `Refused` for a text that is longer than `MAX_TEXT_BYTES`.

    Stored annotations are not checked: redaction can make a text longer.
    """
    texts = {
        "signal.label": request.signal.label,
        "signal.correction": request.signal.correction,
        "note": request.note,
    }
    for field, text in texts.items():
        size = 0 if isinstance(text, Unset) else len(text.encode("utf-8", "replace"))
        if size > MAX_TEXT_BYTES:
            raise Refused(
                f"{field} may have at most {MAX_TEXT_BYTES} bytes as UTF-8, not {size}",
                field=field,
            )


class Actor(Closed, frozen=True, kw_only=True):
    """The author of an annotation: the principal of the key, or the id of a judging agent."""

    principal_ref: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class ActingAnnotationCreate(AnnotationCreate, frozen=True, kw_only=True):
    """The body of the request with an `actor`, for keys with the scope `annotations:actor`.

    With it a supervisor or a judge of another system annotates in the name of an agent.
    """

    actor: Actor | Unset = UNSET


class Target(Closed, frozen=True, kw_only=True):
    """The target of an annotation."""

    run_id: NonEmpty
    event_id: str | Unset = UNSET
    node_id: str | Unset = UNSET


class Annotation(Closed, frozen=True, kw_only=True):
    """A stored annotation, with its free text redacted."""

    annotation_id: NonEmpty
    target: Target
    signal: Signal
    actor: Actor
    created_at: str
    note: str | Unset = UNSET


class AnnotationList(Closed, frozen=True, kw_only=True, omit_defaults=False):
    """All annotations of a run, oldest first."""

    annotations: list[Annotation]
