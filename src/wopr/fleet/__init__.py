"""The fleet: KAHN event lines, their checker, the bridge to run logs, and the sums over agents."""
