"""IP addresses as subjects, in one spelling per caller.

An IPv4-mapped IPv6 address becomes the IPv4 address. An IPv6 address becomes its /64 network, the smallest network that
providers assign: one customer with 2^64 addresses must not have as many quotas.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network

__all__ = ["subject_address"]


@lru_cache(maxsize=4096)
def subject_address(text: str) -> str:
    """The subject that an address belongs to. Any other text is returned as it is.

    >>> subject_address("2001:db8:0::1"), subject_address("::ffff:10.0.0.1"), subject_address("10.0.0.1")
    ('2001:db8::/64', '10.0.0.1', '10.0.0.1')
    """
    if ":" not in text:
        return text
    try:
        if "/" in text:
            network = ip_network(text, strict=False)
            return str(network) if isinstance(network, IPv6Network) and network.prefixlen == 64 else text
        address = ip_address(text.partition("%")[0].strip("[]"))
    except ValueError:
        return text
    if not isinstance(address, IPv6Address):
        return text
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else str(IPv6Network((int(address) >> 64 << 64, 64)))
