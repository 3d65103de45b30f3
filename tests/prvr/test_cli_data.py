"""prvr data make, and the bar while a corpus is made."""

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from commands import explained

from prvr.cli import main
from prvr.data import Corpus, open_corpus
from prvr.toy import read_toy_scenes
from prvr.toy import toy_corpus as making
from prvr_search.films import toy_videos


@pytest.fixture
def features(toy_root: Path, monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """What gives the features of a video: here at once, for corpora of videos that are drawn already."""
    scenes = read_toy_scenes(open_corpus(toy_root, "toy-tiny"))
    monkeypatch.setattr(making, "draw_split", lambda split, count, seed, name: scenes[split])
    monkeypatch.setattr(making, "render", lambda video: np.zeros((1, 64, 64, 3), np.uint8))
    fake = MagicMock(return_value=np.ones((40, 512), np.float32))
    monkeypatch.setattr(making, "with_motion", fake)
    return fake


class TestMake:
    def test_size_and_seed_are_taken(
        self, features: MagicMock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ["data", "make", "--output", str(tmp_path), "--size", "tiny", "--seed", "3"]
        assert main(command) == 0
        out, err = capsys.readouterr()
        assert err == "making toy-tiny: 100 videos\n"
        about = json.loads((tmp_path / "toy-tiny" / "corpus.json").read_text())
        assert (about["size"], about["seed"]) == ("tiny", 3)
        assert f"--data-root {tmp_path} --data.collection toy-tiny" in out
        assert main(command) == 0  # the same one stays
        assert capsys.readouterr() == (out, "")
        assert features.call_count == 100
        assert "'seed': 3" in explained([*command[:-1], "4"], capsys)

    @pytest.mark.parametrize(
        ("failure", "code"), [(OSError(errno.ENOSPC, "No space left on device"), 2), (KeyboardInterrupt(), 130)]
    )
    def test_nothing_half_made_is_left(
        self, failure: BaseException, code: int, features: MagicMock, tmp_path: Path
    ) -> None:
        features.side_effect = failure
        assert main(["data", "make", "--output", str(tmp_path), "--size", "tiny"]) == code
        assert list(tmp_path.iterdir()) == []

    def test_mp4(self, features: MagicMock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def first(corpus: Corpus) -> dict[str, Any]:  # two videos are enough to see
            scenes = read_toy_scenes(corpus)["test"]
            return {"test": type(scenes)(scenes.videos[:2], ())}

        monkeypatch.setattr(toy_videos, "read_toy_scenes", first)
        monkeypatch.setattr(toy_videos, "render", lambda video: np.zeros((4, 64, 64, 3), np.uint8))
        assert main(["data", "make", "--output", str(tmp_path), "--size", "tiny", "--mp4"]) == 0
        videos = tmp_path / "toy-tiny" / "videos"
        assert sorted(path.name for path in videos.iterdir()) == ["test0000.mp4", "test0001.mp4"]
