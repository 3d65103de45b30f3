"""`prvr convert benchmark`, from a store of the toy encoder or a folder of features to a corpus."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from benchmark_files import LSMDC_IDS, WRITERS
from commands import cells, explained
from search_files import TOY, noise_features

from prvr.cli import main
from prvr.corpora.corpus_encoders import corpus_encoders, read_sentences
from prvr.corpora.exported import export_features
from prvr.data import open_corpus, pack
from prvr.encoders import open_featurizer

MSRVTT = [f"video{i}.mp4" for i in range(4)]


def exported(folder: Path, ids: list[str]) -> Path:
    """Random features under the name of the toy encoder, as `prvr export` writes them."""
    export_features(noise_features(TOY, ids), folder)
    return folder


@pytest.fixture
def annotations(tmp_path: Path) -> Path:
    for name, write in WRITERS.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    return tmp_path


def command(annotations: Path, name: str, features: Path, *more: str) -> list[str]:
    folder, out = annotations / name, annotations / "data"
    return ["convert", "benchmark", name, "--annotations", str(folder), "--features", str(features),
            "--output", str(out), "--device", "cpu", *more]  # fmt: skip


def test_an_export_needs_no_other_name(annotations: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features = exported(annotations / "features1", MSRVTT)
    assert main(command(annotations, "msrvtt", features)) == 0
    said = capsys.readouterr().out
    assert "train 2 4 0 0 test 2 2 0 0" in cells(said)
    assert "incomplete" not in said
    assert f"--preset diffusionret-msrvtt --data-root {annotations / 'data'} --data.collection msrvtt" in said
    corpus = open_corpus(annotations / "data", "msrvtt")
    with pack(corpus, "test", cache_dir=annotations / "cache") as split:
        assert split.video_ids == ("video3", "video2")
        assert (split.feature_dim, split.query_dim) == (512, 48)
    encoders = corpus_encoders(corpus)
    assert encoders is not None
    assert (encoders.frames, encoders.joint_dim) == (TOY.encoder, 256)
    assert encoders.text == open_featurizer("toy").identity
    sentences = read_sentences(corpus, "test")
    assert sentences is not None
    assert np.array_equal(sentences[1], open_featurizer("toy").sentence("a man talks"))


def test_a_folder_of_features_and_a_named_model(annotations: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder := annotations / "features").mkdir()
    with h5py.File(folder / "feature.hdf5", "w") as file:
        for name in LSMDC_IDS:
            file[name] = np.ones((3, 7), np.float32)
    assert "--text is required" in explained(command(annotations, "lsmdc", folder), capsys)
    more = ["--text", "toy", "--collection", "films", "--max-words", "2"]
    assert main(command(annotations, "lsmdc", folder, *more)) == 0
    said = capsys.readouterr().out
    assert "4 captions cut" in said
    corpus = open_corpus(annotations / "data", "films")
    assert corpus.dims() == (7, 48)
    assert corpus_encoders(corpus) is None  # nobody knows what made the frames
    assert read_sentences(corpus, "test") is None


def test_missing_videos_are_named_or_allowed(annotations: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features = exported(annotations / "features2", MSRVTT[1:3])
    said = explained(command(annotations, "msrvtt", features), capsys)
    assert "no features for 1 of 2 videos of train: video0." in said
    assert main(command(annotations, "msrvtt", features, "--allow-missing")) == 0
    said = capsys.readouterr().out
    assert "train 1 2 1 0" in cells(said)
    assert "incomplete benchmark" in said


def test_what_was_left_out_is_told(annotations: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = ["1@N00_11_aa.avi", "2@N00_22_bb.mov", "3@N00_33_cc.m4v", "4@N00_44_dd.mp4"]
    assert main(command(annotations, "didemo", exported(annotations / "features3", ids))) == 0
    assert "train 2 2 0 1" in cells(capsys.readouterr().out)
    names = ["-4wsuPCjDBc_5_15.avi", "mv89psg6zh4_33_46.avi", "R2DvpPTfl-E_20_25.avi"]
    assert main(command(annotations, "msvd", exported(annotations / "features4", names))) == 0
    assert "1 captions without a letter or digit omitted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"msrvtt": "msrvt"}, "did you mean msrvtt"),
        ({"--features": "nowhere"}, "no such file or directory"),
        ({"--annotations": "nowhere"}, "expected MSRVTT_data.json"),
        ({"--text": "no/such-model"}, "no/such-model"),
    ],
)
def test_mistakes_are_explained(
    annotations: Path, change: dict[str, str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(annotations, "msrvtt", exported(annotations / "features5", MSRVTT), "--text", "toy")
    for key, value in change.items():
        place = words.index(key)
        words[place + key.startswith("--")] = value
    assert re.search(expected, explained(words, capsys))
    assert not (annotations / "data").exists()
