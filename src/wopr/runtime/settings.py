"""Everything an operator can set, in one frozen value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from wopr.engine.limits import HostLimits
from wopr.runtime.breaker import DeliveryPolicy
from wopr.store.options import StoreOptions

DAY_MS = 86_400_000
RETENTION_FLOOR_DAYS = 7
_DEFAULT_LIMITS = HostLimits()
_INTERRUPT_KIND = re.compile(r"approval|clarification|x-host-[a-z][a-z0-9-]*-[a-z][a-z0-9-]*")
_PUBLIC_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+")
_MODEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]*:.+")
_SERVER = r"\s*[A-Za-z][A-Za-z0-9_-]*\s*=\s*https?://[^\s,@]+\s*"
_SERVERS = re.compile(rf"(?:{_SERVER}(?:,{_SERVER})*)?")
_BUDGETS = ("max_budget_tokens", "max_budget_cost_usd", "max_model_calls", "max_tool_calls")
_OTLP = ("otlp_settle_seconds", "otlp_quiet_seconds", "otel_content")
_MCP = ("mcp", "mcp_call_seconds", "mcp_servers")
_NOT_NEGATIVE = ("ingest_rate_limit", *_OTLP[:2], *_BUDGETS, "mcp_call_seconds")
_WAITING = ("waiting-approval", "waiting-input", "waiting-external")


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
    # Where processes share a database: whether this one executes nodes and answers requests, how
    # many wake-ups it works on, and how many runs it has nodes of in flight, in all and of a tenant.
    executes: bool = True
    serves: bool = True
    wakeups_at_once: int = 20
    max_held_runs: int = 1000
    max_held_runs_per_tenant: int = 0
    retention_days: int = 30
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
    # approval, clarification, or x-host-<host>-<kind> with the status that it gives.
    confidence_floor: float = 0.5
    confidence_interrupt_kind: str = "approval"
    confidence_waiting_status: str = "waiting-approval"
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
        faults = [
            f"{name} must be {rule}, not {value}"
            for name, value, rule, is_fine in (
                ("port", self.port, "between 0 and 65535", 0 <= self.port <= 65535),
                (
                    "retention_days",
                    self.retention_days,
                    f"at least {RETENTION_FLOOR_DAYS}",
                    self.retention_days >= RETENTION_FLOOR_DAYS,
                ),
                (
                    "max_body_bytes",
                    self.max_body_bytes,
                    "at least 1024",
                    self.max_body_bytes >= 1024,
                ),
                ("db_pool_size", self.db_pool_size, "at least 3", self.db_pool_size >= 3),
                (
                    "db_pool_timeout_seconds",
                    self.db_pool_timeout_seconds,
                    "more than 0",
                    self.db_pool_timeout_seconds > 0,
                ),
                (
                    "db_statement_timeout_seconds",
                    self.db_statement_timeout_seconds,
                    "more than 0",
                    self.db_statement_timeout_seconds > 0,
                ),
                (
                    "db_slow_statement_ms",
                    self.db_slow_statement_ms,
                    "0 or more",
                    self.db_slow_statement_ms >= 0,
                ),
                ("wakeups_at_once", self.wakeups_at_once, "at least 1", self.wakeups_at_once >= 1),
                ("max_held_runs", self.max_held_runs, "at least 1", self.max_held_runs >= 1),
                (
                    "max_held_runs_per_tenant",
                    self.max_held_runs_per_tenant,
                    "0 or more",
                    self.max_held_runs_per_tenant >= 0,
                ),
                ("rate_limit", self.rate_limit, "0 or more", self.rate_limit >= 0),
                ("max_in_flight", self.max_in_flight, "at least 1", self.max_in_flight >= 1),
                (
                    "webhook_retry_ms",
                    self.webhook_retry_ms,
                    "at least 1",
                    self.webhook_retry_ms > 0,
                ),
                (
                    "webhook_attempts",
                    self.webhook_attempts,
                    "at least 1",
                    self.webhook_attempts > 0,
                ),
                (
                    "webhook_open_seconds",
                    self.webhook_open_seconds,
                    "0 or more",
                    self.webhook_open_seconds >= 0,
                ),
                (
                    "public_url",
                    self.public_url,
                    "http:// or https:// and a host, without a path",
                    not self.public_url or _PUBLIC_URL.fullmatch(self.public_url) is not None,
                ),
                (
                    "heartbeat_seconds",
                    self.heartbeat_seconds,
                    "between 0 and 30",
                    0 < self.heartbeat_seconds <= 30,
                ),
                (
                    "confidence_floor",
                    self.confidence_floor,
                    "between 0.5 and 1",
                    0.5 <= self.confidence_floor <= 1,
                ),
                (
                    "confidence_interrupt_kind",
                    self.confidence_interrupt_kind,
                    "approval, clarification or x-host-<host>-<kind>",
                    _INTERRUPT_KIND.fullmatch(self.confidence_interrupt_kind) is not None,
                ),
                (
                    "confidence_waiting_status",
                    self.confidence_waiting_status,
                    "waiting-approval, waiting-input or waiting-external",
                    self.confidence_waiting_status in _WAITING,
                ),
                (
                    "reasoning_verbosity",
                    self.reasoning_verbosity,
                    "summary, full or off",
                    self.reasoning_verbosity in ("summary", "full", "off"),
                ),
                (
                    "tool_rate_limit",
                    self.tool_rate_limit,
                    "0 or more",
                    0 <= self.tool_rate_limit < math.inf,
                ),
                *(
                    (name, getattr(self, name), "0 or more", 0 <= getattr(self, name) < math.inf)
                    for name in _NOT_NEGATIVE
                ),
                (
                    "default_model",
                    self.default_model,
                    "provider:model",
                    not self.default_model or _MODEL.fullmatch(self.default_model) is not None,
                ),
                (
                    "model_servers",
                    self.model_servers,
                    "name=url,... with http or https addresses",
                    _SERVERS.fullmatch(self.model_servers) is not None,
                ),
                (
                    "max_run_duration_ms",
                    self.limits.max_run_duration_ms,
                    "at least 1000",
                    self.limits.max_run_duration_ms >= 1000,
                ),
            )
            if not is_fine
        ]
        if faults:
            raise ValueError("; ".join(faults))
        return self


# Settings that have no option of their own on the command line.
_FROM_ENVIRONMENT = (
    "api_keys",
    "db_pool_size",
    "db_pool_timeout_seconds",
    "db_statement_timeout_seconds",
    "db_slow_statement_ms",
    "max_body_bytes",
    "max_metadata_bytes",
    "rate_limit",
    "ingest_rate_limit",
    *_OTLP,
    "max_in_flight",
    "max_readers_per_run",
    "wakeups_at_once",
    "max_held_runs",
    "max_held_runs_per_tenant",
    "retention_days",
    "drain_seconds",
    "heartbeat_seconds",
    "allow_private_destinations",
    "webhook_retry_ms",
    "webhook_attempts",
    "webhook_open_seconds",
    "feedback",
    "console",
    "public_url",
    "host_key",
    "confidence_floor",
    "confidence_interrupt_kind",
    "confidence_waiting_status",
    "suppress_escalation",
    "reasoning_verbosity",
    "reasoning_token_limit",
    "tool_rate_limit",
    "default_model",
    "model_servers",
    "models_allowed",
    "require_own_keys",
    "secrets_dir",
    *_MCP,
    *_BUDGETS,
)
_LIMITS = HostLimits.__struct_fields__


def with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Lay `WOPR_*` variables over settings; a value that does not parse is refused by name."""
    kinds: dict[str, type[Any]] = {
        f.name: type(getattr(settings, f.name)) for f in fields(settings)
    }
    changes: dict[str, Any] = {
        name: _parse(f"WOPR_{name.upper()}", environment[f"WOPR_{name.upper()}"], kinds[name])
        for name in _FROM_ENVIRONMENT
        if environment.get(f"WOPR_{name.upper()}")
    }
    limits = {
        name: _parse(f"WOPR_{name.upper()}", environment[f"WOPR_{name.upper()}"], int)
        for name in _LIMITS
        if environment.get(f"WOPR_{name.upper()}")
    }
    if limits:
        changes["limits"] = msgspec.structs.replace(settings.limits, **limits)
    return replace(settings, **changes)


def _parse(name: str, text: str, kind: type) -> str | int | float | bool:
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ValueError(f"{name} must be 1 or 0, not {text!r}")
    if kind is str:
        return text
    try:
        return float(text) if kind is float else int(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, not {text!r}") from None
