"""Settings of an operator: their defaults, their rules, and their environment variables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from wopr.engine.limits import HostLimits
from wopr.process.subprocess_pool import PoolLimits
from wopr.protocol.interrupts import VENDOR_KIND_PATTERN
from wopr.protocol.json_schema.size import SchemaLimits
from wopr.security.api_keys import parse_env_keys
from wopr.security.proxies import TrustedProxies
from wopr.store.port.store import StoreOptions

_MODEL_SERVER: Final = r"\s*[A-Za-z][A-Za-z0-9_-]*\s*=\s*https?://[^\s,@]+\s*"

_ORIGIN: Final = r"https?://[A-Za-z0-9.:\[\]-]+"


class Rule(NamedTuple):
    """The rule of a setting: a description of valid values, and a check."""

    setting: str
    description: str
    is_valid: Callable[[object], bool]
    is_secret: bool = False


def _number(setting: str, description: str, is_in_bounds: Callable[[float], bool]) -> Rule:
    def is_valid(value: object) -> bool:
        return isinstance(value, int | float) and is_in_bounds(value)

    return Rule(setting, description, is_valid)


def _text(setting: str, description: str, pattern: str) -> Rule:
    form = re.compile(pattern)

    def is_valid(value: object) -> bool:
        return isinstance(value, str) and form.fullmatch(value) is not None

    return Rule(setting, description, is_valid)


def _secret_text(setting: str, description: str, pattern: str) -> Rule:
    return _text(setting, description, pattern)._replace(is_secret=True)


def _at_least(setting: str, least: int) -> Rule:
    return _number(setting, f"at least {least}", lambda value: value >= least)


def _positive(setting: str) -> Rule:
    return _number(setting, "more than 0", lambda value: value > 0)


def _positive_finite(setting: str) -> Rule:
    return _number(setting, "more than 0 and finite", lambda value: 0 < value < math.inf)


def _not_negative(setting: str) -> Rule:
    return _number(setting, "0 or more", lambda value: value >= 0)


def _finite(setting: str) -> Rule:
    return _number(setting, "0 or more and finite", lambda value: 0 <= value < math.inf)


def _are_networks(value: object) -> bool:
    try:
        TrustedProxies(str(value))
    except ValueError:
        return False
    return True


RULES: Final = (
    _number("port", "between 0 and 65535", lambda value: 0 <= value <= 65535),
    _number("metrics_port", "between 0 and 65535", lambda value: 0 <= value <= 65535),
    _at_least("retention_days", 7),
    _not_negative("fleet_keep_days"),
    _at_least("max_body_bytes", 1024),
    _at_least("max_workflow_bytes", 1024),
    _at_least("max_agent_bytes", 1024),
    _at_least("max_workflow_nodes", 1),
    _at_least("max_workflow_edges", 1),
    _at_least("max_workflow_expressions", 1),
    _at_least("max_workflow_expression_bytes", 1),
    _at_least("max_schema_bytes", 1024),
    _at_least("max_schema_subschemas", 1),
    _at_least("check_processes", 1),
    _positive_finite("check_seconds"),
    _positive("check_wait_seconds"),
    _at_least("check_memory_mib", 256),
    _at_least("db_pool_size", 3),
    _positive("db_pool_timeout_seconds"),
    _positive_finite("db_statement_timeout_seconds"),
    _not_negative("db_slow_statement_ms"),
    _at_least("wakeups_at_once", 1),
    _at_least("max_held_runs", 1),
    _not_negative("max_held_runs_per_tenant"),
    _at_least("max_held_bytes", 1),
    _at_least("max_value_bytes", 1024),
    _at_least("max_event_bytes", 16_384),
    _at_least("max_run_bytes", 65_536),
    _not_negative("inline_value_bytes"),
    _not_negative("max_descendants"),
    _not_negative("max_active_runs"),
    _not_negative("rate_limit"),
    _not_negative("quota_requests_per_second"),
    _not_negative("quota_queued_runs"),
    _not_negative("quota_stored_bytes"),
    _not_negative("quota_artifact_bytes"),
    _not_negative("quota_workflow_versions"),
    _not_negative("quota_agents"),
    _not_negative("quota_events_per_second"),
    _not_negative("quota_model_tokens_per_day"),
    _at_least("max_in_flight", 1),
    _at_least("max_incoming_bytes", 16 * 1024 * 1024),
    _not_negative("failed_auth_limit"),
    _not_negative("open_rate_limit"),
    _at_least("max_header_bytes", 8192),
    _positive("header_seconds"),
    _positive("body_grace_seconds"),
    _at_least("min_body_rate", 1),
    _at_least("keep_alive_seconds", 1),
    _at_least("max_connections", 1),
    _at_least("max_connections_per_address", 1),
    _at_least("max_unauthenticated_connections", 1),
    Rule("trusted_proxies", "addresses or networks separated by commas", _are_networks),
    _at_least("max_streams_per_key", 1),
    _at_least("max_streams_per_tenant", 1),
    _at_least("max_streams", 1),
    _at_least("max_console_streams_per_key", 1),
    _at_least("max_stream_buffer_bytes", 1024),
    _positive("send_timeout_seconds"),
    _at_least("min_read_rate", 1),
    _at_least("max_heavy_reads", 1),
    _at_least("max_outgoing_per_tenant", 1),
    _at_least("max_deliveries_per_tenant", 1),
    _at_least("max_lookups_per_tenant", 1),
    _at_least("webhook_retry_ms", 1),
    _at_least("webhook_attempts", 1),
    _finite("webhook_open_seconds"),
    # A URL may contain a token, so the error does not repeat the value.
    _secret_text(
        "audit_sink",
        "file:///absolute/path or an https:// URL",
        r"(?:file:///.*[^/]|https?://\S+)?",
    ),
    _text("audit_reads", "off, sensitive or all", "off|sensitive|all"),
    _text(
        "public_url",
        "http:// or https:// and a host, without a path",
        f"(?:{_ORIGIN})?",
    ),
    _text(
        "code_version",
        "at most 64 letters, digits and . _ + : / -",
        r"(?:[A-Za-z0-9][A-Za-z0-9._+:/-]{0,63})?",
    ),
    _number("heartbeat_seconds", "more than 0 and at most 30", lambda value: 0 < value <= 30),
    _number("confidence_floor", "between 0.5 and 1", lambda value: 0.5 <= value <= 1),
    _text(
        "confidence_interrupt_kind",
        "approval, clarification or x-host-<host>-<kind>",
        f"approval|clarification|{VENDOR_KIND_PATTERN}",
    ),
    _text("vendor_kind_means", "clarify or escalate", "clarify|escalate"),
    _text(
        "vendor_kind_status",
        "waiting-approval, waiting-input or waiting-external",
        "(?:waiting-(?:approval|input|external))?",
    ),
    _text(
        "vendor_kind_consumers",
        "names separated by commas",
        r"[^,]*[^,\s][^,]*(?:,[^,]*[^,\s][^,]*)*",
    ),
    _text("reasoning_verbosity", "summary, full or off", "summary|full|off"),
    _finite("tool_rate_limit"),
    _finite("ingest_rate_limit"),
    _finite("otlp_settle_seconds"),
    _finite("otlp_quiet_seconds"),
    _finite("blocked_loop_seconds"),
    _finite("max_budget_tokens"),
    _finite("max_budget_cost_usd"),
    _finite("max_model_calls"),
    _finite("max_tool_calls"),
    _finite("mcp_call_seconds"),
    _text(
        "mcp_origins",
        "http:// or https:// and a host, separated by commas without spaces",
        rf"(?:{_ORIGIN}(?:,{_ORIGIN})*)?",
    ),
    _text("default_model", "provider:model", r"(?:[A-Za-z][A-Za-z0-9_-]*:.+)?"),
    _text(
        "model_servers",
        "name=url,... with http or https addresses",
        rf"(?:{_MODEL_SERVER}(?:,{_MODEL_SERVER})*)?",
    ),
    _at_least("max_run_duration_ms", 1000),
)


def invalid_settings(values: Mapping[str, object]) -> list[str]:
    """Describe the settings with invalid values."""
    return [
        f"{rule.setting} must be {rule.description}"
        + ("" if rule.is_secret else f", not {values[rule.setting]}")
        for rule in RULES
        if not rule.is_valid(values[rule.setting])
    ]


DAY_MS = 86_400_000
MAX_PUSH_BYTES = 1024 * 1024
MIN_SINK_SECRET = 32
_DEFAULT_LIMITS = HostLimits()
# Scheme, login and password, hosts with ports, database, and options. Options may hold a password.
_DATABASE_URL = re.compile(
    r"(postgres(?:ql)?://)(?:[^@/?#\s]*@)?"
    r"((?:[\w.-]+|\[[0-9A-Fa-f:.]+\])?(?::\d{1,5})?(?:,(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?)*)"
    r"(/[\w.-]*)?(?:\?[^\s]*)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one process, from the command line and `WOPR_*` variables."""

    host: str = "127.0.0.1"
    port: int = 8642
    data_dir: Path = Path("data")
    db: str = field(default="", repr=False)
    # Connections to a database server: their number, how long a call waits for one, how long a
    # statement may run, and from when on it is logged as slow.
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
    # Limits of a workflow definition.
    max_workflow_bytes: int = 1024 * 1024
    max_workflow_nodes: int = 1000
    max_workflow_edges: int = 5000
    max_workflow_expressions: int = 500
    max_workflow_expression_bytes: int = 64 * 1024
    # Limit of an agent manifest.
    max_agent_bytes: int = 256 * 1024
    # JSON Schemas of users: the bytes of their JSON, and the subschemas after references are
    # expanded.
    max_schema_bytes: int = 256 * 1024
    max_schema_subschemas: int = 20_000
    # Subprocesses for checks that may take long: their number, how long a check may run and wait
    # for one, and the memory of each.
    check_processes: int = 2
    check_seconds: float = 2.0
    check_wait_seconds: float = 10.0
    check_memory_mib: int = 512
    # Requests per second of one key, with bursts of twice as many; 0 is no limit.
    rate_limit: int = 5000
    # Quotas of one tenant; 0 is no limit: requests per second, runs that are due and wait, stored
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
    # Pushes of KAHN lines per second of one tenant, with bursts of twice as many; 0 is no limit.
    ingest_rate_limit: int = 200
    # Traces that are sent to the fleet: the time after the last span until a complete trace is
    # projected, and until one without a root span is.
    otlp_settle_seconds: float = 5.0
    otlp_quiet_seconds: float = 300.0
    # Whether spans hold the redacted text of models and tools.
    otel_content: bool = False
    # Authenticated requests in progress before the host responds with 503.
    max_in_flight: int = 2000
    # Bytes of request bodies in progress. One tenant may hold a quarter.
    max_incoming_bytes: int = 256 * 1024 * 1024
    # Whether /metrics needs no key, and a separate port for it without a key (0: none). The
    # separate port uses the address of the host unless `metrics_host` is set.
    metrics_open: bool = False
    metrics_port: int = 0
    metrics_host: str = ""
    # Failed authentications of one address per minute; 0 is no limit.
    failed_auth_limit: int = 60
    # Requests without a key per second of one address, in bursts of four seconds; 0 is no limit.
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
    # Proxies whose X-Forwarded-For is trusted: addresses and networks, separated by commas.
    trusted_proxies: str = ""
    max_readers_per_run: int = 1000
    # Comparisons, debug bundles and pages of runs at the same time; one per tenant.
    max_heavy_reads: int = 2
    # Open streams of one key, of one tenant and of this process, and live pages of the console of
    # one key. Polls that wait and requests of MCP clients count as streams.
    max_streams_per_key: int = 300
    max_streams_per_tenant: int = 600
    max_streams: int = 2000
    max_console_streams_per_key: int = 300
    # Bytes of responses and streams that wait for slow clients.
    max_stream_buffer_bytes: int = 64 * 1024 * 1024
    # When a connection is closed whose client reads nothing, and the minimum rate (bytes per
    # second) at which it must read after that time.
    send_timeout_seconds: float = 30.0
    min_read_rate: int = 16_384
    # When a blocked event loop is logged with the node that blocks it; 0 is never.
    blocked_loop_seconds: float = 1.0
    # Where processes share a database: whether this one executes nodes and serves requests, how
    # many wake-ups it handles at once, and how many runs it has leases of, in all and per tenant.
    executes: bool = True
    serves: bool = True
    wakeups_at_once: int = 20
    max_held_runs: int = 1000
    max_held_runs_per_tenant: int = 0
    # Estimated memory of the large runs with nodes in flight. One tenant may use half of it.
    max_held_bytes: int = 512 * 1024 * 1024
    # Descendants of one root run, and unfinished runs of one tenant; 0 is no limit.
    max_descendants: int = 1000
    max_active_runs: int = 10_000
    # Bytes of JSON of one value of a node or a person, of one event, and of all events of one run.
    max_value_bytes: int = 4 * 1024 * 1024
    max_event_bytes: int = 10 * 1024 * 1024
    max_run_bytes: int = 32 * 1024 * 1024
    # A value with more bytes of JSON is stored as an artifact; 0 keeps all values in the events.
    inline_value_bytes: int = 256 * 1024
    # The version of the code of this process. It is stored with the events of its nodes. Default: a
    # digest of the app's sources, or the version of wopr.
    code_version: str = ""
    retention_days: int = 30
    # Days that KAHN runs are kept after their last push; 0 keeps them forever.
    fleet_keep_days: int = 0
    drain_seconds: float = 10.0
    heartbeat_seconds: float = 15.0
    allow_private_destinations: bool = False
    # Per tenant at the same time: requests of nodes and tools to other hosts, webhook deliveries,
    # and DNS lookups for either.
    max_outgoing_per_tenant: int = 50
    max_deliveries_per_tenant: int = 32
    max_lookups_per_tenant: int = 4
    # Webhooks: the delay of the first retry, the attempts at one event, and how long nothing is
    # sent to a webhook that failed four times in a row.
    webhook_retry_ms: int = 1000
    webhook_attempts: int = 12
    webhook_open_seconds: float = 3600.0
    # Reads that the audit log records: off, sensitive or all.
    audit_reads: str = "off"
    # The file or webhook that the audit log is copied to, and the secret that signs the webhook.
    audit_sink: str = field(default="", repr=False)
    audit_sink_secret: str = field(default="", repr=False)
    # Whether runs can be annotated.
    feedback: bool = True
    # Whether the web console is served, and its public address behind a proxy.
    console: bool = True
    public_url: str = ""
    host_key: str = field(default="", repr=False)
    encryption_key: str = field(default="", repr=False)
    encryption_key_file: str = ""
    encryption_key_command: str = field(default="", repr=False)
    # The confidence that a supervisor needs, and the kind of interrupt that it raises below it:
    # approval, clarification, or a vendor kind x-host-<host>-<kind>.
    confidence_floor: float = 0.5
    confidence_interrupt_kind: str = "approval"
    # The meaning of a vendor kind: its canonical escalation kind, the status of a run that waits
    # (empty: the status of the canonical kind), and the consumers that match on the name,
    # separated by commas. `literal_vendor_kind` writes the kind itself into the events, which
    # their schemas do not allow.
    vendor_kind_means: str = "escalate"
    vendor_kind_status: str = ""
    vendor_kind_consumers: str = "inbox,webhooks,audit log"
    literal_vendor_kind: bool = False
    # Do not escalate decisions with low confidence. This is recorded.
    suppress_escalation: bool = False
    reasoning_verbosity: str = "summary"
    reasoning_token_limit: int = 512
    # Calls of one tool per second by the runs of one key; 0 is no limit.
    tool_rate_limit: float = 0.0
    # The default model, OpenAI-compatible servers as name=url,... and the allowed models as
    # patterns of provider:model; empty allows all.
    default_model: str = ""
    model_servers: str = field(default="", repr=False)
    models_allowed: str = ""
    # Whether tenants must bring their own keys. The keys of the operator are then not used.
    require_own_keys: bool = False
    # The directory of credentials, as files <tenant>/<name>.
    secrets_dir: str = ""
    # Whether MCP clients are served, how long a call waits for a run, and the file of MCP servers.
    mcp: bool = True
    mcp_call_seconds: float = 300.0
    mcp_servers: str = ""
    # Further origins of web pages that may call /mcp, separated by commas.
    mcp_origins: str = ""
    # Limits of one run; 0 is no limit.
    max_budget_tokens: int = 0
    max_budget_cost_usd: float = 0.0
    max_model_calls: int = 1000
    max_tool_calls: int = 1000

    @property
    def database_url(self) -> str:
        """The URL of the database."""
        return self.db or f"sqlite:///{self.data_dir / 'wopr.db'}"

    @property
    def public_database_url(self) -> str:
        """The URL of the database without login, password and options.

        A URL that cannot be parsed safely is not shown.
        """
        if self.database_url.startswith("sqlite:///"):
            return self.database_url
        found = _DATABASE_URL.fullmatch(self.database_url)
        return "".join(found.groups(default="")) if found else "(a database server)"

    @property
    def database_passwords(self) -> tuple[str, ...]:
        """The passwords in the URL of the database."""
        if self.database_url.startswith("sqlite:///"):
            return ()
        login, _, rest = self.database_url.partition("://")[2].rpartition("@")
        query = rest.partition("?")[2]
        values = [login.partition(":")[2]]
        values += [part.partition("=")[2] for part in query.split("&") if "password=" in part]
        return tuple(dict.fromkeys(form for each in values for form in (each, unquote(each))))

    @property
    def store_options(self) -> StoreOptions:
        """Options of the connections to a database server."""
        return StoreOptions(
            pool_size=self.db_pool_size,
            pool_timeout_seconds=self.db_pool_timeout_seconds,
            statement_timeout_seconds=self.db_statement_timeout_seconds,
            slow_statement_ms=self.db_slow_statement_ms,
        )

    @property
    def schema_limits(self) -> SchemaLimits:
        """Limits of JSON Schemas of users."""
        return SchemaLimits(
            max_bytes=self.max_schema_bytes, max_subschemas=self.max_schema_subschemas
        )

    @property
    def serves_mcp(self) -> bool:
        """Return whether the host serves MCP clients: MCP is on and its package is installed."""
        return self.mcp and find_spec("mcp") is not None

    @property
    def max_push_bytes(self) -> int:
        """The size limit of one push of KAHN lines."""
        return min(MAX_PUSH_BYTES, self.max_body_bytes)

    @property
    def pool_limits(self) -> PoolLimits:
        """Limits of the subprocesses for long checks."""
        return PoolLimits(
            size=self.check_processes,
            deadline_seconds=self.check_seconds,
            wait_seconds=self.check_wait_seconds,
            memory_mib=self.check_memory_mib,
        )

    def validate(self) -> Settings:
        """Return these settings. Raises `ValueError` that names every invalid setting."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        faults = invalid_settings(own | msgspec.structs.asdict(self.limits))
        if self.audit_sink.startswith("http") and len(self.audit_sink_secret) < MIN_SINK_SECRET:
            faults.append(f"audit_sink_secret must have at least {MIN_SINK_SECRET} characters")
        try:
            parse_env_keys(self.api_keys)
        except ValueError as fault:
            faults.append(str(fault))
        if faults:
            raise ValueError("; ".join(faults))
        return self


# The command line sets these from its options and their variables.
_COMMAND_LINE_SETTINGS: Final = frozenset(
    "host port data_dir db workflows conformance log_format log_level executes serves "
    "code_version".split()
)


def with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Apply `WOPR_*` variables. Raises `ValueError` for a value that cannot be parsed."""
    kinds: dict[str, type[Any]] = {
        each.name: type(getattr(settings, each.name))
        for each in fields(settings)
        if each.name not in {*_COMMAND_LINE_SETTINGS, "limits"}
    }
    changes: dict[str, Any] = _read(environment, kinds)
    limits = _read(environment, dict.fromkeys(HostLimits.__struct_fields__, int))
    if limits:
        changes["limits"] = msgspec.structs.replace(settings.limits, **limits)
    return replace(settings, **changes)


def _read(
    environment: Mapping[str, str], kinds: Mapping[str, type[Any]]
) -> dict[str, str | int | float | bool]:
    variables = {name: f"WOPR_{name.upper()}" for name in kinds}
    return {
        name: _parse(variable, environment[variable], kinds[name])
        for name, variable in variables.items()
        if environment.get(variable)
    }


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
