"""PostgreSQL servers for tests."""
