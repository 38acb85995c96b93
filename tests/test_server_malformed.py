"""Requests that no client should send: each gets an answer in time, none a 5xx, and others go on.

To add a case, append it to `REQUESTS`: `{host}` is the server's address, the body follows an empty
line, and its length is added unless the head has one.
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bm25v import Gallery
from tests.conftest import make_image
from tests.http_server import Client, serving

SECONDS = 5.0  # until an answer must be there
FORM = "POST /v1/search HTTP/1.1\nHost: {host}\nContent-Type: multipart/form-data"
JSON = "POST /v1/search HTTP/1.1\nHost: {host}\nContent-Type: application/json"
PART = '--b\r\nContent-Disposition: form-data; name="query"'
FILE = '--b\r\nContent-Disposition: form-data; name="image"; filename="a"'
END = "\r\n--b--\r\n"

REQUESTS = {
    "no boundary": FORM + "\n\n--b",
    "empty boundary": FORM + "; boundary=\n\n----\r\n\r\n",
    "long boundary": FORM + f"; boundary={'b' * 5000}\n\n--b",
    "boundary that is missing": FORM + f"; boundary=x\n\n{PART}\r\n\r\n{{}}{END}",
    "no end": FORM + f"; boundary=b\n\n{PART}\r\n\r\n{{}}",
    "nothing": FORM + "; boundary=b\n\n",
    "only the end": FORM + "; boundary=b\n\n--b--\r\n",
    "part without a head": FORM + f"; boundary=b\n\n--b\r\n\r\n{{}}{END}",
    "part without a name": FORM
    + f"; boundary=b\n\n--b\r\nContent-Disposition: form-data\r\n\r\n{{}}{END}",
    "part of a kind": FORM + f"; boundary=b\n\n{PART}\r\nContent-Type: x/y\r\n\r\n{{}}{END}",
    "encoded part": FORM
    + f"; boundary=b\n\n{FILE}\r\nContent-Transfer-Encoding: base64\r\n\r\n!!!{END}",
    "names with quotes": FORM
    + f'; boundary=b\n\n--b\r\nContent-Disposition: form-data; name="a\\"b"; x\r\n\r\n{END}',
    "10,000 parts": FORM + f"; boundary=b\n\n{f'{PART}{chr(13)}{chr(10)}{END[:2]}' * 10_000}",
    "10,000 letters of a name": FORM
    + f'; boundary=b\n\n--b\r\nContent-Disposition: form-data; name="{"x" * 10_000}"\r\n\r\n{END}',
    "part head of 100 kB": FORM + f"; boundary=b\n\n--b\r\nX: {'x' * 100_000}\r\n\r\n{END}",
    "1 MB before the first part": FORM + f"; boundary=b\n\n{'x' * 1_000_000}\r\n{PART}{END}",
    "query as a file": FORM
    + f'; boundary=b\n\n{PART}; filename="q"\r\n\r\n{{}}\r\n{FILE}\r\n\r\nx{END}',
    "two queries": FORM + f"; boundary=b\n\n{PART}\r\n\r\n{{}}\r\n{PART}\r\n\r\n{{}}{END}",
    **{
        f"charset {charset}": FORM
        + f"; charset={charset}; boundary=b\n\n{PART}\r\n\r\n{'a' * 99_999}-{'a' * 99_999}{END}"
        for charset in ("punycode", "idna", "undefined", "zip", "utf-7", "unicode_escape", '"')
    },
    "urlencoded": JSON.replace("json", "x-www-form-urlencoded") + "\n\n" + "a=1&" * 100_000,
    "xml": JSON.replace("json", "xml") + '\n\n<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
    "no type": "POST /v1/search HTTP/1.1\nHost: {host}\n\n{{}}",
    "not JSON": JSON + "\n\n{{",
    "not UTF-8": JSON + '\n\n{{"text": "\udcff\udcfe"}}',
    "half a surrogate": JSON + '\n\n{{"text": "\\ud800"}}',
    "zero byte": JSON + '\n\n{{"text": "a\\u0000b", "folder": ["\\u0000"]}}',
    "nested": JSON + "\n\n" + "[" * 300_000,
    "huge number": JSON + '\n\n{{"k": ' + "9" * 300_000 + "}}",
    "no number": JSON + '\n\n{{"must": [1], "min_coverage": NaN}}',
    "same key": JSON + "\n\n{{" + '"k": 1, ' * 50_000 + '"k": 1}}',
    "many wildcards": JSON + '\n\n{{"must": [1], "folder": ["' + "*a" * 2_000 + '"]}}',
    "folders above folders": JSON + '\n\n{{"must": [1], "folder": ["' + "../" * 1_300 + '"]}}',
    "odd dates": JSON + '\n\n{{"must": [1], "date": "9999999-99..0000"}}',
    "odd box": JSON + '\n\n{{"images": ["eA"], "region": [1e308, -1e308, 1e308, 1e308]}}',
    "compressed": JSON + "\nContent-Encoding: gzip\n\n\x1f\x8b",
    "two lengths": JSON + "\nContent-Length: 2\nTransfer-Encoding: chunked\n\n{{}}",
    "two equal lengths": JSON + "\nContent-Length: 2\nContent-Length: 2\n\n{{}}",
    "different lengths": JSON + "\nContent-Length: 2\nContent-Length: 3\n\n{{}}",
    "negative length": JSON + "\nContent-Length: -2\n\n{{}}",
    "length of 5,000 digits": JSON + "\nContent-Length: " + "9" * 5_000 + "\n\n{{}}",
    "length of letters": JSON + "\nContent-Length: two\n\n{{}}",
    "other coding": JSON + "\nTransfer-Encoding: gzip, chunked\n\n0\r\n\r\n",
    "wrong chunk": JSON + "\nTransfer-Encoding: chunked\n\nzz\r\n",
    "two hosts": "GET /healthz HTTP/1.1\nHost: {host}\nHost: {host}\n\n",
    "no host": "GET /healthz HTTP/1.1\n\n",
    "host with a user": "GET /healthz HTTP/1.1\nHost: a@{host}\n\n",
    "address as target": "GET http://{host}/healthz HTTP/1.1\nHost: {host}\n\n",
    "origin that is none": "GET /v1/stats HTTP/1.1\nHost: {host}\nOrigin: http://[\n\n",
    "header without a name": "GET /healthz HTTP/1.1\nHost: {host}\n: x\n\n",
    "header on two lines": "GET /healthz HTTP/1.1\nHost: {host}\nX: a\n b\n\n",
    "10,000 headers": "GET /healthz HTTP/1.1\nHost: {host}\n" + "X: y\n" * 10_000 + "\n",
    "head of 1 MB": "GET /healthz HTTP/1.1\nHost: {host}\nX: " + "x" * 1_000_000 + "\n\n",
    "tag of 60 kB": "GET /static/main.js HTTP/1.1\nHost: {host}\nIf-None-Match: "
    + '"x",' * 15_000
    + "\n\n",
    "target of 60 kB": "GET /v1/images?" + "folder=%2a&" * 5_000 + " HTTP/1.1\nHost: {host}\n\n",
    "wrong percent": "GET /v1/images/%zz%00%c0%ae HTTP/1.1\nHost: {host}\n\n",
    "method": "BREW /v1/search HTTP/1.1\nHost: {host}\n\n",
    "version": "GET /healthz HTTP/9.9\nHost: {host}\n\n",
    "TLS": "\x16\x03\x01\x02\x00\x01\x00",
    "upgrade": "GET / HTTP/1.1\nHost: {host}\nUpgrade: h2c, websocket\nConnection: Upgrade\n\n",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("malformed")
    make_image(1).save(folder / "1.png")
    with Gallery.create(folder / "gallery", vocabulary="toy") as gallery:
        gallery.add(folder / "1.png")
        with serving(gallery, Path(folder / "cache"), writable=True) as client:
            yield client


@pytest.mark.parametrize("case", REQUESTS)
def test_a_malformed_request_gets_an_answer_and_delays_nobody(client: Client, case: str) -> None:
    address = (client.base_url.host, client.base_url.port or 80)
    head, _, body = REQUESTS[case].partition("\n\n")
    content = body.replace("{{", "{").replace("}}", "}").encode("utf-8", "surrogateescape")
    lines = head.replace("{host}", f"{address[0]}:{address[1]}").split("\n")
    if body and "Content-Length" not in head and "Transfer-Encoding" not in head:
        lines.append(f"Content-Length: {len(content)}")
    request = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + content
    answer, is_refused = b"", False
    with socket.create_connection(address, timeout=SECONDS) as connection:
        try:
            connection.sendall(request)
            while part := connection.recv(65536):
                answer += part
        except ConnectionError:  # closed before all of it was read
            is_refused = True
    assert is_refused or answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")), answer[:500]
    assert client.get("/healthz", timeout=SECONDS).status_code == 200
