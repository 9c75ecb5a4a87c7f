"""Statements for annotations, their counts, review queues and judges."""
