"""The address of a request's sender, directly or behind proxies."""

from __future__ import annotations

import pytest

from nearfar.server_fallback.api.addresses import Addresses, client_of

PROXIES = ("10.0.0.0/8", "2001:db8::7")


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "sender"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        # Anybody can send the header.
        ("192.0.2.1", ["198.51.100.9"], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("::ffff:10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("2001:db8::7", ["192.0.2.1"], "192.0.2.1"),
        # The client itself wrote everything before the first untrusted address.
        ("10.0.0.1", ["127.0.0.1, 192.0.2.1, 10.2.0.1"], "192.0.2.1"),
        ("10.0.0.1", ["127.0.0.1", "192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["192.0.2.1:5000"], "192.0.2.1"),
        ("10.0.0.1", ["[2001:db8::1]:5000"], "2001:db8::1"),
        ("10.0.0.1", ["192.0.2.1, nobody"], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.1, nobody, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("", [], ""),
    ],
)
def test_only_trusted_proxies_determine_the_sender_of_a_request(
    peer: str, forwarded_for: list[str], sender: str
) -> None:
    assert Addresses(PROXIES).sender(peer, forwarded_for) == sender


def test_an_ipv6_network_is_one_client() -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::2") == "2001:db8::/64"
    assert client_of("192.0.2.1") != client_of("192.0.2.2")
    assert client_of("::ffff:192.0.2.1") == "::ffff:192.0.2.1"
    assert client_of("") == ""
