"""The top bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class NavItem:
    """An entry of the top bar; it is shown once its page exists, to those who may see it."""

    title: str
    path: str
    key: str


NAV: Final = (
    NavItem("Runs", "/runs", "r"),
    NavItem("Inbox", "/inbox", "i"),
    NavItem("Reviews", "/reviews", "v"),
    NavItem("Fleet", "/fleet", "f"),
    NavItem("Workflows", "/workflows", "w"),
    NavItem("Agents", "/agents", "a"),
    NavItem("Settings", "/settings", "s"),
)
