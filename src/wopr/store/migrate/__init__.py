"""Copies a SQLite database into PostgreSQL, table by table and byte for byte.

The tables of both databases are read from their catalogues. A table that only one of them has is
an error, so that no rows are left out. The progress is stored in the target, in the transaction of
the rows, so that an interrupted copy continues where it stopped.
"""
