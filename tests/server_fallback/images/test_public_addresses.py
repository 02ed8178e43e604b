"""Addresses that a server may fetch images from: those of the internet, in whatever form they are written."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.images.public_addresses import is_public, public_address

INSIDE = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    # Carriers' networks, and the metadata of clouds.
    "100.64.0.1",
    "169.254.169.254",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    # With an IPv4 address inside: mapped, compatible, NAT64, 6to4.
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::1",
    "2002:a9fe:a9fe::1",
    "2001:0:5ef5:79fd::1",
    "not an address",
]
OUTSIDE = ["93.184.215.14", "1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"]


@pytest.mark.parametrize("address", INSIDE)
def test_addresses_inside_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_addresses_on_the_internet_are_public(address: str) -> None:
    assert is_public(address)


def resolved(host: str, *addresses: str) -> str:
    """The result for a host with these addresses."""

    async def work() -> str:
        async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 443)) for each in addresses]

        asyncio.get_running_loop().getaddrinfo = getaddrinfo  # type: ignore[method-assign]
        return await public_address(host, 443)

    return asyncio.run(work())


def test_the_first_address_of_a_host_outside_is_returned() -> None:
    assert resolved("example.org", "93.184.215.14", "1.1.1.1") == "93.184.215.14"


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["93.184.215.14", "10.0.0.1"], []])
def test_a_host_with_any_address_inside_is_refused(addresses: list[str]) -> None:
    with pytest.raises(RequestError, match=r"the host example\.org is not on the public internet"):
        resolved("example.org", *addresses)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "localhost"])
def test_other_spellings_of_this_machine_are_refused(host: str) -> None:
    """Resolvers accept them."""
    with pytest.raises(RequestError, match=r"is not on the public internet|cannot be found"):
        asyncio.run(public_address(host, 80))


def test_a_host_that_cannot_be_found_is_named() -> None:
    with pytest.raises(RequestError, match=r"the host a\.\.b cannot be found"):
        asyncio.run(public_address("a..b", 80))
