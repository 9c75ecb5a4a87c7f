"""The implementation of `nodes.context.NodeContext`: what a node reads, emits and writes.

A call of a node changes nothing by itself. Everything that it emits or writes is a draft, and the
drafts are added to a batch of events together with the outcome, or earlier at `flush`.
`agent_context` adds the parts for nodes of agents.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import httpx
import msgspec

from wopr.agents.loop.context import LogLevel
from wopr.engine.channels import (
    allows_access,
    check_write,
    complete_message,
    context_channel,
    group_of,
    reduce,
    wrap,
)
from wopr.engine.fold.fold import channel_limits
from wopr.engine.outcome import NodeFailure
from wopr.engine.snapshot import visible_variables
from wopr.engine.state import NodeState, RunState
from wopr.engine.triggers import expression_scope
from wopr.nodes.context import ChildView
from wopr.process.egress import Egress
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.errors import DescendantLimit, QuotaExceeded
from wopr.protocol.json_schema.validation import UserSchema, Violation
from wopr.protocol.runs import RunError
from wopr.runs.active import ActiveRun
from wopr.runs.append import EventBatch, encode_value
from wopr.runs.execution.children import child_batch, child_failure
from wopr.runs.execution.node_events import is_current
from wopr.runs.journal import Journal
from wopr.security.idempotency_keys import logical_invocation_id
from wopr.security.redact import LARGE_BYTES, Redactor
from wopr.store.port import Artifact, Invocation

T = TypeVar("T")
# Adds an event, an artifact or a child run to a batch. Called again when the batch is made again.
Draft = Callable[[EventBatch], None]
# Appends what a node in flight has emitted, and returns the number of drafts.
AppendDrafts = Callable[[ActiveRun, Callable[[EventBatch], int]], Awaitable[int]]
MAX_ARTIFACT_BYTES = 8 * 1024 * 1024
# Effects are numbered within one visit of a node. No visit has a million of them.
EFFECTS_PER_VISIT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextServices:
    """Services that the contexts of all nodes share."""

    journal: Journal
    egress: Egress
    append_drafts: AppendDrafts


class ExecutionContext:
    """One call of a node: what it reads, and the events and writes that are not appended yet."""

    def __init__(
        self,
        services: ContextServices,
        run: ActiveRun,
        node_id: str,
        state: RunState,
        *,
        now: int,
    ) -> None:
        self._shared = services
        self._journal = services.journal
        self._run = run
        # With true values: masking happens when an event is appended.
        self.state = run.sensitive.unmask(state)
        self._node: NodeState = self.state.nodes[node_id]
        self._written: JsonObject = {}
        self._drafts: list[Draft] = []
        self._effects = 0
        self._artifacts = 0
        # Bytes of the values that are not on the log yet.
        self._size = 0
        node = state.graph.nodes[node_id]
        self.tenant = state.identity.tenant
        self.run_id = state.identity.run_id
        self.origin_run_id = state.identity.origin_run_id
        self.workflow_id = state.identity.workflow_id
        self.node_id = node_id
        self.agent = None if isinstance(node.agent, Unset) else node.agent
        # Whether the node is pinned to an agent, or its workflow requires one.
        self.has_agent = self.agent is not None or not isinstance(
            state.graph.definition.metadata.requires_agent_id, Unset
        )
        self.attempt = self._node.attempt
        self.iteration = self._node.iteration
        self.visit = self._node.visit
        self.started_at = self._node.started_at
        self.started_event = self._node.started_event
        self.now = now
        self.chunks = self._node.chunks
        self.feedback = self._node.feedback
        self.configurable: Mapping[str, Json] = state.configurable
        # The child runs of the node. The executor reads them before it calls an async node.
        self.children: tuple[ChildView, ...] = ()
        # Whether outputs of the node are marked sensitive. Then its requests and results are too.
        self.is_private = any(node.output_sensitivity.values())

    # -- what a node reads

    @property
    def redactor(self) -> Redactor:
        """The redactor of the tenant."""
        return self._journal.redactors.of_tenant(self.tenant)

    @property
    def http(self) -> httpx.AsyncClient:
        """The client for requests to destinations that the tenant named."""
        return self._shared.egress.client(self.tenant)

    @property
    def variables(self) -> Mapping[str, Json]:
        """The run's variables, with what this node has set."""
        return visible_variables(self.state) | self._written

    @property
    def scope(self) -> Mapping[str, Json]:
        """The values that an expression of this node can read."""
        return expression_scope(self.state) | {"variables": self.variables}

    def answer(self, key: str) -> Json:
        """Return the recorded resume value of the interrupt with this key, or `UNSET`."""
        return self.state.answers.get(key, UNSET)

    def interrupt_key(self, purpose: str = "") -> str:
        """Return the key of this node's interrupt in this visit. A replay has the same key."""
        suffix = f":{purpose}" if purpose else ""
        return f"{self.node_id}:{self.visit}{suffix}"

    def clock(self) -> int:
        """Return the current time in milliseconds since the epoch."""
        return self._journal.now()

    def advertises(self, event_type: str) -> bool:
        """Return whether this host may put events of this type on a log."""
        return self._journal.guard.advertises(event_type)

    def read_channel(self, name: str) -> Json:
        """Return the folded value of a channel, or `UNSET`."""
        self._check_access(name, "readers")
        return self.state.channels.get(name, UNSET)

    # -- what a node emits and writes: drafts, in order

    def emit(self, event_type: str, payload: JsonObject, *, causation_id: str = "") -> str:
        """Add an event as a draft. Its append fails when this node's type may not emit it."""
        event_id = self._journal.new_id()
        payload = self.json_of(payload)
        cause = causation_id or self.started_event

        def draft(batch: EventBatch) -> None:
            batch.add_from_node(
                event_type, payload, node_id=self.node_id, causation_id=cause, event_id=event_id
            )

        self._drafts.append(draft)
        return event_id

    def record(self, event_type: str, payload: JsonObject, causation_id: str = "") -> str:
        """Add an event of the host as a draft, if the host advertises its type."""
        event_id = self._journal.new_id()
        payload = self.json_of(payload)
        cause = causation_id or self.started_event

        def draft(batch: EventBatch) -> None:
            if batch.rules.guard.advertises(event_type):
                batch.add(
                    event_type, payload, node_id=self.node_id, causation_id=cause, event_id=event_id
                )

        self._drafts.append(draft)
        return event_id

    def log(self, level: LogLevel, message: str, **fields: Json) -> None:
        """Append `log.appended`."""
        payload: JsonObject = {"level": level, "message": message, "nodeId": self.node_id}
        if fields:
            payload["fields"] = self.json_of(fields)
        self._drafts.append(lambda batch: self._append(batch, "log.appended", payload))

    def version(self, change_id: str, minimum: int, maximum: int) -> int:
        """Pin a version for this run, or return the pinned one."""
        pin = self.state.pins.get(change_id)
        if pin is None:
            payload = {"changeId": change_id, "version": maximum, "nodeId": self.node_id}
            self._drafts.append(lambda batch: self._append(batch, "version.pinned", payload))
            return maximum
        if not minimum <= pin <= maximum:
            raise NodeFailure(
                f"{change_id} is pinned to {pin}, outside {minimum}..{maximum}",
                code="version_out_of_range",
                retryable=False,
            )
        return pin

    def set_variable(self, name: str, value: Json) -> None:
        """Change a variable of the run."""
        if name in self.state.graph.channels:
            raise NodeFailure(
                f"{name} is a channel of this workflow; write it with a channel write",
                code="validation_error",
                retryable=False,
            )
        value = self.json_of(value)
        self._written[name] = value

        def draft(batch: EventBatch) -> None:
            payload: JsonObject = {"name": name, "next": value, "nodeId": self.node_id}
            if name in batch.state.variables:
                payload["previous"] = batch.state.variables[name]
            self._append(batch, "variable.changed", payload)

        self._drafts.append(draft)

    def write_channel(self, name: str, value: Json, *, reducer: str = "") -> None:
        """Write to a channel, if this node may and the value fits its reducer and schema."""
        self._check_access(name, "writers")
        declared = self.state.graph.channels.get(name)
        how = reducer or "replace" if declared is None else declared.reducer
        value = complete_message(self.json_of(value), reducer=how)
        ttl_ms, max_size = channel_limits(self.state, name, self.node_id)
        group = group_of(context_channel(self.state.graph.nodes[self.node_id].config) or "")
        fault = check_write(value, reducer=how, max_size=max_size, group=group)
        if fault is not None:
            raise NodeFailure(f"channel {name}: {fault}", code="validation_error", retryable=False)
        keeps_time = bool(ttl_ms) and how in ("append", "votes", "feedback")

        def draft(batch: EventBatch) -> None:
            entry = wrap(value, at=batch.now) if keeps_time else value
            self._check_schema(batch, name, entry, how, ttl_ms, max_size)
            payload: JsonObject = {
                "channel": name,
                "value": entry,
                "reducer": how,
                "writtenAt": batch.iso,
                "nodeId": self.node_id,
            }
            if declared is not None:
                payload["schemaVersion"] = declared.schema_version
            self._append(batch, "channel.written", payload)

        self._drafts.append(draft)

    def add_artifact(self, artifact_type: str, content: Json, *, summary: str = "") -> str:
        """Store a document with the run and return its id."""
        encoded = encode_value(content)
        if len(encoded) > MAX_ARTIFACT_BYTES:
            raise NodeFailure(
                f"an artifact may have at most {MAX_ARTIFACT_BYTES} bytes, not {len(encoded)}",
                code="validation_error",
                retryable=False,
            )
        document: Json = msgspec.json.decode(encoded)
        # Derived, so that a replay has the same id.
        artifact_id = f"{self.node_id}-{self.visit}-{self._artifacts}"
        self._artifacts += 1

        def draft(batch: EventBatch) -> None:
            batch.artifacts.append(
                Artifact(
                    artifact_id=artifact_id,
                    node_id=self.node_id,
                    artifact_type=artifact_type,
                    created_at=batch.now,
                    body=msgspec.json.encode(batch.redact(document)),
                )
            )
            payload = {
                "artifactId": artifact_id,
                "artifactType": artifact_type,
                "nodeId": self.node_id,
            }
            extra = {"summary": summary} if summary else {}
            self._append(batch, "artifact.created", payload | extra)

        self._drafts.append(draft)
        return artifact_id

    async def spawn(
        self, workflow_id: str, inputs: JsonObject, *, causation_id: str = "", flush: bool = True
    ) -> str:
        """Start a child run in the same transaction as its dispatch event."""
        child = await child_batch(self._journal, self._run, self.node_id, workflow_id, inputs)
        child_id = child.run.run_id

        def draft(batch: EventBatch) -> None:
            batch.children.append(child)
            payload = {"childRunId": child_id, "childWorkflowId": workflow_id}
            cause = causation_id or self._node.started_event
            batch.add("node.dispatched", payload, node_id=self.node_id, causation_id=cause)

        self._drafts.append(draft)
        if flush:
            await self.flush()
        return child_id

    def _append(self, batch: EventBatch, event_type: str, payload: JsonObject) -> None:
        """Append an event of the host for this node. Any node type may cause it."""
        batch.add(event_type, payload, node_id=self.node_id, causation_id=self.started_event)

    def json_of(self, value: Json) -> Json:
        """Return a value of this node in the form that the log will have.

        Raises `NodeFailure` when the value or all data of the run is too large.
        """
        limits = self._journal.data_limits
        body = encode_value(value, limits)
        self._size += len(body)
        limits.check_run(self._run.log_bytes + self._size)
        return msgspec.json.decode(body)

    def _check_access(self, name: str, side: Literal["readers", "writers"]) -> None:
        declared = self.state.graph.channels.get(name)
        if declared is None:
            return
        type_id = self.state.graph.nodes[self.node_id].type_id
        if not allows_access(declared.access, side, node_id=self.node_id, type_id=type_id):
            allowed = None if isinstance(declared.access, str | Unset) else declared.access
            raise NodeFailure(
                f"{self.node_id} is not one of the {side} of channel {name}",
                code="channel_access_denied",
                retryable=False,
                details={
                    "channel": name,
                    "requestedBy": {"nodeId": self.node_id, "typeId": type_id},
                    "allowed": msgspec.to_builtins(getattr(allowed, side, UNSET) or []),
                },
            )

    def _check_schema(
        self, batch: EventBatch, name: str, entry: Json, how: str, ttl: int | None, size: int | None
    ) -> None:
        """Raise `NodeFailure` for a write that would break the channel's schema."""
        schema = self._run.compiled.channel_schemas.get(name)
        if schema is None:
            return
        current = batch.state.channels.get(name, UNSET)
        folded = reduce(current, entry, reducer=how, at=batch.now, ttl_ms=ttl, max_size=size)
        for violation in schema.violations(folded):
            raise NodeFailure(
                f"channel {name}: {violation.message}", code=violation.code, retryable=False
            )

    # -- the append of the drafts

    def write(self, batch: EventBatch) -> int:
        """Add the drafts to a batch in order, and return their number.

        A batch that loses a race is made again, so the drafts are kept until `discard_drafts`.
        Raises `NodeFailure` when the tenant is far beyond a quota of bytes.
        """
        drafts = tuple(self._drafts)
        if drafts:
            batch.check_quota()
        for draft in drafts:
            draft(batch)
        return len(drafts)

    def discard_drafts(self, count: int) -> None:
        """Delete the drafts that are on the log."""
        self._size = 0
        del self._drafts[:count]

    async def flush(self) -> None:
        """Append what has been emitted so far.

        A child run that a limit refuses fails the node. The drafts are dropped, so that a later
        flush does not try again.
        """
        try:
            self.discard_drafts(await self._shared.append_drafts(self._run, self._write_if_current))
        except (DescendantLimit, QuotaExceeded) as refusal:
            self._drafts.clear()
            raise child_failure(refusal) from refusal

    def _write_if_current(self, batch: EventBatch) -> int:
        """Write the drafts, unless the log no longer waits for this execution."""
        is_awaited = is_current(batch.state, self.node_id, self.started_event)
        return self.write(batch) if is_awaited else 0

    # -- effects outside of the run, and long work

    def invocation_id(self, provider_key: str) -> str:
        """Return the logical invocation id of this node's next effect."""
        ordinal = self.visit * EFFECTS_PER_VISIT + self._effects
        return logical_invocation_id(self.tenant, self.run_id, self.node_id, ordinal, provider_key)

    async def once(self, provider_key: str, effect: Callable[[], Awaitable[Json]]) -> Json:
        """Perform an effect once per logical invocation, and record its outcome."""
        invocation_id = self.invocation_id(provider_key)
        store = self._journal.store
        record = await store.claim_invocation(
            self.tenant,
            Invocation(
                invocation_id=invocation_id,
                run_id=self.run_id,
                state="claimed",
                claimed_at=self._journal.now(),
            ),
        )
        if record.state == "succeeded" and record.outcome is not None:
            self._effects += 1
            return msgspec.json.decode(self._journal.decrypt(record.outcome, invocation_id))
        if record.state == "failed" and record.outcome is not None:
            raise _recorded_failure(self._journal.decrypt(record.outcome, invocation_id))
        try:
            result = self.json_of(await effect())
        except NodeFailure as failure:
            # After a retryable failure the claim stays open for the next attempt.
            if failure.error.retryable is False:
                body = msgspec.json.encode(await self.redact(msgspec.to_builtins(failure.error)))
                await store.settle_invocation(
                    self.tenant,
                    invocation_id,
                    "failed",
                    self._encrypt_if_sensitive(body, invocation_id),
                )
            raise
        body = msgspec.json.encode(await self.redact(result))
        kept = self._encrypt_if_sensitive(body, invocation_id)
        await store.settle_invocation(self.tenant, invocation_id, "succeeded", kept)
        self._effects += 1
        return result

    async def redact(self, value: Json) -> Json:
        """Return a value without secrets. A thread examines large values."""
        redactor = self.redactor
        body = msgspec.json.encode(value)
        if len(body) <= LARGE_BYTES:
            return redactor.json(value)
        subprocesses = self._journal.library.subprocesses
        return await subprocesses.in_thread(
            self.tenant,
            lambda: redactor.json(value) if redactor.may_hold_secret(body) else value,
        )

    async def violations(self, schema: UserSchema, value: Json) -> Sequence[Violation]:
        """Return the violations of a user's schema by a value."""
        return await self.offload(lambda: schema.violations(value))

    async def offload(self, work: Callable[[], T]) -> T:
        """Call synchronous code. A subprocess does the work that the code offloads."""
        return await self._journal.library.subprocesses.run(self.tenant, work)

    def _encrypt_if_sensitive(self, outcome: bytes, invocation_id: str) -> bytes:
        """Return an outcome as it is stored: encrypted when it may have sensitive values."""
        if self._run.sensitive.is_empty and not self.is_private:
            return outcome
        return self._journal.encrypt(outcome, invocation_id)


def _recorded_failure(outcome: bytes) -> NodeFailure:
    error = msgspec.json.decode(outcome, type=RunError)
    details = None if isinstance(error.details, Unset) else error.details
    return NodeFailure(error.message, code=error.code, retryable=False, details=details)
