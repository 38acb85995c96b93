"""The socket of a server."""

import socket

from bm25v.server.run import bind


def test_responses_do_not_wait_for_the_client() -> None:
    """Without this option, a body that follows its headers is sent 40 ms later."""
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
