"""Adapters: graphs and agents of other frameworks as nodes of a workflow.

Each framework has a module with one function, `on_record`, and an extra that installs it.
"""

from __future__ import annotations
