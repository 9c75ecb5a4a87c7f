"""Everything an operator can set, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from wopr.engine.limits import HostLimits
from wopr.runtime.breaker import DeliveryPolicy
from wopr.runtime.settings_rules import broken_rules
from wopr.store.options import StoreOptions

DAY_MS = 86_400_000
_DEFAULT_LIMITS = HostLimits()


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
    # Requests per second that one key may make, with bursts of twice as many; 0 is no limit.
    rate_limit: int = 5000
    # Pushes of KAHN lines per second that one tenant may make, with bursts of twice as many; 0 is
    # no limit.
    ingest_rate_limit: int = 200
    # Traces that were exported to the fleet: how long after its last span a whole one is told, and
    # one whose root has not come.
    otlp_settle_seconds: float = 5.0
    otlp_quiet_seconds: float = 300.0
    # Whether spans hold what models and tools were told and said, out and in; redacted then.
    otel_content: bool = False
    # Requests under way at once before the host answers 503.
    max_in_flight: int = 2000
    max_readers_per_run: int = 1000
    # After how long a blocked event loop is logged with the node that blocks it; 0 is never.
    blocked_loop_seconds: float = 1.0
    # Where processes share a database: whether this one executes nodes and answers requests, how
    # many wake-ups it works on, and how many runs it has nodes of in flight, in all and of a tenant.
    executes: bool = True
    serves: bool = True
    wakeups_at_once: int = 20
    max_held_runs: int = 1000
    max_held_runs_per_tenant: int = 0
    # The version of the code that this process executes nodes with. It is kept on the events of
    # the nodes. Default: a digest of the app's sources, or the version of wopr.
    code_version: str = ""
    retention_days: int = 30
    # Days that KAHN runs are kept after their last push; 0 keeps pushed runs for ever.
    fleet_keep_days: int = 0
    drain_seconds: float = 10.0
    heartbeat_seconds: float = 15.0
    allow_private_destinations: bool = False
    # Webhooks: the first retry, how often an event is tried, and how long a receiver that failed
    # four times in a row is left alone.
    webhook_retry_ms: int = 1000
    webhook_attempts: int = 12
    webhook_open_seconds: float = 3600.0
    # Whether runs can be annotated.
    feedback: bool = True
    # Whether the web console is served beside the API, and the address that people reach it at
    # when a proxy stands before the host.
    console: bool = True
    public_url: str = ""
    host_key: str = field(default="", repr=False)
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
    model_servers: str = ""
    models_allowed: str = ""
    # Whether tenants must bring keys of their own; the operator's are then not used.
    require_own_keys: bool = False
    # Where credentials lie as files, <tenant>/<name>.
    secrets_dir: str = ""
    # Whether MCP clients are served, how long one waits for a run, and the file of MCP servers.
    mcp: bool = True
    mcp_call_seconds: float = 300.0
    mcp_servers: str = ""
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
        """Where the data lies, without what a person who looks on should not see."""
        parts = urlsplit(self.database_url)
        if parts.scheme == "sqlite":
            return self.database_url
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

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

    def checked(self) -> Settings:
        """Refuse settings that cannot work, naming each."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        faults = broken_rules(own | msgspec.structs.asdict(self.limits))
        if faults:
            raise ValueError("; ".join(faults))
        return self
