"""Pages of the inbox: interrupts that wait for a person."""
