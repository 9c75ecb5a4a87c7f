"""Settings from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

import msgspec

from wopr.engine.limits import HostLimits
from wopr.runtime.settings import Settings

# The command line fills these itself, from its options and their variables.
_ON_THE_COMMAND_LINE: Final = frozenset(
    "host port data_dir db workflows conformance log_format log_level executes serves "
    "code_version".split()
)


def with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Lay `WOPR_*` variables over settings; a value that does not parse is refused by name."""
    kinds: dict[str, type[Any]] = {
        each.name: type(getattr(settings, each.name))
        for each in fields(settings)
        if each.name not in {*_ON_THE_COMMAND_LINE, "limits"}
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
