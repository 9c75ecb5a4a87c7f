"""Pages of the KAHN fleet."""
