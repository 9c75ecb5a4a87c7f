"""`core.fail`: fail on purpose."""

from __future__ import annotations

from wopr.engine.outcome import Failed
from wopr.nodes.context import NodeContext
from wopr.nodes.registry import node
from wopr.protocol.documents import Document, JsonObject, NonEmpty
from wopr.protocol.runs import RunError


class FailConfig(Document, frozen=True, kw_only=True):
    """The error to fail with."""

    code: NonEmpty = "conformance_test_failure"
    message: NonEmpty = "Intentional conformance failure"


@node("core.fail")
def fail(ctx: NodeContext, config: FailConfig, inputs: JsonObject) -> Failed:
    """Fail with the configured code and message."""
    return Failed(RunError(code=config.code, message=config.message))
