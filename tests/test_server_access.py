"""Which requests the HTTP server refuses, and what can never be read through it."""

import hmac
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from bm25v import Gallery, InvalidOption
from bm25v.client import read_token, to_id
from bm25v.privacy import cache_folder
from bm25v.server import guard, run
from bm25v.server.guard import Access
from bm25v.server.images import read_file
from bm25v.server.problems import Problem
from tests.conftest import make_image
from tests.http_server import TOKEN, Client, serving, wait_until
from tests.test_server import failed


@pytest.fixture
def client(gallery: Gallery, tmp_path: Path) -> Iterator[Client]:
    """A client of a server with the rules that are the default."""
    with serving(gallery, tmp_path / "cache") as client:
        yield client


def port(client: Client) -> int:
    return client.base_url.port or 0


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_requests_to_the_own_names_are_answered(client: Client, name: str) -> None:
    response = client.get("/v1/stats", headers={"Host": f"{name}:{port(client)}"})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "user@127.0.0.1:{port}",
        "192.168.0.7:{port}",
        "",
    ],
)
def test_requests_to_other_names_are_refused(client: Client, host: str) -> None:
    """A name that another site resolves to this machine would let its pages read the answers."""
    for url in ("/v1/stats", "/healthz", "/"):
        response = client.get(url, headers={"Host": host.format(port=port(client))})
        failed(response, 421, "wrong-host")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "file://"},
        {"Origin": ""},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:{port}/path"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "file://127.0.0.1:{port}"},
    ],
)
def test_requests_by_pages_of_other_sites_are_refused(
    client: Client, headers: dict[str, str]
) -> None:
    headers = {name: value.format(port=port(client)) for name, value in headers.items()}
    for method, url in (("GET", "/v1/stats"), ("POST", "/v1/search"), ("OPTIONS", "/v1/search")):
        failed(client.request(method, url, headers=headers), 403, "wrong-origin")


def test_requests_by_the_own_page_are_answered_and_no_other_site_is_invited(client: Client) -> None:
    own = {"Origin": f"http://127.0.0.1:{port(client)}", "Sec-Fetch-Site": "same-origin"}
    response = client.post("/v1/search", json={"must": [1]}, headers=own)
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_of_another_site_may_lead_to_the_page_and_to_nothing_else(
    client: Client, site: str
) -> None:
    link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for url in ("/", "/?text=cat"):
        assert client.get(url, headers=link).status_code == 200
        for other in ({"Sec-Fetch-Mode": "no-cors"}, {"Origin": "http://evil.example"}):
            failed(client.get(url, headers={**link, **other}), 403, "wrong-origin")
    image = client.ids()[0]
    for url in ("/v1/stats", f"/v1/images/{image}/file", "/metrics", "/v1/openapi.json"):
        failed(client.get(url, headers=link), 403, "wrong-origin")


def test_the_page_may_use_nothing_but_this_server(client: Client) -> None:
    for url in ("/", "/static/main.js", "/static/style.css"):
        response = client.get(url)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        tag = {"If-None-Match": response.headers["etag"]}
        assert client.get(url, headers=tag).status_code == 304
    page = client.get("/").text
    assert "<style" not in page and "style=" not in page
    assert page.count("<script") == 1 and " onclick" not in page
    for name in re.findall(r'/static/([^"]+)"', page):
        assert client.get(f"/static/{name}").status_code == 200
    for name in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "nothing.js", "page.py", ""):
        assert client.get(f"/static/{name}").status_code == 404


def test_a_proxy_may_have_a_name_of_its_own(gallery: Gallery, tmp_path: Path) -> None:
    access = {"allow_hosts": ["photos.example.org"]}
    with serving(gallery, tmp_path / "cache", access=access) as client:
        site = {"Origin": "https://photos.example.org"}
        for headers in (
            {"Host": "photos.example.org"},
            {"Host": "photos.example.org", **site},
            site,
        ):
            response = client.post("/v1/search", json={"must": [1]}, headers=headers)
            assert response.status_code == 200, headers
        for origin in ("https://evil.example", "https://photos.example.org:8443"):
            other = {"Host": "photos.example.org", "Origin": origin}
            failed(client.get("/v1/stats", headers=other), 403, "wrong-origin")


