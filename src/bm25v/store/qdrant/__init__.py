"""Collections in Qdrant, at an address such as `qdrant://host:6334/images`.

`qdrants://` is the same over TLS; `qdrant://:memory:/images` is a collection of qdrant-client's own
engine in this process, which all stores that name it share. First-stage scores are those of BM25
with live IDF, which the query carries, and a frozen average length, which is part of the stored
values.
"""

import os
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit

from bm25v.errors import InvalidOption, MissingExtra

if TYPE_CHECKING:
    from bm25v.store.qdrant.calls import Calls
    from bm25v.store.qdrant.store import QdrantStore

API_KEY = "BM25V_QDRANT_API_KEY"  # environment variable: command lines are visible to others
MEMORY = ":memory:"  # in place of host and port

_SCHEMES = {"qdrant": False, "qdrants": True}
_PORT = 6334  # of gRPC

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before it is imported: else it prints by itself


class Address(NamedTuple):
    host: str
    port: int
    collection: str
    tls: bool = False
    vocabulary: str | None = None  # its path on this machine, if it is another

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        server = MEMORY if self.host == MEMORY else f"{host}:{self.port}"
        return f"qdrant{'s' * self.tls}://{server}/{self.collection}"


def parse_address(url: str) -> Address:
    """Return the parts of an address.

    >>> parse_address("qdrant://10.0.0.7/images")
    Address(host='10.0.0.7', port=6334, collection='images', tls=False, vocabulary=None)
    >>> str(parse_address("qdrants://db.example:443/images?vocabulary=/models/birds"))
    'qdrants://db.example:443/images'
    """
    try:
        parts = urlsplit(url)
        is_memory = parts.netloc == MEMORY
        host, port = (MEMORY, 0) if is_memory else (parts.hostname, parts.port or _PORT)
    except ValueError as error:
        raise InvalidOption(f"engine {url!r}: {error}") from None
    collection, options = parts.path.strip("/"), parse_qs(parts.query, keep_blank_values=True)
    if not is_memory and (parts.password is not None or parts.username is not None):
        raise InvalidOption(f"a password in the address of an engine: set {API_KEY} instead")
    if parts.scheme not in _SCHEMES or not host or not collection or "/" in collection:
        raise InvalidOption(f"engine {url!r}: give an address such as qdrant://host:6334/images")
    vocabulary = options.pop("vocabulary", [None])[-1]
    if options:
        raise InvalidOption(
            f"engine {url!r}: {', '.join(options)}: the only option is vocabulary=PATH"
        )
    return Address(host, port, collection, _SCHEMES[parts.scheme], vocabulary)


def open_calls(address: Address) -> "Calls":
    """Return the calls about a collection; raise `MissingExtra` if no client is installed."""
    try:
        import qdrant_client  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"the engine {address}", "qdrant") from error
    from bm25v.store.qdrant.calls import Calls, connect

    return Calls(connect(address), address.collection, str(address))


def open_store(url: str) -> "tuple[QdrantStore, str | None]":
    """Return the collection at an address, and the path of its vocabulary if that is given."""
    address = parse_address(url)
    calls = open_calls(address)
    from bm25v.store.qdrant.store import QdrantStore

    try:
        return QdrantStore(calls), address.vocabulary
    except BaseException:
        calls.close()
        raise
