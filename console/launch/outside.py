"""The address of a server that someone else started: read from a URL, and refused where it cannot be meant."""

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}
METADATA = frozenset(
    # Services of clouds that hand out credentials to whoever asks from inside, besides the link-local ones.
    {ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")}
)


class BadAddress(ValueError):
    """The message is a sentence for the person who gave it."""


@dataclass(frozen=True)
class Place:
    """Where a server answers. `prefix` stands before every path (vLLM's --root-path), empty as a rule."""

    host: str
    port: int
    prefix: str = ""
    tls: bool = False

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.prefix}"


def parse(text: str) -> Place:
    """Of `http://10.0.0.5:8000`; a trailing `/v1` is taken for what people copy. Raises BadAddress. No look-up."""
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadAddress(f"This is no address: {error}.") from error
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise BadAddress("Give an address like http://10.0.0.5:8000. Only http and https are understood.")
    if parts.username is not None or parts.password is not None:
        raise BadAddress("Leave name and password out of the address. An API key has a field of its own.")
    if parts.query or parts.fragment:
        raise BadAddress("Leave out what follows ? or # in the address.")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    if any(not 32 < ord(character) < 127 for character in prefix + host):
        raise BadAddress("Give an address of plain letters, without spaces.")
    return Place(host, port or DEFAULT_PORTS[parts.scheme], prefix, parts.scheme == "https")


def resolve(place: Place) -> frozenset[str]:
    """The IP addresses behind it. Raises BadAddress when there are none, or one that no server may have."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BadAddress(f"{place.host} has no address: look at its spelling and at the name service.") from error
    addresses = frozenset(str(entry[4][0]).partition("%")[0] for entry in found)
    for address in addresses:
        if problem := _why_never(address):
            raise BadAddress(f"{place.host} is {problem} ({address}). No server is adopted from there.")
    return addresses


def _why_never(text: str) -> str:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_link_local:
        return "a link-local address, as metadata services of clouds have"
    if address in METADATA:
        return "a metadata service"
    if address.is_multicast or address.is_unspecified:
        return "not the address of one machine"
    return ""
