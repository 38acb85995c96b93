"""The socket of a server."""

import socket

from bm25v.server.run import bind


def test_responses_do_not_wait_for_the_client() -> None:
    """Without this option, a body that follows its headers is sent 40 ms later."""
    bound = bind("127.0.0.1", 0)
    with bound.socket, socket.create_connection((bound.address, bound.port)):
        connection, _ = bound.socket.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
