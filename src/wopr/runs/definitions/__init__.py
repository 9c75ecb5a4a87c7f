"""Workflow definitions: files, registration checks, versions and the compiled library."""

from __future__ import annotations
