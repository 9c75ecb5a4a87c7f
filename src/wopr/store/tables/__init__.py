"""The store's statements, written once for both databases. Each class is one part of the port."""
