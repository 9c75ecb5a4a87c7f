"""The address of a client behind proxies. `X-Forwarded-For` is used only from trusted proxies."""

from __future__ import annotations

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` the operator trusts."""

    def __init__(self, text: str) -> None:
        """Read addresses and CIDR networks separated by commas. Raises `ValueError`."""
        parts = [part.strip() for part in text.split(",")]
        self._networks: tuple[Network, ...] = tuple(ip_network(part) for part in parts if part)

    def trusts(self, peer: str) -> bool:
        """Return whether this address is one of the proxies."""
        if not self._networks:
            return False
        address = _address(peer)
        return address is not None and self._is_proxy(address)

    def client_address(self, peer: str, forwarded: str) -> str:
        """Return the client's address: the rightmost address that is not a proxy's.

        Entries further left are claims of the client and are not used. An entry that is not an
        address ends the search.
        """
        client = peer
        for entry in reversed(forwarded.split(",")):
            address = _address(entry)
            if address is None:
                break
            client = str(address)
            if not self._is_proxy(address):
                break
        return client

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def network_of(address: str) -> str:
    """Return the key of limits per client: an IPv4 address, or the /64 of an IPv6 address.

    A client with IPv6 usually has all addresses of a /64.
    """
    if ":" not in address:
        return address
    read = _address(address)
    if not isinstance(read, IPv6Address):
        return address if read is None else str(read)
    return f"{IPv6Address(int(read) >> 64 << 64)}/64"


def _address(text: str) -> Address | None:
    """Parse an address with or without a port. An IPv4-mapped IPv6 address becomes IPv4."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
