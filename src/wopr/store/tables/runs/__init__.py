"""Statements for runs: rows, listings, interrupts, idempotency, maintenance and deletion."""
