"""A web server for one page that measures one engine: the loopback address, a random port, and a secret in every path.

    /SECRET/web/NAME        our page and modules
    /SECRET/ort/NAME        onnxruntime-web's dist folder
    /SECRET/engine/PATH     files of the engine that was asked for, and no others
    GET /SECRET/web/request      the request, as soon as there is one
    POST /SECRET/web/event       one message of the worker's protocol

All answers make the page cross-origin isolated: threads need a SharedArrayBuffer, and the clock then steps by 5 µs.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import ClassVar
from urllib.parse import unquote

from essm_deploy.errors import EssmError
from essm_deploy.runtime.channel import MAX_RUN_LINE
from essm_deploy.runtime.files import resolve_file
from essm_deploy.runtime.strict import JsonObject

HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # a cache would be written to disk while calls are timed
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {".html": "text/html; charset=utf-8", ".mjs": "text/javascript; charset=utf-8", ".wasm": "application/wasm"}
_RANGE = re.compile(r"bytes=([0-9]{1,15})-([0-9]{1,15})")
_BLOCK = 1 << 20


@dataclass
class Shelf:
    """A folder of which some files are served: those of the listed names, or of the listed kinds, directly in it."""

    root: Path
    names: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()

    def find(self, path: str) -> Path | None:
        """The file, or None for everything that is not meant to be seen, links that leave the folder among it."""
        kind = "/" not in path and path.endswith(self.suffixes) if self.suffixes else False
        if path not in self.names and not kind:
            return None
        try:
            return resolve_file(self.root, path)
        except EssmError:
            return None


@dataclass
class Exchange:
    """What the page and the bridge say to each other."""

    shelves: dict[str, Shelf]
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    events: queue.Queue[JsonObject] = field(default_factory=lambda: queue.Queue(maxsize=64))
    request: str | None = None
    ready: threading.Event = field(default_factory=threading.Event)

    def offer(self, request: JsonObject, engine: Shelf) -> None:
        """Let the page have its request, and the engine's files."""
        self.shelves = {**self.shelves, "engine": engine}
        self.request = json.dumps(request)
        self.ready.set()

    def find(self, shelf: str, path: str) -> Path | None:
        """The file that a path below the secret names."""
        return self.shelves[shelf].find(path) if shelf in self.shelves else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    exchange: ClassVar[Exchange]
    timeout = 600

    def do_GET(self) -> None:
        path = self._path()
        if path == "web/request":
            return self._request()
        shelf, _, rest = (path or "").partition("/")
        file = self.exchange.find(shelf, rest)
        return self._refuse() if file is None else self._file(file)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self._path() != "web/event" or not length.isdigit() or int(length) > MAX_RUN_LINE:
            return self._refuse()
        try:
            event = json.loads(self.rfile.read(int(length)))
        except ValueError:
            event = None
        if not isinstance(event, dict):
            return self._refuse(HTTPStatus.BAD_REQUEST)
        self.exchange.events.put(event)
        return self._answer(HTTPStatus.NO_CONTENT, b"")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: stderr is for what goes wrong."""

    def _path(self) -> str | None:
        """What follows the secret; None without it, or for another host's name, which a page elsewhere might have made ours."""
        head, _, rest = unquote(self.path.split("?")[0]).lstrip("/").partition("/")
        own = f"127.0.0.1:{self.connection.getsockname()[1]}"
        known = secrets.compare_digest(head.encode("utf-8", "replace"), self.exchange.secret.encode())
        return rest if known and self.headers.get("Host") == own else None

    def _request(self) -> None:
        self.exchange.ready.wait()
        self._answer(HTTPStatus.OK, (self.exchange.request or "null").encode(), "application/json")

    def _file(self, file: Path) -> None:
        size = file.stat().st_size
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, end = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
        if asked and start >= end:
            return self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
        kind = _TYPES.get(file.suffix, "application/octet-stream")
        extra = {"Content-Range": f"bytes {start}-{end - 1}/{size}"} if asked else {}
        self._head(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK, end - start, kind, extra)
        for block in _blocks(file, start, end):
            self.wfile.write(block)
        return None

    def _refuse(self, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> None:
        self.close_connection = True  # a body that was not read would be taken for the next request
        self._answer(status, b"")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self._head(status, len(body), kind, {})
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, length: int, kind: str, extra: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(length), **extra}.items():
            self.send_header(name, value)
        self.end_headers()


class _Server(ThreadingMixIn, TCPServer):
    """Not http.server's own class: that one asks the name service for the address's name."""

    daemon_threads = True


@contextlib.contextmanager
def page_server(exchange: Exchange) -> Iterator[str]:
    """Serve until the block ends; yields the page's address."""
    handler = type("Handler", (_Handler,), {"exchange": exchange})
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{exchange.secret}/web/page.html"
    finally:
        exchange.ready.set()
        server.shutdown()
        server.server_close()


def _blocks(file: Path, start: int, end: int) -> Iterator[bytes]:
    with file.open("rb") as stream:
        stream.seek(start)
        while start < end and (block := stream.read(min(_BLOCK, end - start))):
            start += len(block)
            yield block
