"""Routes by resource. Each module has a table `OPERATIONS`."""
