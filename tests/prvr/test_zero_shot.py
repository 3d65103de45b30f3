"""Zero-shot: the best frame of any joint encoder, checked by identity; and what is said of a model beside it."""

import io
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from rich.console import Console
from search_files import make_features
from video_files import MeanColour
from video_models import tiny_clip, tiny_roberta, tiny_siglip

from prvr.cli.evaluate import show_baselines
from prvr.config import load_config
from prvr.corpora import SplitShares
from prvr.corpora.caption_corpus import convert_captions
from prvr.corpora.corpus_encoders import SENTENCES
from prvr.data import Corpus, DataError, PackedSplit, open_corpus, pack
from prvr.encoders import FeatureSpec, TextFeaturizer, open_encoder, open_featurizer
from prvr.evaluation import EvaluationConfig, EvaluationReport, report_from_scores
from prvr.evaluation.zero_shot import (
    Comparison,
    compare_baselines,
    has_zero_shot,
    untrained_baselines,
    zero_shot_scores,
)

TEXTS = ("a red circle", "blue square rises", "red", "a square moves left", "falls", "a blue circle", "right")


def make(folder: Path, encoder: MeanColour | str, side: TextFeaturizer, joint: TextFeaturizer | None = None) -> Corpus:
    """Seven videos of noise, features of lengths that differ much, each with a caption."""
    coder = open_encoder(encoder) if isinstance(encoder, str) else encoder
    spec = FeatureSpec.of(coder, 1.0)
    rng = np.random.default_rng(0)
    videos = {
        f"{number}.mp4": rng.standard_normal((5 + number, coder.dim)) * rng.uniform(0.01, 9, (5 + number, 1))
        for number in range(len(TEXTS))
    }
    features = make_features({name: rows.astype(np.float32) for name, rows in videos.items()}, spec)
    folder.mkdir(exist_ok=True)
    (folder / "c.csv").write_text("video,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(TEXTS)))
    convert_captions(folder / "c.csv", features, side, folder / "own", joint=joint, shares=SplitShares(0.4))
    return open_corpus(folder, "own")


@pytest.fixture(scope="module", params=["clip", "siglip"])
def joint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Corpus]:
    folder = tmp_path_factory.mktemp(request.param)
    name = str({"clip": tiny_clip, "siglip": tiny_siglip}[request.param](folder / "model"))
    return name, make(folder, name, open_featurizer(name))


def by_hand(corpus: Corpus, side: TextFeaturizer, texts: list[str]) -> np.ndarray:
    out = np.full((len(texts), len(corpus.split("test").video_ids)), -np.inf)
    with corpus.open_features() as features:
        for v, video in enumerate(corpus.split("test").video_ids):
            frames = features.read(video).astype(np.float64)[:, : side.joint_dim]
            frames /= np.linalg.norm(frames, axis=1, keepdims=True)
            for size in (1, 4, 16, 64):
                for first in range(0, len(frames), size):
                    row = frames[first : first + size].mean(0)
                    for q, text in enumerate(texts):
                        out[q, v] = max(out[q, v], row @ side.sentence(text) / np.linalg.norm(row))
    return out


def test_the_best_frame_or_mean_whatever_the_length_of_frames_by_the_same_model(
    joint: tuple[str, Corpus], tmp_path: Path
) -> None:
    """Captions were read when the corpus was made: the model may be gone."""
    name, corpus = joint
    side = open_featurizer(name)
    captions = [caption.text for caption in corpus.split("test").captions]
    scores = zero_shot_scores(corpus, "test")
    np.testing.assert_allclose(scores.numpy(), by_hand(corpus, side, captions), atol=1e-6)
    about = json.loads((corpus.folder / "corpus.json").read_text())
    moved = Corpus(tmp_path / "moved", corpus.name, corpus.feature_folder, corpus.query_file)
    shutil.copytree(corpus.folder, moved.folder)

    def name_encoder(place: Path | str) -> None:
        about["encoders"]["frames"]["name"] = str(place)
        (moved.folder / "corpus.json").write_text(json.dumps(about))

    name_encoder(tmp_path / "gone")
    torch.testing.assert_close(zero_shot_scores(moved, "test"), scores)
    (moved.folder / SENTENCES).unlink()
    with pytest.raises(DataError, match="gone"):
        zero_shot_scores(moved, "test")
    name_encoder(tiny_clip(tmp_path / "other", nudge=0.5))
    with pytest.raises(DataError, match="two models"):
        zero_shot_scores(moved, "test")
    name_encoder(name)
    torch.testing.assert_close(zero_shot_scores(moved, "test"), scores)


