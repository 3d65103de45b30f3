"""The Hugging Face hub: which model of its cache is chosen, what is downloaded, what is said when nothing can be."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from commands import explained
from hub_files import COMMIT, HubFiles, serving
from video_files import plain, write_video
from video_models import tiny_clip, tiny_roberta

from prvr.encoders import DEFAULT_ENCODER, DownloadNeeded, choose_encoder, open_encoder
from prvr.errors import DataError
from prvr_search import Library
from prvr_search.films import list_videos
from prvr_search.films.toy_videos import default_encoder, write_mp4

pytest.importorskip("transformers")
NAME = "owner/clip"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, which may be reached."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "hub"


def snapshot(cache: Path, name: str) -> Path:
    """The folder of a model in a cache."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return folder / "snapshots" / COMMIT


class Hub(HubFiles):
    """A hub that may answer with an error."""

    status = 200

    def do_GET(self) -> None:
        if self.status != 200:
            self.send_error(self.status)
        else:
            super().do_GET()


@pytest.fixture
def hub(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A hub on this computer with a CLIP, also as a pickle, which nobody needs."""

    class Own(Hub):
        pass

    folder = tiny_clip(tmp_path / "remote")
    (folder / "pytorch_model.bin").write_bytes(b"0" * 10_000)
    for name in ("1_Dense/model.safetensors", "1_Dense/dense.json", "onnx/onnx.json"):  # as of sentence-transformers
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"{}")
    with serving(Own, folder) as address:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield Own


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    (tmp_path / "videos").mkdir()
    write_video(tmp_path / "videos" / "grey.mp4", plain([90] * 4, 32, 48))
    return tmp_path / "videos"


def test_models_of_other_kinds_in_the_cache_are_skipped_and_it_is_read_once(
    cache: Path, clip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_encoder() == DEFAULT_ENCODER
    shutil.copytree(clip, snapshot(cache, "owner/clip"))
    tiny_roberta(snapshot(cache, "owner/language"))
    for place, content in enumerate(('{"architecture": "vit"}', "[]", '{"model_type": 3}', "\xff")):
        other = snapshot(cache, f"timm/model{place}")
        other.mkdir(parents=True)
        (other / "config.json").write_text(content, encoding="latin-1")
        (other / "model.safetensors").write_bytes(b"")
    damaged = Path(shutil.copytree(clip, snapshot(cache, "owner/damaged")))
    (damaged / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    with pytest.raises(DownloadNeeded):
        open_encoder("owner/damaged")
    counted, scan = [], huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda cache: counted.append(1) or scan(cache))
    assert choose_encoder() == "owner/clip"
    assert len(counted) == 1


def test_the_encoder_of_the_toy_world_says_that_it_knows_toy_videos_alone(
    videos: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_mp4(videos / "drawn.mp4", np.full((4, 16, 16, 3), 60, np.uint8))
    caplog.clear()
    Library(videos, encoder="toy", home=cache.parent / "toy").update()
    assert "grey.mp4 is not a video of the toy corpus" in caplog.text
    assert Library(videos, home=cache.parent / "toy").spec is None  # as if it had not been used
    with pytest.raises(DownloadNeeded):
        Library(videos, home=cache.parent / "toy").update()
    (features, *_) = (cache.parent / "toy").rglob("*.features")
    features.write_bytes(features.read_bytes()[:-1])
    assert len(Library(videos, home=cache.parent / "toy").verify()) == 1  # of whatever encoder
    caplog.clear()
    grey = (videos / "grey.mp4").rename(cache.parent / "grey.mp4")
    library = Library(videos, encoder="toy", home=cache.parent / "drawn")
    library.update()
    assert not caplog.text
    assert default_encoder(list_videos(videos).videos) == "toy"
    grey.rename(videos / "grey.mp4")
    with pytest.raises(DataError, match=r"grey\.mp4 is not a video of the toy corpus"):
        Library(videos, home=library.store.home).update()  # which remembers the encoder


def test_a_download_takes_the_weights_in_safetensors_alone_and_happens_once(
    hub: type[Hub], cache: Path, videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_encoder(NAME, download=True)
    hub.status = 500  # nobody asks again
    again = open_encoder(NAME)
    assert again.identity.name == NAME
    assert again.identity == open_encoder(str(cache.parent / "remote")).identity
    files = {path.relative_to(cache).as_posix().partition(f"{COMMIT}/")[2] for path in cache.rglob("*")}
    assert {"model.safetensors", "config.json", "tokenizer.json", "preprocessor_config.json"} <= files
    assert {"1_Dense/model.safetensors", "1_Dense/dense.json"} <= files
    assert not {"pytorch_model.bin", "onnx/onnx.json"} & files
    assert capsys.readouterr().err == ""
    next(
        path for path in cache.rglob("model.safetensors") if path.parent.name == COMMIT
    ).unlink()  # as if the download had stopped
    with pytest.raises(DownloadNeeded, match="of your own, add --import MODULE"):
        open_encoder(NAME)


NOWHERE = "http://127.0.0.1:9"


FAILURES = {f"({status}: ": {"status": status} for status in (401, 500)} | {
    "refused": {"ENDPOINT": NOWHERE},
    "(offline mode is on; unset HF_HUB_OFFLINE to download)": {"HF_HUB_OFFLINE": True},
}


@pytest.mark.parametrize(("reason", "failure"), FAILURES.items())
def test_a_failed_download_is_explained_at_once(
    reason: str, failure: dict[str, Any], hub: type[Hub], videos: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in failure.items():
        monkeypatch.setattr(hub if name == "status" else huggingface_hub.constants, name, value)
    start = time.monotonic()
    said = explained(["search", str(videos), "a dog", "--encoder", NAME, "--download"], capsys)
    assert time.monotonic() - start < 8
    assert "the Hugging Face hub cannot be reached (" in said
    assert reason in said
    assert "--encoder FOLDER" in said


def test_without_a_terminal_a_search_says_what_it_needs(
    hub: type[Hub], videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["search", str(videos), "a dog"]
    assert f"prvr needs a model once: {DEFAULT_ENCODER}, 816 MB. Run again" in explained(line, capsys)
    for status, said in ((200, "0 MB"), (503, "size unknown: the hub cannot be reached (503: refused)")):
        hub.status = status
        assert f"owner/clip, {said}. Run again with --download" in explained([*line, "--encoder", NAME], capsys)
