"""A trained model from the hub, here one on this computer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from hub_files import HubFiles, serving
from runs_of_retrievers import write_run
from safetensors.torch import load_file

PROGRAM = "from prvr.models import load_pretrained\nload_pretrained('me/mine').save_pretrained('back')"


class Hub(HubFiles):
    """It lists the files of a repository as a tree, too."""

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            sizes = {file.name: file.stat().st_size for file in self.repository().iterdir()}
            self.answer([{"type": "file", "path": name, "size": n, "oid": name} for name, n in sizes.items()])
        else:
            super().do_GET()


def test_a_model_comes_from_the_hub(toy_root: Path, tmp_path: Path) -> None:
    best = write_run(tmp_path / "run", toy_root, "toy-tiny")[0] / "best"
    with serving(Hub, best) as address:
        place = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        env = os.environ | place | {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    weights, back = (load_file(folder / "model.safetensors") for folder in (best, tmp_path / "back"))
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[key], value) for key, value in weights.items())
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == json.loads((best / "config.json").read_text())
