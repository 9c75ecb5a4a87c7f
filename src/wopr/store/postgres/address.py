"""Where the database is: read from its URL once, so that the password goes nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from wopr.protocol.errors import Refused

_SETTINGS = ("host", "hostaddr", "port", "dbname", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A database, as the driver is told of it and as people are."""

    # Holds the password: never printed.
    conninfo: str = field(repr=False)
    options: str
    location: str

    def connecting(self, *settings: str) -> str:
        """The driver's words for a connection with these server settings, such as `a=b`."""
        added = " ".join(f"-c {setting}" for setting in settings)
        return make_conninfo(self.conninfo, options=f"{self.options} {added}".strip())


# A server that is gone without a word is noticed within seconds, not by the kernel's own patience.
_PATIENCE = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


def address_of(url: str) -> Address:
    """Read a URL. Raises `Refused` for one that cannot be read, without repeating it."""
    try:
        # The driver's own message quotes the part that it cannot read, perhaps the password.
        parts = conninfo_to_dict(url)
    except ProgrammingError:
        raise Refused(
            "db must be postgresql://user:password@host:port/database, with special characters "
            "percent-encoded",
            field="db",
        ) from None
    options = str(parts.pop("options", None) or "")
    parts.setdefault("application_name", "wopr")
    for name, value in _PATIENCE.items():
        parts.setdefault(name, value)
    shown = {name: str(parts[name]) for name in _SETTINGS if parts.get(name)}
    return Address(
        conninfo=make_conninfo("", **parts),
        options=options,
        location=" ".join(f"{name}={value}" for name, value in shown.items()),
    )
