"""SSRF rules: which URLs from users and workflows the host may connect to."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_FIRST_FREE_PORT: Final = 1024

_BLOCKED_NAMES: Final = frozenset(
    "localhost localhost.localdomain ip6-localhost ip6-loopback broadcasthost "
    "metadata instance-data metadata.google.internal".split()
)
_BLOCKED_SUFFIXES: Final = tuple(
    ".localhost .localdomain .local .internal .intranet .lan .home.arpa".split()
)

_BLOCKED_V4: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # platform endpoint of a cloud, on a public address
        "169.254.0.0/16",  # link-local, instance metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
# IPv6 has one public range. All other addresses are blocked: `::`, `::1`, mapped and compatible
# IPv4, NAT64 (64:ff9b::/96, 64:ff9b:1::/48), fc00::/7, fe80::/10, ff00::/8.
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")
_BLOCKED_V6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4 carries an IPv4 address inside
        "3fff::/20",  # documentation
    )
)

_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_BRACKETED: Final = re.compile(r"\[[^\[\]]+\](?::[0-9]*)?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


class DestinationDenied(ValueError):
    """The host does not connect to this destination. The message does not contain the URL."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The destination of a URL: its scheme, its normalised host and its port."""

    scheme: str
    host: str
    port: int
    is_address: bool

    @property
    def origin(self) -> str:
        """Return the normalised origin of a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def check_url(url: str, *, allow_private: bool) -> Destination:
    """Return the destination of a URL. Raises `DestinationDenied` for a forbidden destination.

    A name that passes can still resolve to a private address. The caller must check each address
    with `is_blocked_address` and connect to the address that it checked.
    """
    parts = _split(url)
    destination = _destination(parts, _port(parts))
    if not allow_private:
        _require_public(destination)
    return destination


def is_blocked_address(ip: str) -> bool:
    """Return whether an address is not public: private, local, reserved or embedded IPv4.

    Text that is not an address is blocked too.
    """
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return True
    if isinstance(address, ipaddress.IPv4Address):
        return any(address in network for network in _BLOCKED_V4)
    if address.scope_id is not None or address not in _PUBLIC_V6:
        return True
    return any(address in network for network in _BLOCKED_V6)


def _split(url: str) -> SplitResult:
    # URL parsers treat these characters differently, so the HTTP client could use another host than
    # the checked one.
    if any(char <= " " or char == "\\" or char > "~" for char in url):
        raise DestinationDenied(
            "a URL may contain only printable ASCII; write an international name as xn--"
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise DestinationDenied("the URL is malformed") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise DestinationDenied("the URL must start with https://")
    if "@" in parts.netloc:
        raise DestinationDenied("a URL must not contain credentials")
    return parts


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        raise DestinationDenied("the port is not a number from 1 to 65535") from None
    if port == 0:
        raise DestinationDenied("the port is not a number from 1 to 65535")
    return _DEFAULT_PORTS[parts.scheme] if port is None else port


def _destination(parts: SplitResult, port: int) -> Destination:
    host = parts.hostname or ""
    if "[" in parts.netloc or "]" in parts.netloc:
        # Some parsers ignore text beside the brackets, others use it as the host.
        if not _BRACKETED.fullmatch(parts.netloc):
            raise DestinationDenied("the URL has no valid host name")
        host, is_address = _ipv6(host), True
    else:
        host = host.removesuffix(".")
        is_address = _is_ipv4(host)
    return Destination(scheme=parts.scheme, host=host, port=port, is_address=is_address)


def _ipv6(host: str) -> str:
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        raise DestinationDenied("the address in brackets is not an IPv6 address") from None
    if address.scope_id is not None:
        raise DestinationDenied("an address must not name a network interface")
    return str(address)


def _is_ipv4(host: str) -> bool:
    """Return whether a host is an IPv4 address and not a name. Refuse ambiguous spellings."""
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise DestinationDenied("the URL has no valid host name")
    if not _NUMBER.fullmatch(labels[-1]):
        return False
    # Some systems read `127.1`, `0x7f.0.0.1`, `017700000001` and `2130706433` as 127.0.0.1.
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        raise DestinationDenied("write an IPv4 address as four decimal numbers") from None
    return True


def _require_public(destination: Destination) -> None:
    host = destination.host
    if destination.scheme != "https":
        raise DestinationDenied(
            "the URL must start with https://; http is allowed only on a host with "
            "WOPR_ALLOW_PRIVATE_DESTINATIONS=1"
        )
    if destination.is_address and is_blocked_address(host):
        raise DestinationDenied("the address is not public")
    if host in _BLOCKED_NAMES or host.endswith(_BLOCKED_SUFFIXES):
        raise DestinationDenied("the host name belongs to a private network")
    if destination.port < _FIRST_FREE_PORT and destination.port not in _DEFAULT_PORTS.values():
        raise DestinationDenied("the port belongs to another protocol")
