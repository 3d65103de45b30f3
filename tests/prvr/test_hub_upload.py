"""A trained model on the hub and back, with its card: by the library's own uploads, to a hub on this computer."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub_files import COMMIT, HubFiles, serving
from runs_of_retrievers import write_run
from safetensors.torch import load_file


class UploadHub(HubFiles):
    """What the hub answers to an upload of small files and to a download; a repository is a folder."""

    def repository(self) -> Path:
        return Path(self.directory) / "/".join(self.path.removeprefix("/api/models").strip("/").split("/")[:2])

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
            address = f"http://{self.headers['Host']}/me/it/commit/{COMMIT}"
            self.answer({"success": True, "commitOid": COMMIT, "commitUrl": address})
        else:
            self.answer({})  # validation of the card

    def do_GET(self) -> None:
        if self.path.startswith("/api/") and "/tree/" in self.path and (folder := self.repository()).is_dir():
            sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
            self.answer([{"type": "file", "path": name, "size": n, "oid": name} for name, n in sizes.items()])
        else:
            super().do_GET()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a program that takes a hub on this computer for the hub."""
    (tmp_path / "remote").mkdir()
    with serving(UploadHub, tmp_path / "remote") as address:
        place = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_secret"}
        yield os.environ | place | {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}


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
        back = load_file(tmp_path / "back" / "me" / name / "model.safetensors")
        assert back.keys() == weights.keys()
        assert all(torch.equal(back[key], value) for key, value in weights.items())
        assert json.loads((remote / name / "config.json").read_text()) == json.loads((best / "config.json").read_text())
