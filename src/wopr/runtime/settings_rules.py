"""What the value of a setting must be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from wopr.protocol.interrupts import VENDOR_KIND_PATTERN
from wopr.security.proxies import TrustedProxies

_SERVER: Final = r"\s*[A-Za-z][A-Za-z0-9_-]*\s*=\s*https?://[^\s,@]+\s*"

_ORIGIN: Final = r"https?://[A-Za-z0-9.:\[\]-]+"


class Rule(NamedTuple):
    """A setting, what its value must be in words, and whether a value is that."""

    setting: str
    wanted: str
    is_kept: Callable[[object], bool]
    is_secret: bool = False


def _number(setting: str, wanted: str, is_in_bounds: Callable[[float], bool]) -> Rule:
    def is_kept(value: object) -> bool:
        return isinstance(value, int | float) and is_in_bounds(value)

    return Rule(setting, wanted, is_kept)


def _text(setting: str, wanted: str, pattern: str) -> Rule:
    form = re.compile(pattern)

    def is_kept(value: object) -> bool:
        return isinstance(value, str) and form.fullmatch(value) is not None

    return Rule(setting, wanted, is_kept)


def _secret_text(setting: str, wanted: str, pattern: str) -> Rule:
    return _text(setting, wanted, pattern)._replace(is_secret=True)


def _at_least(setting: str, least: int) -> Rule:
    return _number(setting, f"at least {least}", lambda value: value >= least)


def _positive(setting: str) -> Rule:
    return _number(setting, "more than 0", lambda value: value > 0)


def _not_negative(setting: str) -> Rule:
    return _number(setting, "0 or more", lambda value: value >= 0)


def _finite(setting: str) -> Rule:
    return _number(setting, "0 or more", lambda value: 0 <= value < math.inf)


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
    _positive("check_seconds"),
    _positive("check_wait_seconds"),
    _at_least("check_memory_mib", 256),
    _at_least("db_pool_size", 3),
    _positive("db_pool_timeout_seconds"),
    _positive("db_statement_timeout_seconds"),
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
    _not_negative("webhook_open_seconds"),
    # A URL may hold a token, so the value is not repeated.
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
    _number("heartbeat_seconds", "between 0 and 30", lambda value: 0 < value <= 30),
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
        rf"(?:{_SERVER}(?:,{_SERVER})*)?",
    ),
    _at_least("max_run_duration_ms", 1000),
)


def broken_rules(values: Mapping[str, object]) -> list[str]:
    """Say which of these settings cannot work, naming each."""
    return [
        f"{rule.setting} must be {rule.wanted}"
        + ("" if rule.is_secret else f", not {values[rule.setting]}")
        for rule in RULES
        if not rule.is_kept(values[rule.setting])
    ]
