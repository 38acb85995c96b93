"""The address of a collection in, its parts out: `qdrant://host:6334/images`.

`qdrants://` is the same over TLS. The key of the server comes from the environment, because command
lines are visible to others.
"""

import os
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from bm25v.errors import InvalidOption

API_KEY = "BM25V_QDRANT_API_KEY"  # environment variable
_SCHEMES = {"qdrant": False, "qdrants": True}
_PORT = 6334  # of gRPC
_LOCAL = ("localhost", "127.0.0.1", "::1")


class Address(NamedTuple):
    host: str
    port: int
    collection: str
    tls: bool = False
    vocabulary: str | None = None  # its path on this machine, if it is another

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"qdrant{'s' * self.tls}://{host}:{self.port}/{self.collection}"


def parse_address(url: str) -> Address:
    """Return the parts of an address.

    >>> parse_address("qdrant://10.0.0.7/images")
    Address(host='10.0.0.7', port=6334, collection='images', tls=False, vocabulary=None)
    >>> str(parse_address("qdrants://db.example:443/images?vocabulary=/models/birds"))
    'qdrants://db.example:443/images'
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORT
    except ValueError as error:
        raise InvalidOption(f"engine {url!r}: {error}") from None
    collection, options = parts.path.strip("/"), parse_qs(parts.query, keep_blank_values=True)
    if parts.password is not None or parts.username is not None:
        raise InvalidOption(f"a password in the address of an engine: set {API_KEY} instead")
    if parts.scheme not in _SCHEMES or not host or not collection or "/" in collection:
        raise InvalidOption(f"engine {url!r}: give an address such as qdrant://host:6334/images")
    vocabulary = options.pop("vocabulary", [None])[-1]
    if options:
        raise InvalidOption(
            f"engine {url!r}: {', '.join(options)}: the only option is vocabulary=PATH"
        )
    return Address(host, port, collection, _SCHEMES[parts.scheme], vocabulary)


def read_api_key(address: Address) -> str | None:
    """Return the key of the server; it is not sent unencrypted to another machine."""
    key = os.environ.get(API_KEY) or None
    if key is not None and not address.tls and address.host not in _LOCAL:
        raise InvalidOption(f"{API_KEY} is set, and {address} is not encrypted: give qdrants://")
    return key
