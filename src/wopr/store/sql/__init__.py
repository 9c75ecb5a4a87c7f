"""What the SQL adapters share: how rows become values, and how their listings are built."""
