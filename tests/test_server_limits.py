"""No request, however large, delays others for long, takes much memory, or works without end."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from bm25v.server import workers
from tests.http_server import Client
from tests.test_benchmarks import run_script
from tests.test_server import failed


def test_small_searches_are_answered_beside_the_largest_requests() -> None:
    figures = run_script("budgets.py", "--n", "300", "--seconds", "0.5", "--vocabulary", "toy")
    assert len(figures["kinds"]) >= 36
    for kind, row in figures["kinds"].items():
        assert row["n_small"] > 0, kind
        assert row["small_p99_ms"] < 1_000, kind
        assert row["memory_bytes"]["most"] < 1e9, kind
        assert not {"0", "500", "502", "504"} & set(row["statuses"]), kind


def test_work_for_a_request_has_an_end(
    client: Client, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = next(photos.iterdir()).read_bytes()
    assert client.upload(photo, photo).status_code == 200
    monkeypatch.setattr(workers, "TASK_SECONDS", 0.0)
    failed(client.upload(photo, photo), 503, "took-too-long", "ask for less")
    failed(client.get("/v1/images?folder=*.png"), 503, "took-too-long")
    failed(client.get("/v1/duplicates"), 503, "took-too-long", "bm25v duplicates")
    assert client.get(f"/v1/images/{client.ids()[0]}/similar").status_code == 200


def test_the_size_of_a_response_is_limited(client: Client) -> None:
    query = {"images": client.ids()[:1], "k": 1000}
    assert client.post("/v1/search", json=query).status_code == 200
    too_many = client.post("/v1/search", json={**query, "words": 26})
    failed(too_many, 422, "wrong-value", "1000 hits with 26 words")
    crops = [{"word": 1}] * 37
    failed(client.post("/v1/crops", json={"crops": crops, "size": 256}), 422, "wrong-value")


@pytest.mark.parametrize("path", ["/v1/crops", "/v1/zip", "/v1/trash", "/v1/names"])
def test_a_body_with_many_mistakes_is_a_short_problem(client: Client, path: str) -> None:
    method = "PUT" if path == "/v1/names" else "POST"
    body = {str(key): 1 for key in range(20_000)}
    failed(client.request(method, path, json=body), 422, "wrong-value", "values are wrong")


def test_a_body_that_is_sent_slowly_has_no_slot(client: Client) -> None:
    address = (client.base_url.host, client.base_url.port or 80)
    head = (
        f"PUT /v1/words/1/name HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(socket.create_connection(address, timeout=30))
            connection.sendall(head.encode())
        response = client.put("/v1/words/1/name", json={"name": "ear"}, timeout=10)
        assert response.json() == {"word": 1, "name": "ear"}
