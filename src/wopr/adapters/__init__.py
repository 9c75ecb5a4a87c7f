"""Adapters: graphs and agents of other frameworks as nodes of a workflow, on the record.

Each framework has a file with one wrapper, `on_record`, and an extra that installs it.
"""

from __future__ import annotations
