"""The web console: pages rendered on the server, with a few small scripts for what is live."""
