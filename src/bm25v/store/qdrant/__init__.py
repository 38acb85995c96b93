"""Collections in Qdrant, at an address such as `qdrant://host:6334/images`.

First-stage scores are those of BM25 with live IDF, which the query carries, and a frozen average
length, which is part of the stored values.
"""

import os

from bm25v.errors import MissingExtra
from bm25v.store.qdrant.address import Address, parse_address

__all__ = ["Address", "parse_address", "require_engine"]

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before it is imported: else it prints by itself


def require_engine(url: str) -> Address:
    """Return the parts of an address; raise `MissingExtra` if its client is not installed."""
    address = parse_address(url)
    try:
        import qdrant_client  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"the engine {address}", "qdrant") from error
    return address
