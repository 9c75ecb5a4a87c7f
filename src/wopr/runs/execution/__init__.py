"""The execution of a node: what it sees, what it may use, and the events of its outcome."""
