"""The page's server gives away what the page needs, to the page, and nothing else to anybody."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from essm_deploy.targets.page_server import HEADERS, Exchange, Shelf, page_server

CONTENT = bytes(range(256)) * 4


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    for folder in ("web/deeper", "ort", "bundle/graphs", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    for name in (
        "web/page.html",
        "web/core.mjs",
        "web/deeper/a.mjs",
        "web/notes.txt",
        "ort/a.wasm",
        "outside/secret.bin",
        "bundle/manifest.json",
    ):
        (tmp_path / name).write_text(name)
    (tmp_path / "bundle/graphs/k8.onnx").write_bytes(CONTENT)
    (tmp_path / "bundle/weights.bin").symlink_to(tmp_path / "outside/secret.bin")
    (tmp_path / "web/link.mjs").symlink_to(tmp_path / "outside/secret.bin")
    shelves = {"web": Shelf(tmp_path / "web", suffixes=(".html", ".mjs")), "ort": Shelf(tmp_path / "ort", suffixes=(".wasm",))}
    return Exchange(shelves)


@pytest.fixture
def address(exchange: Exchange) -> Iterator[str]:
    with page_server(exchange) as address:
        yield address


def offer(exchange: Exchange, tmp_path: Path) -> None:
    exchange.offer({"op": "measure"}, Shelf(tmp_path / "bundle", names=("graphs/k8.onnx", "weights.bin")))


def fetch(address: str, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Status and content of a path below the secret."""
    parts = urlsplit(address)
    secret = parts.path.split("/")[1]
    return raw(parts.port or 0, f"/{secret}/{path}", method, body, **headers)


def raw(port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        if answer.status < 400:
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_page_and_its_modules_are_served(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    assert fetch(address, "web/page.html") == (200, b"web/page.html")
    assert fetch(address, "web/core.mjs") == (200, b"web/core.mjs")
    assert fetch(address, "ort/a.wasm") == (200, b"ort/a.wasm")


@pytest.mark.parametrize(
    "path",
    [
        "web/../outside/secret.bin",
        "web/%2e%2e/outside/secret.bin",
        "web/..%2foutside%2fsecret.bin",
        "web/%2e%2e%5coutside%5csecret.bin",
        "web//etc/passwd",
        "web/notes.txt",
        "web/link.mjs",
        "web/deeper/a.mjs",
        "web/core.mjs/",
        "web/",
        "web",
        "",
        "outside/secret.bin",
        "ort/../web/core.mjs",
        "engine/manifest.json",
        "engine/../outside/secret.bin",
        "engine/weights.bin",
        "engine/graphs/../graphs/k8.onnx",
        "engine/",
    ],
)
def test_no_path_leads_out_of_what_is_served(address: str, exchange: Exchange, tmp_path: Path, path: str) -> None:
    offer(exchange, tmp_path)
    assert fetch(address, path) == (404, b"")


def test_an_engines_files_are_served_once_it_was_asked_for(address: str, exchange: Exchange, tmp_path: Path) -> None:
    assert fetch(address, "engine/graphs/k8.onnx")[0] == 404
    offer(exchange, tmp_path)
    assert fetch(address, "engine/graphs/k8.onnx") == (200, CONTENT)


@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [
        ("bytes=0-0", 206, CONTENT[:1]),
        ("bytes=100-299", 206, CONTENT[100:300]),
        ("bytes=1000-9999", 206, CONTENT[1000:]),
        ("bytes=1024-1030", 416, b""),
        ("bytes=9-5", 416, b""),
        ("bytes=-5", 200, CONTENT),
        ("bytes=0-1,4-5", 200, CONTENT),
    ],
)
def test_a_range_is_the_bytes_that_were_asked_for(
    address: str, exchange: Exchange, tmp_path: Path, asked: str, status: int, content: bytes
) -> None:
    offer(exchange, tmp_path)
    assert fetch(address, "engine/graphs/k8.onnx", Range=asked) == (status, content)


def test_without_the_secret_there_is_nothing(address: str, exchange: Exchange) -> None:
    port = urlsplit(address).port or 0
    for path in ("/", "/web/page.html", f"/{exchange.secret}x/web/page.html", f"/{exchange.secret[:-1]}/web/page.html"):
        assert raw(port, path) == (404, b"")
    assert raw(port, "/web/event", "POST", b'{"event": "done"}') == (404, b"")
    assert exchange.events.empty()


def test_another_hosts_name_for_our_address_is_refused(address: str) -> None:
    assert fetch(address, "web/page.html", Host="evil.example")[0] == 404


def test_messages_arrive_in_order_and_only_objects_do(address: str, exchange: Exchange) -> None:
    for number in range(3):
        assert fetch(address, "web/event", "POST", json.dumps({"event": "samples", "n": number}).encode()) == (204, b"")
    assert [exchange.events.get(timeout=1)["n"] for _ in range(3)] == [0, 1, 2]
    for body in (b"[1]", b"{", b"\xff"):
        assert fetch(address, "web/event", "POST", body)[0] == 400
    assert fetch(address, "web/page.html", "POST", b"{}")[0] == 404
    assert exchange.events.empty()


def test_the_request_is_waited_for(address: str, exchange: Exchange, tmp_path: Path) -> None:
    offer(exchange, tmp_path)
    status, content = fetch(address, "web/request")
    assert (status, json.loads(content)) == (200, {"op": "measure"})
