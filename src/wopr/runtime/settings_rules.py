"""What the value of a setting must be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from wopr.protocol.interrupts import VENDOR_KIND_PATTERN

_SERVER: Final = r"\s*[A-Za-z][A-Za-z0-9_-]*\s*=\s*https?://[^\s,@]+\s*"


class Rule(NamedTuple):
    """A setting, what its value must be in words, and whether a value is that."""

    setting: str
    wanted: str
    is_kept: Callable[[object], bool]


def _number(setting: str, wanted: str, is_in_bounds: Callable[[float], bool]) -> Rule:
    def is_kept(value: object) -> bool:
        return isinstance(value, int | float) and is_in_bounds(value)

    return Rule(setting, wanted, is_kept)


def _text(setting: str, wanted: str, pattern: str) -> Rule:
    form = re.compile(pattern)

    def is_kept(value: object) -> bool:
        return isinstance(value, str) and form.fullmatch(value) is not None

    return Rule(setting, wanted, is_kept)


def _at_least(setting: str, least: int) -> Rule:
    return _number(setting, f"at least {least}", lambda value: value >= least)


def _positive(setting: str) -> Rule:
    return _number(setting, "more than 0", lambda value: value > 0)


def _not_negative(setting: str) -> Rule:
    return _number(setting, "0 or more", lambda value: value >= 0)


def _finite(setting: str) -> Rule:
    return _number(setting, "0 or more", lambda value: 0 <= value < math.inf)


RULES: Final = (
    _number("port", "between 0 and 65535", lambda value: 0 <= value <= 65535),
    _at_least("retention_days", 7),
    _not_negative("fleet_keep_days"),
    _at_least("max_body_bytes", 1024),
    _at_least("db_pool_size", 3),
    _positive("db_pool_timeout_seconds"),
    _positive("db_statement_timeout_seconds"),
    _not_negative("db_slow_statement_ms"),
    _at_least("wakeups_at_once", 1),
    _at_least("max_held_runs", 1),
    _not_negative("max_held_runs_per_tenant"),
    _not_negative("rate_limit"),
    _at_least("max_in_flight", 1),
    _at_least("webhook_retry_ms", 1),
    _at_least("webhook_attempts", 1),
    _not_negative("webhook_open_seconds"),
    _text(
        "public_url",
        "http:// or https:// and a host, without a path",
        r"(?:https?://[A-Za-z0-9.:\[\]-]+)?",
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
        f"{setting} must be {wanted}, not {values[setting]}"
        for setting, wanted, is_kept in RULES
        if not is_kept(values[setting])
    ]
