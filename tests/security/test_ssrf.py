from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wopr.security.ssrf import DestinationDenied, check_url, is_blocked_address

BLOCKED_ADDRESSES = """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1
    127.255.255.254 168.63.129.16 169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.192
    192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1
    239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::10.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:7f00:1
    ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::7f00:1 100::1 2001::1
    2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::
    2002:a9fe:a9fe::1 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 febf::1 fec0::1
    ff02::1 ff0e::1 2606:4700::1%eth0
""".split()

PUBLIC_ADDRESSES = """
    1.1.1.1 8.8.8.8 93.184.216.34 100.63.255.255 100.128.0.1 172.15.255.255 172.32.0.1 192.0.1.1
    198.17.255.255 198.20.0.1 223.255.255.255 2606:4700:4700::1111 2a00:1450:4001::1
""".split()

# Each of these resolves somewhere to an address that must not be dialled.
SPELLINGS = """
    https://127.0.0.1/ https://127.0.0.1./ https://127.1/ https://127.0.1/ https://2130706433/
    https://017700000001/ https://0177.0.0.1/ https://0x7f.0.0.1/ https://0x7f000001/ https://0X7F.1/
    https://0x7f.0x0.0x0.0x1/ https://00000177.0.0.1/ https://127.0.0.01/ https://127.0x1/
    https://0/ https://0.0.0.0/ https://0x/ https://256.256.256.256/ https://1.2.3.4.5/
    https://4294967297/ https://3232235777/ https://10.1/ https://192.168.257/
    https://2852039166/ https://0xa9fea9fe/ https://0251.0376.0251.0376/ https://169.254.43518/
    https://169.254.169.254/latest/meta-data https://169.254.169.254:443/ https://10.0.0.1:8443/
    https://[::]/ https://[::1]/ https://[::1]:8443/ https://[0:0:0:0:0:0:0:1]/
    https://[::ffff:127.0.0.1]/ https://[::ffff:7f00:1]/ https://[::FFFF:A9FE:A9FE]/
    https://[::127.0.0.1]/ https://[64:ff9b::7f00:1]/ https://[64:ff9b:1::1]/ https://[2002:7f00:1::]/
    https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/ https://[fe80::1]/ https://[fe80::1%25eth0]/
    https://[fe80::1%eth0]/ https://[fc00::1]/ https://[fd00:ec2::254]/ https://[ff02::1]/
    https://[2001:db8::1]/ https://[::1]evil.example/ https://[::1].example.com/
    https://evil.example[::1]/ https://[127.0.0.1]/ https://[v1.fe80]/ https://[]/ https://[/ https://]/
    https://localhost/ https://LOCALHOST/ https://localhost./ https://localhost:8443/
    https://a.localhost/ https://a.b.LocalHost./ https://localhost.localdomain/
    https://ip6-localhost/ https://metadata/ https://metadata.google.internal/
    https://Metadata.Google.Internal./computeMetadata https://instance-data/
    https://instance-data.ec2.internal/ https://db.internal/ https://printer.local/
    https://127.0.0.1%2f@example.com/ https://%31%32%37.0.0.1/ https://127%2e0%2e0%2e1/
    https://user@example.com/ https://user:pass@example.com/ https://@example.com/
    https://example.com@127.0.0.1/ https://:@example.com/ https://example.com:pw@localhost/
    https://example.com\\@127.0.0.1/ https:\\\\127.0.0.1/ https:/\\127.0.0.1/
    https://\uff11\uff12\uff17.\uff10.\uff10.\uff11/ https://127。0。0。1/ https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/ https://loc\u00adalhost/
    https://①②⑦.0.0.1/ https://bücher.example/ https://example.com\u200b/
    https://example.com:0/ https://example.com:65536/ https://example.com:-1/ https://example.com:x/
    https://example.com:22/ https://example.com:25/ https://example.com:6379x/ https://example.com:8443:1/
    https://example..com/ https://.example.com/ https://example.com../ https://./ https://-a.example/
    https:///path https://?q https://#f https:example.com https:/example.com // example.com
    http://example.com/ ftp://example.com/ file:///etc/passwd gopher://example.com/ javascript:alert(1)
    data:text/plain,x unix:/run/docker.sock ws://example.com/ HTTP://example.com/
""".split()  # fmt: skip

