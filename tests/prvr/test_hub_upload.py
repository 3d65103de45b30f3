"""A trained model on the hub and back, with its card: by the library's own uploads, to a hub on this computer."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from runs_of_retrievers import write_run
from safetensors.torch import load_file

COMMIT = "2" * 40


class UploadHub(SimpleHTTPRequestHandler):
    """What the hub answers to an upload of small files and to a download; a repository is a folder."""

    def repository(self) -> Path:
        return Path(self.directory) / "/".join(self.path.removeprefix("/api/models").strip("/").split("/")[:2])

    def answer(self, body: dict[str, Any] | list[dict[str, Any]]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != "Bearer hf_secret":
            self.send_error(401)
        elif self.path == "/api/repos/create":
            values = json.loads(body)
            (Path(self.directory) / values["organization"] / values["name"]).mkdir(parents=True)
            self.answer({"url": f"http://{self.headers['Host']}/{values['organization']}/{values['name']}"})
        elif "/preupload/" in self.path:
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            self.answer({"files": [file | {"shouldIgnore": False} for file in files]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    (self.repository() / line["value"]["path"]).write_bytes(content)
            self.answer(
                {
                    "success": True,
                    "commitOid": COMMIT,
                    "commitUrl": f"http://{self.headers['Host']}/me/it/commit/{COMMIT}",
                }
            )
        else:
            self.answer({})  # validation of the card

    def do_GET(self) -> None:
        if not self.path.startswith("/api/"):
            super().do_GET()
        elif (folder := self.repository()).is_dir():
            sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
            if "/tree/" in self.path:
                self.answer([{"type": "file", "path": name, "size": n, "oid": name} for name, n in sizes.items()])
                return
            files = [{"rfilename": name, "size": size} for name, size in sizes.items()]
            self.answer({"id": "/".join(folder.parts[-2:]), "sha": COMMIT, "siblings": files, "tags": []})
        else:
            self.send_error(404)

    def translate_path(self, path: str) -> str:
        return str(self.repository() / path.rpartition("/")[2])

    def end_headers(self) -> None:
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{self.path.rpartition("/")[2]}"')
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a program that takes a hub on this computer for the hub."""
    (tmp_path / "remote").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(UploadHub, directory=str(tmp_path / "remote")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    place = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "home")}
    yield (
        os.environ
        | place
        | {"HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    )
    server.shutdown()
    thread.join()
    server.server_close()


PROGRAM = """
import sys
from huggingface_hub import create_repo, upload_folder
from prvr.models import load_pretrained

best = sys.argv[1]
create_repo("me/mine")
upload_folder(repo_id="me/mine", folder_path=best)
load_pretrained(best).push_to_hub("me/alone")
for name in ("me/mine", "me/alone"):
    load_pretrained(name).save_pretrained("back/" + name)
"""


def test_a_model_and_its_card_come_back_from_the_hub(hub: dict[str, str], toy_root: Path, tmp_path: Path) -> None:
    folder, _ = write_run(tmp_path / "run", toy_root, "toy-tiny")
    best = folder / "best" if (folder / "best").is_dir() else folder
    (best / "README.md").write_text("---\nlibrary_name: prvr\n---\n# My run, chosen on `val`\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(best)], env=hub, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    remote, weights = tmp_path / "remote" / "me", load_file(best / "model.safetensors")
    for file in best.iterdir():
        if file.is_file():
            assert (remote / "mine" / file.name).read_bytes() == file.read_bytes()
    assert "text-to-video-retrieval" in (remote / "alone" / "README.md").read_text()  # the card of any model of prvr
    for name in ("mine", "alone"):
        found = load_file(tmp_path / "back" / "me" / name / "model.safetensors")
        assert found.keys() == weights.keys()
        assert all(torch.equal(found[key], value) for key, value in weights.items())
        assert json.loads((remote / name / "config.json").read_text()) == json.loads((best / "config.json").read_text())
