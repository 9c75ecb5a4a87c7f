from __future__ import annotations

import pytest

from wopr.security.proxies import TrustedProxies, network_of

PROXIES = TrustedProxies("127.0.0.1, 10.0.0.0/8, ::1")


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7", "203.0.113.7"),
        ("203.0.113.7, 10.1.2.3", "203.0.113.7"),
        ("203.0.113.7, 10.1.2.3:4711", "203.0.113.7"),
        ("203.0.113.7:80", "203.0.113.7"),
        ("[2001:db8::1]:80", "2001:db8::1"),
        ("2001:0DB8::1", "2001:db8::1"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("10.1.2.3", "10.1.2.3"),
        ("203.0.113.7, unknown", "127.0.0.1"),
        ("203.0.113.7, unknown, 10.1.2.3", "10.1.2.3"),
        ("", "127.0.0.1"),
    ],
)
def test_the_client_is_the_rightmost_address_that_is_not_a_proxy(
    forwarded: str, client: str
) -> None:
    assert PROXIES.client_address("127.0.0.1", forwarded) == client


def test_no_proxy_is_trusted_unless_it_is_configured() -> None:
    assert not TrustedProxies("").trusts("127.0.0.1")
    assert PROXIES.trusts("127.0.0.1")
    assert PROXIES.trusts("::ffff:10.0.0.1")
    assert not PROXIES.trusts("192.0.2.1")
    assert not PROXIES.trusts("")


@pytest.mark.parametrize("text", ["proxy.example.com", "10.0.0.1/8", "127.0.0.1;127.0.0.2"])
def test_an_invalid_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        TrustedProxies(text)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_limits_per_address_count_the_64_prefix_of_an_ipv6_address(
    address: str, network: str
) -> None:
    assert network_of(address) == network