def test_a_token_is_needed_if_there_is_one(gallery: Gallery, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache", access={"token": TOKEN}) as client:
        for header in ("", TOKEN, "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
            for url in ("/v1/stats", "/v1/openapi.json", "/metrics", "/v1/nothing", "/static/a/b"):
                response = client.get(url, headers={"Authorization": header})
                failed(response, 401, "no-token")
                assert response.headers["www-authenticate"] == "Bearer"
        for url in ("/healthz", "/readyz", "/", "/static/main.js"):
            assert client.get(url).status_code == 200, "the same for everybody"
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/v1/stats", headers=right).status_code == 200


def test_an_address_that_others_reach_needs_a_token() -> None:
    for address in ("0.0.0.0", "192.168.0.7", "::", "2001:db8::7"):
        with pytest.raises(InvalidOption, match="--token-file, or --insecure"):
            Access(address, 8025)
        assert Access(address, 8025, token=TOKEN).token == TOKEN
        assert Access(address, 8025, insecure=True).token is None
    for address in ("127.0.0.1", "127.9.9.9", "::1"):
        assert Access(address, 8025).token is None


def test_a_server_at_all_addresses_is_reached_by_number_but_not_by_foreign_names() -> None:
    access = Access("0.0.0.0", 8025, insecure=True)
    for host in ("192.168.0.7:8025", "[2001:db8::7]:8025", "localhost:8025"):
        access.check("/v1/stats", {"host": host})
    with pytest.raises(Exception, match=r"evil\.example"):
        access.check("/v1/stats", {"host": "evil.example:8025"})


@pytest.mark.parametrize(
    "token", ["", "short", "a" * 15, "two words of a token", "tökentökentökentöken"]
)
def test_weak_tokens_are_refused(tmp_path: Path, token: str) -> None:
    path = tmp_path / "token"
    path.write_text(token, encoding="utf-8")
    with pytest.raises(InvalidOption, match="--token-file"):
        read_token(path)
    with pytest.raises(InvalidOption, match="No such file"):
        read_token(tmp_path / "missing")
    path.write_text(f"{TOKEN}\n", encoding="ascii")
    assert read_token(path) == TOKEN


def test_every_response_has_the_headers_that_protect_a_browser(client: Client) -> None:
    image = client.ids()[0]
    for url in ("/", "/v1/stats", f"/v1/images/{image}/file", "/nothing", "/v1/words/9999"):
        headers = client.get(url).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers
    refused = client.get("/v1/stats", headers={"Host": "evil.example"}).headers
    assert refused["x-content-type-options"] == "nosniff"


def exchange(client: Client, *parts: bytes) -> bytes:
    """Send bytes over a connection of their own; return what the server answers."""
    with socket.create_connection(("127.0.0.1", port(client)), timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
            if b'"request_id"' in received:
                break
    return received


def head(client: Client, *lines: str) -> bytes:
    start = ("POST /v1/search HTTP/1.1", f"Host: 127.0.0.1:{port(client)}")
    return "".join(f"{line}\r\n" for line in (*start, *lines, "")).encode()


def test_a_large_upload_is_refused_before_it_is_read(gallery: Gallery, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache", max_body=10_000) as client:
        announced = exchange(client, head(client, "Content-Length: 10001"))
        assert announced.startswith(b"HTTP/1.1 413 ")
        form = "Content-Type: multipart/form-data; boundary=b"
        chunk = b"3e8\r\n" + b"a" * 1000 + b"\r\n"
        part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        first = f"{len(part):x}\r\n".encode() + part + b"\r\n"
        lines = (form, "Transfer-Encoding: chunked")
        streamed = exchange(client, head(client, *lines), first, chunk * 11)
        assert streamed.startswith(b"HTTP/1.1 413 ")
        assert b"at most" in streamed
        assert client.upload(b"a" * 5000).status_code == 422, "small ones are read"


def test_large_json_is_refused_before_it_is_read(client: Client) -> None:
    lines = ("Content-Type: application/json",)
    announced = exchange(client, head(client, *lines, "Content-Length: 1000001"))
    assert announced.startswith(b"HTTP/1.1 413 ")
    chunk = b"186a0\r\n" + b" " * 100_000 + b"\r\n"
    streamed = exchange(client, head(client, *lines, "Transfer-Encoding: chunked"), chunk * 11)
    assert streamed.startswith(b"HTTP/1.1 413 ")
    assert b"at most 1,000,000 bytes" in streamed


def test_the_bodies_of_all_requests_together_are_limited(gallery: Gallery, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache", max_body=10_000) as client, ExitStack() as stack:
        form = "Content-Type: multipart/form-data; boundary=b"
        part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        begin = head(client, form, "Content-Length: 9999") + part + b"a" * 9000
        for _ in range(11):
            connection = socket.create_connection(("127.0.0.1", port(client)), timeout=30)
            stack.enter_context(connection).sendall(begin)
        wait_until(lambda: client.upload(b"a" * 8000).status_code == 503)
        assert client.get("/v1/stats").status_code == 200
        stack.close()
        wait_until(lambda: client.upload(b"a" * 8000).status_code == 422)


@pytest.mark.parametrize("charset", ["punycode", "undefined", "raw_unicode_escape", "utf-7", ""])
def test_no_client_chooses_how_its_text_is_decoded(client: Client, charset: str) -> None:
    """Python needs seconds for some of these, and no other request is answered meanwhile."""
    text = "a" * 30_000 + "-" + "a" * 30_000
    part = f'--b\r\nContent-Disposition: form-data; name="query"\r\n\r\n{text}\r\n--b--\r\n'
    kind = f"multipart/form-data; charset={charset}; boundary=b"
    for url in ("/v1/search", "/v1/explain", "/v1/images"):
        response = client.post(url, content=part, headers={"Content-Type": kind})
        failed(response, 415, "wrong-type", "UTF-8")
    plain = "multipart/form-data; charset=UTF-8; boundary=b"
    response = client.post("/v1/search", content=part, headers={"Content-Type": plain})
    failed(response, 422, "wrong-value")


def test_a_query_with_many_mistakes_is_a_short_problem(client: Client) -> None:
    query = "{" + ",".join(f'"{key}":1' for key in range(20_000)) + "}"
    as_file = [("query", ("query.json", query.encode())), ("image", ("image", b"x"))]
    failed(client.post("/v1/search", files=as_file), 422, "wrong-value", "must be a text")
    headers = {"Content-Type": "application/json"}
    response = client.post("/v1/search", content=query, headers=headers)
    failed(response, 422, "wrong-value", "20,000 values are wrong or unknown")


def test_a_slow_upload_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    lines = ("Content-Type: application/json", "Content-Length: 100")
    assert exchange(client, head(client, *lines), b"{").startswith(b"HTTP/1.1 408 ")


def test_a_request_that_is_sent_letter_by_letter_is_given_up(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "HEAD_SECONDS", 0.3)
    with serving(gallery, tmp_path / "cache") as client:
        whole = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port(client)}\r\n\r\n".encode()
        for first in (b"", whole):
            with socket.create_connection(("127.0.0.1", port(client)), timeout=30) as connection:
                connection.sendall(first)
                received = b""
                while first and not received.endswith(b'{"status":"ok"}'):
                    received += connection.recv(65536)
                connection.sendall(whole[:20])
                assert connection.recv(65536) == b"", "the server has closed it"
        assert client.get("/healthz").status_code == 200


def test_a_limit_of_connections_keeps_the_server_alive(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MAX_CONNECTIONS", 4)
    with serving(gallery, tmp_path / "cache") as client, ExitStack() as stack:

        def connect() -> socket.socket:
            address = ("127.0.0.1", port(client))
            return stack.enter_context(socket.create_connection(address, timeout=30))

        idle = [connect() for _ in range(20)]
        assert client.get("/healthz").status_code == 200, "idle connections keep nobody out"
        assert idle[0].recv(1) == b"", "the oldest is closed"
        begin = head(client, "Content-Type: application/json", "Content-Length: 100")
        for _ in range(4):
            connect().sendall(begin)
        wait_until(lambda: client.get("/healthz").status_code == 503)
        stack.close()
        wait_until(lambda: client.get("/healthz").status_code == 200)


def test_json_that_is_nested_without_end_is_a_problem(client: Client) -> None:
    for content in (b"[" * 400_000, b'{"boost":' * 100_000, b"1" * 900_000):
        headers = {"Content-Type": "application/json"}
        response = client.post("/v1/search", content=content, headers=headers)
        failed(response, 422, "wrong-value")


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    access = Access("127.0.0.1", 8025, token=TOKEN)
    for given in (TOKEN, TOKEN[:-1], "", "t\xf6ken"):
        headers = {"host": "127.0.0.1:8025", "authorization": f"Bearer {given}"}
        with nullcontext() if given == TOKEN else pytest.raises(Problem, match="401"):
            access.check("/v1/stats", headers)
    assert [other for _, other in compared] == [TOKEN.encode()] * 4


def test_a_token_in_the_address_does_not_count(gallery: Gallery, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache", access={"token": TOKEN}) as client:
        failed(client.get(f"/v1/stats?token={TOKEN}"), 401, "no-token")
        failed(client.get("/v1/stats", auth=("user", TOKEN)), 401, "no-token")


def test_requests_that_proxies_read_in_another_way_are_refused(client: Client) -> None:
    for lines in (
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: -1",),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Host: evil.example",),
    ):
        assert exchange(client, head(client, *lines)).startswith(b"HTTP/1.1 400 ")


SECRET = b"root:x:0:0: a secret"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file beside the gallery's images."""
    path = tmp_path / "secret.txt"
    path.write_bytes(SECRET)
    return path


def test_no_id_reads_a_file_that_is_not_in_the_gallery(
    client: Client, photos: Path, secret: Path
) -> None:
    make_image(80).save(photos / "not-indexed.png")
    paths = (
        str(secret),
        f"{photos}/../secret.txt",
        f"{photos}/./3.png",
        f"{photos}//3.png",
        f"{photos}/3.png/",
        f"{photos}/3.png\0.txt",
        str(photos / "not-indexed.png"),
        str(photos),
        "../secret.txt",
        "3.png",
        "/etc/passwd",
        "/proc/self/environ",
        "file:///etc/passwd",
    )
    ids = [to_id(path) for path in paths]
    written = [str(secret), *paths, f"{to_id(str(photos / '3.png'))}="]
    ids += [quote(text, safe="") for text in written]
    ids += [quote(quote(text, safe=""), safe="") for text in written]
    for image_id in ids:
        for route in ("", "/file", "/thumbnail", "/similar"):
            response = client.get(f"/v1/images/{image_id}{route}")
            assert response.status_code in (404, 422), (image_id, route)
            assert SECRET not in response.content
    for url in ("/../../etc/passwd", "/v1/../../etc/passwd", "/v1/images/..%2f..%2fetc%2fpasswd"):
        received = exchange(
            client, f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1:{port(client)}\r\n\r\n".encode()
        )
        assert received.split()[1] in (b"404", b"422")
        assert b"root:" not in received


@pytest.mark.parametrize("how", ["link", "same-size-and-time", "folder-link", "fifo", "folder"])
def test_a_file_that_was_put_in_place_of_an_image_is_not_read(
    client: Client, photos: Path, tmp_path: Path, secret: Path, how: str
) -> None:
    target = photos / "3.png"
    before = target.stat()
    if how == "same-size-and-time":
        secret.write_bytes(SECRET.ljust(before.st_size, b"!"))
        os.utime(secret, ns=(before.st_atime_ns, before.st_mtime_ns))
    if how == "folder-link":
        other = tmp_path / "other"
        other.mkdir()
        shutil.copy(secret, other / "3.png")
        photos.rename(tmp_path / "moved")
        photos.symlink_to(other)
    else:
        target.unlink()
        if how == "fifo":
            os.mkfifo(target)
        elif how == "folder":
            target.mkdir()
        else:
            target.symlink_to(secret)
    image = to_id(str(target))
    urls = [f"/v1/images/{image}/{route}" for route in ("file", "thumbnail")]
    for url in (*urls, f"/v1/heatmap?image={image}&word=1"):
        response = client.get(url)
        assert response.status_code == 404
        assert response.json()["type"] in ("urn:bm25v:changed-file", "urn:bm25v:no-file")
        assert SECRET not in response.content


@pytest.mark.parametrize("change", ["overwritten", "shortened"])
@pytest.mark.parametrize("route", ["file", "zip"])
def test_a_file_that_changes_while_it_is_sent_never_arrives_as_a_whole(
    client: Client, gallery: Gallery, tmp_path: Path, route: str, change: str
) -> None:
    path = tmp_path / "large.bmp"
    make_image(82, side=4000).save(path)  # 48 MB, more than is sent ahead
    gallery.add(path)
    image, size = to_id(str(path)), path.stat().st_size
    method, url = ("GET", f"/v1/images/{image}/file") if route == "file" else ("POST", "/v1/zip")
    body = None if route == "file" else {"ids": [image]}
    with client.stream(method, url, json=body) as response:
        assert response.status_code == 200
        pieces = response.iter_raw()
        received = len(next(pieces))
        with path.open("r+b") as file:
            if change == "shortened":
                file.truncate(size - 4)
            else:
                file.seek(-4, os.SEEK_END)
                file.write(b"\xa5\xa5\xa5\xa5")
        with pytest.raises(httpx.RemoteProtocolError):
            received += sum(map(len, pieces))
    assert received < size
    failed(client.get(f"/v1/images/{image}/file"), 404, "changed-file")


def test_what_is_decoded_is_what_was_indexed_while_a_file_is_overwritten(
    gallery: Gallery, tmp_path: Path
) -> None:
    path = tmp_path / "large.bmp"
    make_image(83, side=2500).save(path)
    content = path.read_bytes()
    gallery.add(path)
    (record,) = gallery.store.read(lambda view: view.find([str(path)])).values()
    is_done = threading.Event()

    def overwrite() -> None:
        with path.open("r+b", buffering=0) as file:
            while not is_done.is_set():
                for end in (b"\xa5" * 4, content[-4:]):
                    file.seek(-4, os.SEEK_END)
                    file.write(end)
                    is_done.wait(0.02)

    thread = threading.Thread(target=overwrite)
    thread.start()
    n_right = n_changed = 0
    try:
        for _ in range(100):
            try:
                assert read_file(record) == content
                n_right += 1
            except Problem as problem:
                assert problem.kind == "changed-file"
                n_changed += 1
    finally:
        is_done.set()
        thread.join()
    assert n_right
    assert n_changed


def test_an_image_behind_a_link_that_was_indexed_is_sent(
    client: Client, gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    make_image(81).save(tmp_path / "original.png")
    (photos / "linked.png").symlink_to(tmp_path / "original.png")
    gallery.add(photos / "linked.png")
    linked = [
        image.path
        for image in gallery.images()
        if image.path.endswith(("linked.png", "original.png"))
    ]
    response = client.get(f"/v1/images/{to_id(linked[0])}/file")
    assert response.content == (tmp_path / "original.png").read_bytes()


def run_serve(
    gallery: Gallery, *options: str, environment: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bm25v", "serve", "-g", str(gallery.path), *options]
    return subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is a signal")
def test_the_command_prints_its_address_and_stops_on_ctrl_c(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tmp_path / "opened"
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(program))
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="ascii")
    token.chmod(0o600)
    server = run_serve(gallery, "--port", "0", "--token-file", str(token), "--open")
    watchdog = threading.Timer(60, server.kill)
    watchdog.start()
    assert server.stdout is not None
    line = server.stdout.readline()
    url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(f"{url}v1/stats", headers=right).json()["n_images"] == 12
    assert httpx.get(f"{url}v1/stats").status_code == 401
    wait_until(lambda: opened.exists() and opened.read_text() == f"{url}\n")
    server.send_signal(signal.SIGINT)
    out, err = server.communicate()
    watchdog.cancel()
    assert (server.returncode, out, err) == (0, "stopped\n", "")


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
@pytest.mark.parametrize(("mode", "is_named"), [(0o644, True), (0o640, True), (0o600, False)])
def test_a_token_that_others_can_read_is_named_in_one_line(
    gallery: Gallery, tmp_path: Path, mode: int, is_named: bool
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="ascii")
    token.chmod(mode)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = str(taken.getsockname()[1])
        commands = (  # both end in an error
            ("serve", "-g", str(gallery.path), "--port", used),
            ("search", "--text", "cat", "--server", "no address"),
        )
        for command in commands:
            done = subprocess.run(
                [sys.executable, "-m", "bm25v", *command, "--token-file", str(token)],
                capture_output=True,
                text=True,
                check=False,
            )
            lines = done.stderr.splitlines()
            warning = f"--token-file {token} is open to other users: chmod 600 {token}"
            assert (done.returncode, lines[:-1]) == (2, [warning] * is_named)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_what_the_server_makes_is_closed_to_other_users(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    before, mask = set(tmp_path.rglob("*")), os.umask(0o022)
    try:
        with serving(gallery, cache_folder(), writable=True) as client:
            first, *_ = client.ids()
            assert client.get(f"/v1/images/{first}/thumbnail").status_code == 200
            assert client.upload(b"\0" * 2_000_000).status_code == 422
            assert client.post("/v1/trash", json={"ids": [first]}).status_code == 200
    finally:
        os.umask(mask)
    made = [path for path in set(tmp_path.rglob("*")) - before if gallery.path not in path.parents]
    files = [path for path in made if path.is_file()]
    assert {path.suffix for path in files} == {".jpg", ".jsonl", ".png"}
    closed = {path for path in made if path.stat().st_mode & 0o077 == 0}
    assert [path for path in files if not closed & {path, *path.parents}] == []
    assert cache_folder() in closed


def test_the_command_refuses_what_would_be_unsafe_in_one_line(
    gallery: Gallery, tmp_path: Path
) -> None:
    short = tmp_path / "short"
    short.write_text("short", encoding="ascii")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = str(taken.getsockname()[1])
        for options, part in (
            (("--host", "0.0.0.0", "--port", "0"), "--token-file, or --insecure"),
            (("--token-file", str(short)), "at least 16 characters"),
            (("--port", used), "choose another"),
            (("--host", "no-such-name.invalid"), "choose another"),
        ):
            server = run_serve(gallery, *options)
            out, err = server.communicate(timeout=60)
            assert (server.returncode, out) == (2, "")
            assert part in err
            assert len(err.splitlines()) == 1


def test_nothing_is_reported_to_others_whatever_the_environment_says(gallery: Gallery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as collector:
        collector.settimeout(0.5)
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        telemetry = {
            "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
        }
        server = run_serve(gallery, "--port", "0", environment=telemetry)
        assert server.stdout is not None
        line = server.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        assert httpx.get(f"{url}v1/images").status_code == 200
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out, err) == (0, "stopped\n", "")
        with pytest.raises(TimeoutError):
            collector.accept()


def test_the_page_names_tests_that_exist() -> None:
    root = Path(__file__).parent
    named = {
        name
        for page in ("docs/how-to/serve.md", "SECURITY.md")
        for name in re.findall(r"`(test_\w+)`", (root.parent / page).read_text(encoding="utf-8"))
    }
    defined = {
        name
        for path in root.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text("utf-8"), flags=re.MULTILINE)
    }
    assert len(named) > 20
    assert named <= defined, named - defined
