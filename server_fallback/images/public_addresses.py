"""Public addresses: where a host name leads, if that is outside. A server that fetches what a client names must not
reach what only the server can reach: this machine, its network, or a cloud's metadata service.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from nearfar.compiler.runtime.errors import RequestError

# IPv6 networks whose addresses contain an IPv4 address, and the position of its first byte.
_WITH_IPV4 = ((ip_network("64:ff9b::/96"), 12), (ip_network("2002::/16"), 2), (ip_network("::/96"), 12))
# Their gateways are chosen by others (Teredo), or translate to a network of the operator's (RFC 8215).
_TUNNELS = (ip_network("2001::/32"), ip_network("64:ff9b:1::/48"))


async def public_address(host: str, port: int) -> str:
    """An address of a host, as text. The caller connects to it and not to the name, which could lead elsewhere when it
    is resolved again.

    Raises RequestError if the name has no address, or any address that is not public.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RequestError(f"the host {host} cannot be found; correct its name") from error
    addresses = [str(address[0]) for *_, address in found]
    # A name with both kinds of addresses is that of an attack, or of a network whose names lead inside.
    if not addresses or not all(map(is_public, addresses)):
        raise RequestError(f"the host {host} is not on the public internet; send the image as a data: URL")
    return addresses[0]


def is_public(text: str) -> bool:
    """Whether an IP address belongs to a host on the internet: unicast, and not of special use (RFC 6890)."""
    try:
        # The scope of an IPv6 address ("%eth0") exists only for local ones.
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.scope_id is not None or any(address in network for network in _TUNNELS):
            return False
        inner = address.ipv4_mapped
        for network, start in _WITH_IPV4:
            if inner is None and address in network:
                inner = IPv4Address(address.packed[start : start + 4])
        if inner is not None:
            return is_public(str(inner))
    return address.is_global and not address.is_multicast
