"""`wopr demo`: a tour of the product on scripted models."""

from __future__ import annotations
