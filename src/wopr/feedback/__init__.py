"""Feedback on runs: annotations, summaries, review queues, judges and exports."""
