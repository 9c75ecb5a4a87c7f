"""JSON Schema: schemas of the wire, checks of users' schemas, and conversion of Python types."""
