"""Everything an operator can set, in one frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import unquote

import msgspec

from wopr.engine.limits import HostLimits
from wopr.protocol.schema_size import SchemaLimits
from wopr.runtime.breaker import DeliveryPolicy
from wopr.runtime.registration import DefinitionLimits
from wopr.runtime.settings_rules import broken_rules
from wopr.runtime.subprocess_pool import PoolLimits
from wopr.security.keys import parse_env_keys
from wopr.store.options import StoreOptions

DAY_MS = 86_400_000
MIN_SINK_SECRET = 32
_DEFAULT_LIMITS = HostLimits()
# The kind of the server, the login and the password, the hosts with their ports, the database, and
# options, among which a password may be.
_SERVER_URL = re.compile(
    r"(postgres(?:ql)?://)(?:[^@/?#\s]*@)?"
    r"((?:[\w.-]+|\[[0-9A-Fa-f:.]+\])?(?::\d{1,5})?(?:,(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?)*)"
    r"(/[\w.-]*)?(?:\?[^\s]*)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one process; the command line and `WOPR_*` variables fill them."""

    host: str = "127.0.0.1"
    port: int = 8642
    data_dir: Path = Path("data")
    db: str = field(default="", repr=False)
    # Connections to a database server: how many, and how long a call waits for one, a statement
    # runs, and may run before it is logged as slow.
    db_pool_size: int = 10
    db_pool_timeout_seconds: float = 10.0
    db_statement_timeout_seconds: float = 30.0
    db_slow_statement_ms: int = 500
    workflows: tuple[Path, ...] = ()
    conformance: bool = False
    log_format: str = "text"
    log_level: str = "info"
    api_keys: str = field(default="", repr=False)
    limits: HostLimits = _DEFAULT_LIMITS
    max_body_bytes: int = 4 * 1024 * 1024
    max_metadata_bytes: int = 8192
    # How large a workflow definition may be.
    max_workflow_bytes: int = 1024 * 1024
    max_workflow_nodes: int = 1000
    max_workflow_edges: int = 5000
    max_workflow_expressions: int = 500
    max_workflow_expression_bytes: int = 64 * 1024
    # How large an agent manifest may be.
    max_agent_bytes: int = 256 * 1024
    # JSON Schemas of users: their JSON, and their subschemas once every reference is expanded.
    max_schema_bytes: int = 256 * 1024
    max_schema_subschemas: int = 20_000
    # Subprocesses for checks that may take long: how many, how long a check may run and wait for
    # one, and how much memory each may use.
    check_processes: int = 2
    check_seconds: float = 2.0
    check_wait_seconds: float = 10.0
    check_memory_mib: int = 512
    # Requests per second that one key may make, with bursts of twice as many; 0 is no limit.
    rate_limit: int = 5000
    # Quotas of one tenant, 0 is no limit: requests per second, runs that are due and wait, stored
    # bytes, bytes of artifacts, versions of definitions, versions of agents, events appended per
    # second, and model tokens per day (UTC).
    quota_requests_per_second: int = 10_000
    quota_queued_runs: int = 5_000
    quota_stored_bytes: int = 20 * 1024**3
    quota_artifact_bytes: int = 10 * 1024**3
    quota_workflow_versions: int = 10_000
    quota_agents: int = 10_000
    quota_events_per_second: int = 20_000
    quota_model_tokens_per_day: int = 50_000_000
    # Pushes of KAHN lines per second that one tenant may make, with bursts of twice as many; 0 is
    # no limit.
    ingest_rate_limit: int = 200
    # Traces that were exported to the fleet: how long after its last span a whole one is told, and
    # one whose root has not come.
    otlp_settle_seconds: float = 5.0
    otlp_quiet_seconds: float = 300.0
    # Whether spans hold what models and tools were told and said, out and in; redacted then.
    otel_content: bool = False
    # Authenticated requests in progress before the host answers 503.
    max_in_flight: int = 2000
    # Bytes of request bodies that arrive or are not answered yet; one tenant may hold a quarter.
    max_incoming_bytes: int = 256 * 1024 * 1024
    # Whether /metrics needs no key, and a port of its own for it, where it needs none: 0 is none.
    # Without a host of its own that port has the host's address.
    metrics_open: bool = False
    metrics_port: int = 0
    metrics_host: str = ""
    # Failed authentications of one address in a minute before it is told to wait; 0 is no limit.
    failed_auth_limit: int = 60
    # Requests per second of one address that need no key, in bursts of four seconds; 0 is no limit.
    open_rate_limit: int = 50
    # Connections: the size and the deadline of a request's head, the grace period and the minimum
    # rate (bytes per second) of its body, the idle time between requests, and how many are open: in
    # all, of one client address, and without an authenticated request.
    max_header_bytes: int = 64 * 1024
    header_seconds: float = 15.0
    body_grace_seconds: float = 15.0
    min_body_rate: int = 8192
    keep_alive_seconds: int = 75
    max_connections: int = 5000
    max_connections_per_address: int = 2500
    max_unauthenticated_connections: int = 1000
    # Proxies whose X-Forwarded-For is believed: addresses and networks, separated by commas.
    trusted_proxies: str = ""
    max_readers_per_run: int = 1000
    # Comparisons, debug bundles and pages of runs that are made at once; one tenant makes one.
    max_heavy_reads: int = 2
    # Open streams of one key, of one tenant and of this process, and live pages of the console of
    # one key. Polls that wait and requests of MCP clients count as streams.
    max_streams_per_key: int = 300
    max_streams_per_tenant: int = 600
    max_streams: int = 2000
    max_console_streams_per_key: int = 300
    # Bytes that this process holds for clients that do not read: answers and streams.
    max_stream_buffer_bytes: int = 64 * 1024 * 1024
    # After how long a connection is closed whose client reads nothing of what was sent to it, and
    # the lowest rate (bytes per second) at which it may read after that time.
    send_timeout_seconds: float = 30.0
    min_read_rate: int = 16_384
    # After how long a blocked event loop is logged with the node that blocks it; 0 is never.
    blocked_loop_seconds: float = 1.0
    # Where processes share a database: whether this one executes nodes and answers requests, how
    # many wake-ups it works on, and how many runs it has nodes of in flight, in all and of a tenant.
    executes: bool = True
    serves: bool = True
    wakeups_at_once: int = 20
    max_held_runs: int = 1000
    max_held_runs_per_tenant: int = 0
    # Memory, estimated, of the large runs that this process has nodes of in flight; one tenant may
    # have half of it.
    max_held_bytes: int = 512 * 1024 * 1024
    # Runs that descend from one root run, and runs of one tenant that have not ended; 0 is no limit.
    max_descendants: int = 1000
    max_active_runs: int = 10_000
    # Bytes, as JSON, of one value that a node or a person gives, of one event, and of all events of
    # one run.
    max_value_bytes: int = 4 * 1024 * 1024
    max_event_bytes: int = 10 * 1024 * 1024
    max_run_bytes: int = 32 * 1024 * 1024
    # A value of more bytes, as JSON, is stored as an artifact; 0 keeps all values in the events.
    inline_value_bytes: int = 256 * 1024
    # The version of the code that this process executes nodes with. It is kept on the events of
    # the nodes. Default: a digest of the app's sources, or the version of wopr.
    code_version: str = ""
    retention_days: int = 30
    # Days that KAHN runs are kept after their last push; 0 keeps pushed runs for ever.
    fleet_keep_days: int = 0
    drain_seconds: float = 10.0
    heartbeat_seconds: float = 15.0
    allow_private_destinations: bool = False
    # Of one tenant at once: requests of nodes and tools to other hosts, deliveries to webhooks, and
    # names that are resolved for either.
    max_outgoing_per_tenant: int = 50
    max_deliveries_per_tenant: int = 32
    max_lookups_per_tenant: int = 4
    # Webhooks: the first retry, how often an event is tried, and how long a receiver that failed
    # four times in a row is left alone.
    webhook_retry_ms: int = 1000
    webhook_attempts: int = 12
    webhook_open_seconds: float = 3600.0
    # Which reads are on the audit log: off, sensitive or all.
    audit_reads: str = "off"
    # Where the audit log is copied to, a file or a webhook, and the secret that signs the webhook.
    audit_sink: str = field(default="", repr=False)
    audit_sink_secret: str = field(default="", repr=False)
    # Whether runs can be annotated.
    feedback: bool = True
    # Whether the web console is served beside the API, and the address that people reach it at
    # when a proxy stands before the host.
    console: bool = True
    public_url: str = ""
    host_key: str = field(default="", repr=False)
    encryption_key: str = field(default="", repr=False)
    encryption_key_file: str = ""
    encryption_key_command: str = field(default="", repr=False)
    # How sure a supervisor must be, and the kind of interrupt that asks when it is not:
    # approval, clarification, or a kind of this host's own, x-host-<host>-<kind>.
    confidence_floor: float = 0.5
    confidence_interrupt_kind: str = "approval"
    # What a kind of this host's own means: its canonical escalation kind, the status of a run
    # that waits (empty: the status of the canonical kind), and the consumers that match on the
    # name, separated by commas. `literal_vendor_kind` writes the kind itself into the events,
    # whose schemas exclude it.
    vendor_kind_means: str = "escalate"
    vendor_kind_status: str = ""
    vendor_kind_consumers: str = "inbox,webhooks,audit log"
    literal_vendor_kind: bool = False
    # Let unsure agents pass, on the record. Off unless the operator wants it.
    suppress_escalation: bool = False
    reasoning_verbosity: str = "summary"
    reasoning_token_limit: int = 512
    # Calls per second that one key's runs may make of one tool; 0 is no limit.
    tool_rate_limit: float = 0.0
    # The model of nodes that name none, OpenAI-compatible servers as name=url,... and the models
    # that may be used, as patterns of provider:model; without any all may.
    default_model: str = ""
    model_servers: str = field(default="", repr=False)
    models_allowed: str = ""
    # Whether tenants must bring keys of their own; the operator's are then not used.
    require_own_keys: bool = False
    # Where credentials lie as files, <tenant>/<name>.
    secrets_dir: str = ""
    # Whether MCP clients are served, how long one waits for a run, and the file of MCP servers.
    mcp: bool = True
    mcp_call_seconds: float = 300.0
    mcp_servers: str = ""
    # Origins of web pages that may call /mcp beside the host's own, separated by commas.
    mcp_origins: str = ""
    # What one run may use; 0 is no limit.
    max_budget_tokens: int = 0
    max_budget_cost_usd: float = 0.0
    max_model_calls: int = 1000
    max_tool_calls: int = 1000

    @property
    def database_url(self) -> str:
        """Where the data lies."""
        return self.db or f"sqlite:///{self.data_dir / 'wopr.db'}"

    @property
    def database_shown(self) -> str:
        """Where the data lies, for the operator: without login, password and options.

        Of a URL that cannot be taken apart for sure nothing is shown.
        """
        if self.database_url.startswith("sqlite:///"):
            return self.database_url
        found = _SERVER_URL.fullmatch(self.database_url)
        return "".join(found.groups(default="")) if found else "(a database server)"

    @property
    def database_passwords(self) -> tuple[str, ...]:
        """What is secret in the database URL."""
        if self.database_url.startswith("sqlite:///"):
            return ()
        login, _, rest = self.database_url.partition("://")[2].rpartition("@")
        query = rest.partition("?")[2]
        values = [login.partition(":")[2]]
        values += [part.partition("=")[2] for part in query.split("&") if "password=" in part]
        return tuple(dict.fromkeys(form for each in values for form in (each, unquote(each))))

    @property
    def store_options(self) -> StoreOptions:
        """How the host is connected to a database server."""
        return StoreOptions(
            pool_size=self.db_pool_size,
            pool_timeout_seconds=self.db_pool_timeout_seconds,
            statement_timeout_seconds=self.db_statement_timeout_seconds,
            slow_statement_ms=self.db_slow_statement_ms,
        )

    @property
    def delivery_policy(self) -> DeliveryPolicy:
        """How patient the host is with receivers of webhooks."""
        return DeliveryPolicy(
            retry_ms=self.webhook_retry_ms,
            attempts=self.webhook_attempts,
            open_ms=round(self.webhook_open_seconds * 1000),
        )

    @property
    def schema_limits(self) -> SchemaLimits:
        """How large a user's JSON Schema may be."""
        return SchemaLimits(
            max_bytes=self.max_schema_bytes, max_subschemas=self.max_schema_subschemas
        )

    @property
    def definition_limits(self) -> DefinitionLimits:
        """How large a workflow definition may be."""
        return DefinitionLimits(
            max_bytes=self.max_workflow_bytes,
            max_nodes=self.max_workflow_nodes,
            max_edges=self.max_workflow_edges,
            max_expressions=self.max_workflow_expressions,
            max_expression_bytes=self.max_workflow_expression_bytes,
            schemas=self.schema_limits,
        )

    @property
    def pool_limits(self) -> PoolLimits:
        """What the subprocesses for long checks may use."""
        return PoolLimits(
            size=self.check_processes,
            deadline_seconds=self.check_seconds,
            wait_seconds=self.check_wait_seconds,
            memory_mib=self.check_memory_mib,
        )

    def checked(self) -> Settings:
        """Refuse settings that cannot work, naming each."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        faults = broken_rules(own | msgspec.structs.asdict(self.limits))
        if self.audit_sink.startswith("http") and len(self.audit_sink_secret) < MIN_SINK_SECRET:
            faults.append(f"audit_sink_secret must have at least {MIN_SINK_SECRET} characters")
        try:
            parse_env_keys(self.api_keys)
        except ValueError as fault:
            faults.append(str(fault))
        if faults:
            raise ValueError("; ".join(faults))
        return self
