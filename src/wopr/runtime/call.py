"""One call of a node: the runtime's side of `NodeContext`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

import httpx
import msgspec

from wopr.engine.channels import allows, as_written, check_write, reduce, wrap
from wopr.engine.contexts import context_channel, group_of
from wopr.engine.fold import channel_limits
from wopr.engine.outcome import NodeFailure
from wopr.engine.snapshot import visible_variables
from wopr.engine.state import NodeState, RunState
from wopr.engine.triggers import scope
from wopr.nodes.context import ChildView, LogLevel
from wopr.protocol.checking import UserSchema, Violation
from wopr.protocol.documents import UNSET, Json, JsonObject, Unset
from wopr.protocol.errors import DescendantLimit, QuotaExceeded
from wopr.protocol.runs import RunError
from wopr.runtime.active import ActiveRun
from wopr.runtime.appender import Burst, encoded_value
from wopr.runtime.children import child_batch, no_room
from wopr.security.invocation import logical_invocation_id
from wopr.security.redact import LARGE_BYTES
from wopr.store.port import Artifact, Invocation

if TYPE_CHECKING:
    from wopr.runtime.advance import Advancer

T = TypeVar("T")
Draft = Callable[[Burst], None]
LARGEST_ARTIFACT_BYTES = 8 * 1024 * 1024
# Effects are numbered within one visit of a node; none performs a million of them in one.
EFFECTS_PER_VISIT = 1_000_000


class NodeCall:
    """What a node emits and writes during one call, kept until it is appended."""

    def __init__(
        self,
        advancer: Advancer,
        run: ActiveRun,
        node_id: str,
        state: RunState,
        *,
        now: int,
        children: tuple[ChildView, ...] = (),
    ) -> None:
        self._advancer = advancer
        self._run = run
        # With true values; only what passes the appender is masked.
        self.state = run.vault.reveal(state)
        self._node: NodeState = self.state.nodes[node_id]
        self._written: JsonObject = {}
        self._drafts: list[Draft] = []
        self._effects = 0
        self._artifacts = 0
        # Bytes of the values that are not on the log yet.
        self._size = 0
        self.tenant = state.identity.tenant
        self.redactor = advancer.journal.redactors.of(self.tenant)
        self.run_id = state.identity.run_id
        self.origin_run_id = state.identity.origin_run_id
        self.workflow_id = state.identity.workflow_id
        self.node_id = node_id
        self.attempt = self._node.attempt
        self.iteration = self._node.iteration
        self.visit = self._node.visit
        self.started_at = self._node.started_at
        self.started_event = self._node.started_event
        self.now = now
        self.chunks = self._node.chunks
        self.configurable: Mapping[str, Json] = state.configurable
        self.children = children
        # Whether outputs of this node are marked sensitive: what leads to them is, too.
        self.is_private = any(state.graph.nodes[node_id].output_sensitivity.values())

    @property
    def http(self) -> httpx.AsyncClient:
        """The client for requests to destinations that the tenant named."""
        return self._advancer.egress.client(self.tenant)

    @property
    def variables(self) -> Mapping[str, Json]:
        """The run's variables, with what this node has set."""
        return visible_variables(self.state) | self._written

    @property
    def scope(self) -> Mapping[str, Json]:
        """What an expression of this node can see."""
        return scope(self.state) | {"variables": self.variables}

    def write(self, burst: Burst) -> int:
        """Add what was emitted so far to the burst, in order; answer how much that was.

        A burst that loses a race is written again, so the drafts stay until `forget`. Raises
        `NodeFailure` when the tenant is far beyond a quota of bytes.
        """
        drafts = tuple(self._drafts)
        if drafts:
            burst.check_room()
        for draft in drafts:
            draft(burst)
        return len(drafts)

    def forget(self, count: int) -> None:
        """Let go of what is on the log."""
        self._size = 0
        del self._drafts[:count]

    def json_of(self, value: Json) -> Json:
        """A value of this node as the log will have it.

        Raises `NodeFailure` when the value is too large, or all that the run would then have.
        """
        limits = self._advancer.journal.data_limits
        body = encoded_value(value, limits)
        self._size += len(body)
        limits.check_run(self._run.log_bytes + self._size)
        return msgspec.json.decode(body)

    def emit(self, event_type: str, payload: JsonObject, *, causation_id: str = "") -> str:
        """Put an event on the run's log, if this node's type may emit it."""
        event_id = self._advancer.journal.new_id()
        payload = self.json_of(payload)
        cause = causation_id or self.started_event

        def draft(burst: Burst) -> None:
            burst.add_from_node(
                event_type, payload, node_id=self.node_id, causation_id=cause, event_id=event_id
            )

        self._drafts.append(draft)
        return event_id

    def _append(self, burst: Burst, event_type: str, payload: JsonObject) -> None:
        """Append an event that the host writes on the node's behalf, whatever the node's type."""
        burst.add(event_type, payload, node_id=self.node_id, causation_id=self.started_event)

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

        def draft(burst: Burst) -> None:
            payload: JsonObject = {"name": name, "next": value, "nodeId": self.node_id}
            if name in burst.state.variables:
                payload["previous"] = burst.state.variables[name]
            self._append(burst, "variable.changed", payload)

        self._drafts.append(draft)

    def read_channel(self, name: str) -> Json:
        """The folded value of a channel as the log has it, or `UNSET`."""
        self._check_access(name, "readers")
        return self.state.channels.get(name, UNSET)

    def write_channel(self, name: str, value: Json, *, reducer: str = "") -> None:
        """Write to a channel, if this node may and the value fits its reducer and schema."""
        self._check_access(name, "writers")
        declared = self.state.graph.channels.get(name)
        how = reducer or "replace" if declared is None else declared.reducer
        value = as_written(self.json_of(value), reducer=how)
        ttl_ms, max_size = channel_limits(self.state, name, self.node_id)
        group = group_of(context_channel(self.state.graph.nodes[self.node_id].config) or "")
        fault = check_write(value, reducer=how, max_size=max_size, group=group)
        if fault is not None:
            raise NodeFailure(f"channel {name}: {fault}", code="validation_error", retryable=False)
        keeps_time = bool(ttl_ms) and how in ("append", "votes", "feedback")

        def draft(burst: Burst) -> None:
            entry = wrap(value, at=burst.now) if keeps_time else value
            self._check_schema(burst, name, entry, how, ttl_ms, max_size)
            payload: JsonObject = {
                "channel": name,
                "value": entry,
                "reducer": how,
                "writtenAt": burst.iso,
                "nodeId": self.node_id,
            }
            if declared is not None:
                payload["schemaVersion"] = declared.schema_version
            self._append(burst, "channel.written", payload)

        self._drafts.append(draft)

    def _check_access(self, name: str, side: Literal["readers", "writers"]) -> None:
        declared = self.state.graph.channels.get(name)
        if declared is None:
            return
        type_id = self.state.graph.nodes[self.node_id].type_id
        if not allows(declared.access, side, node_id=self.node_id, type_id=type_id):
            allowed = None if isinstance(declared.access, str | Unset) else declared.access
            raise NodeFailure(
                f"{self.node_id} is not among the {side} of channel {name}",
                code="channel_access_denied",
                retryable=False,
                details={
                    "channel": name,
                    "requestedBy": {"nodeId": self.node_id, "typeId": type_id},
                    "allowed": msgspec.to_builtins(getattr(allowed, side, UNSET) or []),
                },
            )

    def _check_schema(
        self, burst: Burst, name: str, entry: Json, how: str, ttl: int | None, size: int | None
    ) -> None:
        """A channel's schema describes its folded value; a write that would break it is refused."""
        schema = self._run.compiled.channel_schemas.get(name)
        if schema is None:
            return
        current = burst.state.channels.get(name, UNSET)
        folded = reduce(current, entry, reducer=how, at=burst.now, ttl_ms=ttl, max_size=size)
        for violation in schema.violations(folded):
            raise NodeFailure(
                f"channel {name}: {violation.message}", code=violation.code, retryable=False
            )

    def log(self, level: LogLevel, message: str, **fields: Json) -> None:
        """Put a line on the run's log."""
        payload: JsonObject = {"level": level, "message": message, "nodeId": self.node_id}
        if fields:
            payload["fields"] = self.json_of(fields)
        self._drafts.append(lambda burst: self._append(burst, "log.appended", payload))

    def version(self, change_id: str, minimum: int, maximum: int) -> int:
        """Pin a version for this run, or repeat the pin."""
        pin = self.state.pins.get(change_id)
        if pin is None:
            payload = {"changeId": change_id, "version": maximum, "nodeId": self.node_id}
            self._drafts.append(lambda burst: self._append(burst, "version.pinned", payload))
            return maximum
        if not minimum <= pin <= maximum:
            raise NodeFailure(
                f"{change_id} is pinned to {pin}, outside {minimum}..{maximum}",
                code="version_out_of_range",
                retryable=False,
            )
        return pin

    def add_artifact(self, artifact_type: str, content: Json, *, summary: str = "") -> str:
        """Keep a document with the run and return its id."""
        encoded = encoded_value(content)
        if len(encoded) > LARGEST_ARTIFACT_BYTES:
            raise NodeFailure(
                f"an artifact may have at most {LARGEST_ARTIFACT_BYTES} bytes, not {len(encoded)}",
                code="validation_error",
                retryable=False,
            )
        document: Json = msgspec.json.decode(encoded)
        # Derived, not random: a replay names its artifacts alike.
        artifact_id = f"{self.node_id}-{self.visit}-{self._artifacts}"
        self._artifacts += 1

        def draft(burst: Burst) -> None:
            burst.artifacts.append(
                Artifact(
                    artifact_id=artifact_id,
                    node_id=self.node_id,
                    artifact_type=artifact_type,
                    created_at=burst.now,
                    body=msgspec.json.encode(burst.redacted(document)),
                )
            )
            payload = {
                "artifactId": artifact_id,
                "artifactType": artifact_type,
                "nodeId": self.node_id,
            }
            extra = {"summary": summary} if summary else {}
            self._append(burst, "artifact.created", payload | extra)

        self._drafts.append(draft)
        return artifact_id

    async def violations(self, schema: UserSchema, value: Json) -> Sequence[Violation]:
        """Find what a value breaks of a user's schema."""
        return await self.offloading(lambda: schema.violations(value))

    async def offloading(self, work: Callable[[], T]) -> T:
        """Call synchronous code, and have a subprocess do what it offloads."""
        return await self._advancer.journal.library.subprocesses.run(self.tenant, work)

    async def flush(self) -> None:
        """Append what has been emitted so far.

        A child that is refused because of a limit fails the node, and is not tried again with
        what the node emits later.
        """
        try:
            await self._advancer.executing.flush(self._run, self)
        except (DescendantLimit, QuotaExceeded) as refusal:
            self._drafts.clear()
            raise no_room(refusal) from refusal

    async def spawn(
        self, workflow_id: str, inputs: JsonObject, *, causation_id: str = "", flush: bool = True
    ) -> str:
        """Start a child run in the same transaction as its dispatch event."""
        batch = await child_batch(
            self._advancer.journal, self._run, self.node_id, workflow_id, inputs
        )
        child_id = batch.run.run_id

        def draft(burst: Burst) -> None:
            burst.children.append(batch)
            payload = {"childRunId": child_id, "childWorkflowId": workflow_id}
            cause = causation_id or self._node.started_event
            burst.add("node.dispatched", payload, node_id=self.node_id, causation_id=cause)

        self._drafts.append(draft)
        if flush:
            await self.flush()
        return child_id

    def invocation_id(self, provider_key: str) -> str:
        """The layer-2 id of this node's next effect."""
        ordinal = self.visit * EFFECTS_PER_VISIT + self._effects
        return logical_invocation_id(self.tenant, self.run_id, self.node_id, ordinal, provider_key)

    async def once(self, provider_key: str, effect: Callable[[], Awaitable[Json]]) -> Json:
        """Perform an effect once per logical invocation and record what came of it."""
        invocation_id = self.invocation_id(provider_key)
        store = self._advancer.journal.store
        record = await store.claim(
            self.tenant,
            Invocation(
                invocation_id=invocation_id,
                run_id=self.run_id,
                state="claimed",
                claimed_at=self._advancer.journal.now(),
            ),
        )
        if record.state == "succeeded" and record.outcome is not None:
            self._effects += 1
            return msgspec.json.decode(self._opened(record.outcome, invocation_id))
        if record.state == "failed" and record.outcome is not None:
            raise _recorded(self._opened(record.outcome, invocation_id))
        try:
            result = self.json_of(await effect())
        except NodeFailure as failure:
            # A failure worth another try leaves the claim open for the next attempt.
            if failure.error.retryable is False:
                body = msgspec.json.encode(await self.redacted(_plain(failure.error)))
                await store.settle(
                    self.tenant, invocation_id, "failed", self._kept(body, invocation_id)
                )
            raise
        body = msgspec.json.encode(await self.redacted(result))
        kept = self._kept(body, invocation_id)
        await store.settle(self.tenant, invocation_id, "succeeded", kept)
        self._effects += 1
        return result

    async def redacted(self, value: Json) -> Json:
        """A value without secrets. A large one is examined by a thread; the tenants take turns."""
        redactor = self.redactor
        body = msgspec.json.encode(value)
        if len(body) <= LARGE_BYTES:
            return redactor.json(value)
        subprocesses = self._advancer.journal.library.subprocesses
        return await subprocesses.in_thread(
            self.tenant,
            lambda: redactor.json(value) if redactor.may_hold_secret(body) else value,
        )

    def _kept(self, outcome: bytes, invocation_id: str) -> bytes:
        """An outcome as it is stored: sealed where it may hold what the run hides, or is to hide."""
        if self._run.vault.is_empty and not self.is_private:
            return outcome
        return self._advancer.journal.sealed(outcome, invocation_id)

    def _opened(self, outcome: bytes, invocation_id: str) -> bytes:
        return self._advancer.journal.opened(outcome, invocation_id)


def _plain(error: RunError) -> Json:
    return msgspec.to_builtins(error)


def _recorded(outcome: bytes) -> NodeFailure:
    error = msgspec.json.decode(outcome, type=RunError)
    details = None if isinstance(error.details, Unset) else error.details
    return NodeFailure(error.message, code=error.code, retryable=False, details=details)
