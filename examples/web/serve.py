"""Serves the example page, for a bundle, to this machine only: python examples/web/serve.py out/keywords

The headers make the page cross-origin isolated: only then do browsers give it threads, and a clock of 5 µs.
"""

from __future__ import annotations

import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from essm_deploy.targets.page_server import HEADERS
from essm_deploy.targets.web_runtime import MODULES, find_package

HERE = Path(__file__).resolve().parent
TYPES = {".mjs": "text/javascript", ".wasm": "application/wasm"}


class Handler(SimpleHTTPRequestHandler):
    """Folders by the first part of the path: the bundle, our modules, ONNX Runtime Web, and this page for the rest."""

    extensions_map: ClassVar = SimpleHTTPRequestHandler.extensions_map | TYPES

    def __init__(self, *args: object, folders: dict[str, Path], **more: object) -> None:
        self.folders = folders
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def translate_path(self, path: str) -> str:
        first, _, rest = unquote(urlsplit(path).path).lstrip("/").partition("/")
        folder, name = (self.folders[first], rest) if first in self.folders else (HERE, first or "index.html")
        file = (folder / name).resolve()
        return str(file if file.is_file() and file.is_relative_to(folder) else folder / "missing")

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()


def main(bundle: str, port: str = "8000") -> None:
    folders = {"bundle": Path(bundle).resolve(), "essm": MODULES, "ort": find_package() / "dist"}
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), partial(Handler, folders=folders))
    print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
