"""What people and agents think of runs: annotations, summaries, review queues, judges, exports."""
