"""The wire: typed documents, names, codes and limits of OpenWOP v1. No I/O."""

from __future__ import annotations