def test_words_of_another_model_than_sentences(tmp_path: Path) -> None:
    """RoBERTa for the model, the text side of CLIP for zero-shot."""
    name = str(tiny_clip(tmp_path / "clip"))
    words, side = open_featurizer(str(tiny_roberta(tmp_path / "roberta"))), open_featurizer(name)
    corpus = make(tmp_path / "both", name, words, side)
    captions = [caption.text for caption in corpus.split("test").captions]
    np.testing.assert_allclose(zero_shot_scores(corpus, "test").numpy(), by_hand(corpus, side, captions), atol=1e-6)
    alone = make(tmp_path / "words", name, words)
    assert not has_zero_shot(alone)
    with pytest.raises(DataError, match="no joint space of frames and captions"):
        zero_shot_scores(alone, "test")


@pytest.fixture(scope="module")
def packed(toy_root: Path, toy_cache: Path) -> tuple[Corpus, PackedSplit]:
    corpus = open_corpus(toy_root, "toy-tiny")
    return corpus, pack(corpus, "test", cache_dir=toy_cache / "packed")


def show(root: Path, collection: str, report, capsys: pytest.CaptureFixture[str] | None = None) -> str:
    changes = {"data.root": str(root), "data.collection": collection, "fit.baseline": "never"}
    console = Console(width=80, file=io.StringIO())
    show_baselines(console, load_config("hybrid-toy", changes), report)
    return console.file.getvalue()


def compared(report: EvaluationReport, split: PackedSplit) -> Comparison:
    return compare_baselines(report, split, untrained_baselines(report, split))


class TestComparison:
    def test_wins_losses_and_neither(self, packed: tuple[Corpus, PackedSplit]) -> None:
        corpus, split = packed
        alone = zero_shot_scores(corpus, "test")
        right = torch.from_numpy(split.relevant_matrix).float()
        for scores, says in (
            (right, "This model is better than zero-shot: SumR +"),
            (-right, "Zero-shot is better than this model: SumR -"),
            (0 * right, "Zero-shot is better than this model: SumR -"),
            (alone, "This model does not differ significantly from zero-shot: SumR +0.0"),
        ):
            found = compared(report_from_scores(scores, split, EvaluationConfig(bootstrap=0)), split)
            assert found.verdict.startswith(says)
            assert ("Search with zero-shot." in found.verdict) != found.model_wins
            assert ("right video and a wrong one equal scores for 100%" in found.verdict) == (not scores.any())
            assert found.model_wins == (scores is right)
            assert found.sumr["zero-shot"].value == pytest.approx(found.model.sumr - found.baselines["zero-shot"].sumr)

    def test_only_what_is_above_chance_is_better(self, packed: tuple[Corpus, PackedSplit], tmp_path: Path) -> None:
        """Zero-shot of constant features loses every tie; a model of noise is no better than chance for that."""
        corpus, split = packed
        shutil.copytree(corpus.folder, tmp_path / corpus.name)
        flat = open_corpus(tmp_path, corpus.name)
        with h5py.File(flat.feature_folder / "feature.hdf5", "r+") as file:
            for rows in file.values():
                rows[...] = 1.0
        noise = torch.rand(len(split.query_ids), len(split), generator=torch.Generator().manual_seed(0))
        with pack(flat, "test", cache_dir=tmp_path / "cache") as equal:
            found = compared(report_from_scores(noise, equal), equal)
            assert found.sumr["zero-shot"].p_value < 0.05
            assert not found.model_wins
            assert found.verdict.startswith("Neither this model nor zero-shot is significantly better than chance")
            assert "All frame features of toy-tiny test are equal" in found.verdict
            right = report_from_scores(torch.from_numpy(equal.relevant_matrix).float(), equal)
            assert compared(right, equal).verdict.startswith("This model is better than zero-shot")
        (tmp_path / corpus.name / "corpus.json").write_text('{"encoder": "of another version"}')
        assert "no comparison with zero-shot:" in show(tmp_path, corpus.name, right)