WHITESPACE = [
    "",
    " ",
    " https://example.com/",
    "https://example.com/ ",
    "https://exa mple.com/",
    "https://exam\tple.com/",
    "https://exam\nple.com/",
    "ht\ntps://example.com/",
    "https://example.com/\r\nHost: localhost",
    "https://example.com/\x00",
    "\x01https://example.com/",
    "https://example.com/\x7f",
]

WELCOME = {
    "https://example.com": "https://example.com:443",
    "HTTPS://Example.COM/a?b=c:d@e": "https://example.com:443",
    "https://example.com./x": "https://example.com:443",
    "https://example.com:8443/": "https://example.com:8443",
    "https://example.com:80/": "https://example.com:80",
    "https://hooks_1.a-b.example/": "https://hooks_1.a-b.example:443",
    "https://xn--bcher-kva.example/": "https://xn--bcher-kva.example:443",
    "https://1.1.1.1/": "https://1.1.1.1:443",
    "https://[2606:4700:4700::1111]:8443/": "https://[2606:4700:4700::1111]:8443",
    "https://0x7f.example/": "https://0x7f.example:443",
    "https://localhost.example/": "https://localhost.example:443",
    "https://metadata.example/": "https://metadata.example:443",
}


@pytest.mark.parametrize("address", BLOCKED_ADDRESSES)
def test_an_address_that_is_not_public_is_blocked(address: str) -> None:
    assert is_blocked_address(address)


@pytest.mark.parametrize("address", PUBLIC_ADDRESSES)
def test_a_public_address_is_not_blocked(address: str) -> None:
    assert not is_blocked_address(address)


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "0x7f000001", "1.1.1.1 ", "::g"])
def test_a_text_that_is_not_an_address_is_blocked(text: str) -> None:
    assert is_blocked_address(text)


@given(st.ip_addresses())
def test_no_address_that_the_standard_library_calls_private_is_accepted(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not address.is_global or address.is_multicast:
        assert is_blocked_address(str(address))


@given(st.ip_addresses(v=4), st.sampled_from(["::{}", "::ffff:{}", "64:ff9b::{}", "::ffff:0:{}"]))
def test_no_ipv4_address_is_hidden_inside_an_ipv6_one(
    address: ipaddress.IPv4Address, spelling: str
) -> None:
    assert is_blocked_address(spelling.format(address))


@pytest.mark.parametrize("url", SPELLINGS + WHITESPACE)
def test_no_notation_of_a_forbidden_destination_is_accepted(url: str) -> None:
    with pytest.raises(DestinationDenied) as denial:
        check_url(url, allow_private=False)

    assert denial.value.reason == str(denial.value)


@pytest.mark.parametrize(("url", "origin"), WELCOME.items())
def test_a_public_destination_is_accepted_and_normalised(url: str, origin: str) -> None:
    assert check_url(url, allow_private=False).origin == origin


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080/hook",
        "http://127.0.0.1:9/",
        "https://[::1]:8443/",
        "http://10.0.0.1/",
        "http://metadata.google.internal/",
    ],
)
def test_an_operator_who_allows_private_destinations_reaches_them(url: str) -> None:
    destination = check_url(url, allow_private=True)

    assert url.startswith(destination.scheme)


@pytest.mark.parametrize(
    "url",
    ["ftp://localhost/", "http://user:pw@localhost/", "http://127.1/", "http://local host/", ""],
)
def test_an_invalid_url_is_refused_even_then(url: str) -> None:
    with pytest.raises(DestinationDenied):
        check_url(url, allow_private=True)


def test_the_denial_does_not_repeat_the_url() -> None:
    with pytest.raises(DestinationDenied) as denial:
        check_url("https://bob:hunter2@example.com/?token=hunter2", allow_private=False)

    assert "hunter2" not in str(denial.value)


@given(st.text(max_size=40))
def test_any_text_is_either_denied_or_a_destination(text: str) -> None:
    for url in (text, f"https://{text}", f"https://{text}.example/"):
        try:
            destination = check_url(url, allow_private=False)
        except DestinationDenied:
            continue
        assert destination.scheme == "https"
        assert destination.host.isascii()
