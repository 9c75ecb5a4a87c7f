"""Pages of workflows and agents."""
