"""Statements for KAHN runs: lines, totals, retention and incoming traces."""
