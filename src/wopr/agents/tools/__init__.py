"""Tools that models call: functions, HTTP requests and the toolbox that finds them."""

from __future__ import annotations
