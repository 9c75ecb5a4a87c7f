"""The wire: typed shapes, names, codes and limits of OpenWOP v1, and nothing that does I/O."""

from __future__ import annotations
