"""Which requests are let in: by the name they were sent to, the page they come from, the token.

A browser can be made to send requests to this machine by any page that it shows, so names and
origins matter even where nobody else can connect.
"""

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bm25v.errors import InvalidOption
from bm25v.server.problems import Problem

OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # for programs that watch the server: no token
_PAGE = re.compile(r"/(static/[^/]*)?")  # the files of the web page, which are the same for all

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/@\[\]]+))(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class Access:
    """What a request must have; made by `Access.of`."""

    port: int
    names: frozenset[str]  # that the server is reached by, at its own port
    proxy_names: frozenset[str] = frozenset()  # at any port
    is_any_address: bool = False  # every address of the machine is one of the names
    token: str | None = None

    @classmethod
    def of(
        cls,
        address: str,
        port: int,
        *,
        host: str = "",
        token: str | None = None,
        insecure: bool = False,
        allow_hosts: Iterable[str] = (),
    ) -> "Access":
        """Return the rules for a server that is bound to an address.

        >>> Access.of("127.0.0.1", 8025).token is None
        True
        >>> Access.of("192.168.0.7", 8025)
        Traceback (most recent call last):
        bm25v.errors.InvalidOption: 192.168.0.7 can be reached by others: give --token-file, or ...
        """
        bound = ipaddress.ip_address(address)
        if token is None and not insecure and not bound.is_loopback:
            raise InvalidOption(
                f"{host or address} can be reached by others: give --token-file, or --insecure if "
                "all of them may see the images"
            )
        names = {address, host.lower() or address}
        if bound.is_loopback:
            names |= _LOOPBACK_NAMES
        if bound.is_unspecified:
            names |= {*_LOOPBACK_NAMES, socket.gethostname().lower()}
        proxies = frozenset(name.lower() for name in allow_hosts)
        return cls(port, frozenset(names), proxies, bound.is_unspecified, token)

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise a `Problem` if a request must be refused; the names of headers are lower case."""
        host = headers.get("host", "")
        if not self._is_own(host):
            raise Problem(
                421,
                "wrong-host",
                f"requests to {host!r} are refused: use the address that the server printed, or "
                "start it with --allow-host",
            )
        is_page = _PAGE.fullmatch(path) is not None
        self._check_origin(headers, may_be_link=is_page)
        if self.token is not None and path not in OPEN_PATHS and not is_page:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            is_bearer = scheme.lower() == "bearer"
            is_right = hmac.compare_digest(given.strip().encode(), self.token.encode())
            if not (is_bearer and is_right):
                raise Problem(
                    401,
                    "no-token",
                    "send the token of the server: Authorization: Bearer TOKEN",
                    headers={"WWW-Authenticate": "Bearer"},
                )

    def _check_origin(self, headers: Mapping[str, str], *, may_be_link: bool) -> None:
        """Refuse requests by pages of other sites, except that their links may lead to the page."""
        if may_be_link and headers.get("sec-fetch-mode") == "navigate" and "origin" not in headers:
            return
        origin, host = headers.get("origin"), headers.get("host", "").lower()
        is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if origin is not None:
            netloc = origin.partition("://")[2].lower()
            parsed = _HOST.fullmatch(netloc)
            name = (parsed[1] or parsed[2]) if parsed else ""
            is_foreign = parsed is None or (netloc != host and name not in self.proxy_names)
        if is_foreign:
            detail = f"requests by pages of other sites are refused: {origin or 'unknown site'}"
            raise Problem(403, "wrong-origin", detail)

    def _is_own(self, host: str) -> bool:
        parsed = _HOST.fullmatch(host)
        if parsed is None:
            return False
        name, port = (parsed[1] or parsed[2]).lower(), int(parsed[3] or 80)
        if name in self.proxy_names:
            return True
        if port != self.port:
            return False
        if name in self.names:
            return True
        try:  # a page of another site has a name of letters, not a number
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.is_any_address
