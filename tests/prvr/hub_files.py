"""A stand-in of the Hugging Face hub on this computer: files of a folder, with the headers that its library reads."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "1" * 40


class HubFiles(SimpleHTTPRequestHandler):
    """The two requests of the hub that a download makes: the list of files, and a file."""

    def repository(self) -> Path:
        """The folder of the repository that is asked for."""
        return Path(self.directory)

    def answer(self, body: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Sends JSON."""
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        if not self.path.startswith("/api/"):
            super().do_GET()
        elif (folder := self.repository()).is_dir():
            paths = [(path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_file()]
            files = [{"rfilename": name, "size": path.stat().st_size} for name, path in paths]
            self.answer({"id": "/".join(folder.parts[-2:]), "sha": COMMIT, "siblings": files, "tags": []})
        else:
            self.send_error(404)

    def file(self, path: str) -> str:
        """The name of a file within the repository."""
        return re.sub("^.*/resolve/[^/]*/", "", path)

    def translate_path(self, path: str) -> str:
        return str(self.repository() / self.file(path))

    def end_headers(self) -> None:
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{self.file(self.path).replace("/", "-")}"')
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(handler: type[HubFiles], folder: Path) -> Iterator[str]:
    """The address of a hub that serves a folder meanwhile."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
