"""A CLIP trained along, on films: extracted, converted, trained, resumed and evaluated as any retriever."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import StopInEpoch, interrupt, same_end
from video_files import noise, write_video
from video_models import square_clip

from prvr import Pipeline, Retriever
from prvr.cli import main
from prvr.config import Config, ModelConfig, dump_config, load_config
from prvr.corpora.exported import read_export
from prvr.data import PackSettings, open_corpus, pack
from prvr.encoders import open_encoder, open_featurizer
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.models import load_pretrained
from prvr.stages import RetrieverSettings, RetrieverStage
from prvr.training import open_split, resume, train

pytest.importorskip("av")
pytest.importorskip("transformers")

TEXTS = ["a red circle rises", "a blue square falls", "a red square moves left", "a circle moves right"]


@dataclass(frozen=True)
class Films:
    """A CLIP, films, and the corpus of their pictures and token numbers."""

    clip: Path
    features: Path
    root: Path
    config: Path

    def read(self, **changes: Any) -> Config:
        return load_config(self.config, {key.replace("__", "."): value for key, value in changes.items()})


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Films:
    folder = tmp_path_factory.mktemp("films")
    clip = square_clip(folder / "clip")
    (folder / "videos").mkdir()
    lines = ["video,text"]
    for number in range(12):
        write_video(folder / "videos" / f"{number}.mp4", noise(2 + number, seed=number), fps=2)
        lines += [f"{number}.mp4,{TEXTS[number % 4]}", f"{number}.mp4,{TEXTS[number // 4]} {'blue ' * (number % 9)}"]
    (folder / "films.csv").write_text("\n".join(lines))
    exported, root = folder / "features", folder / "data"
    words = ["--encoder", f"pixels:{clip}", "--output", str(exported), "-q"]
    assert main(["export", str(folder / "videos"), *words]) == 0
    words = ["--features", str(exported), "--output", str(root), "--test", "0.25", "--val", "0.25", "-q"]
    assert main(["convert", "captions", str(folder / "films.csv"), *words]) == 0
    changes = {"model.clip": str(clip), "model.video_dim": 768, "model.hidden": 16, "model.heads": 2, "model.depth": 2}
    changes |= {"model.max_frames": 6, "model.max_words": 14, "optim.lr": 1e-2, "optim.backbone_lr": 1e-4}
    changes |= {"data.root": str(root), "data.collection": "films", "data.cache_dir": str(folder / "cache")}
    changes |= {"train.epochs": 2, "train.batch_size": 3, "train.chunk_videos": None, "train.protocol": "val"}
    config = folder / "films.yaml"
    config.write_text(dump_config(load_config("diffusionret-msrvtt-pixels", changes)))
    return Films(clip, exported, root, config)


@pytest.fixture(scope="module")
def run(films: Films, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--config", str(films.config), "--output", str(output), "--device", "cpu", "-q"]) == 0
    return output


def test_pictures_and_token_numbers_reach_the_model_as_they_are(films: Films) -> None:
    features, text = read_export(films.features), open_featurizer(f"pixels:{films.clip}")
    config = films.read()
    with open_split(config, "train") as split:
        for number, video in enumerate(split.video_ids):
            rows = features.read(video)
            clips, frames = (tensor.numpy() for tensor in split.video(number))
            every = [np.flatnonzero((rows == frame).all(1))[0] for frame in frames]
            assert every == sorted(set(every))  # pictures, in order, none of them a mean of others
            assert len(frames) == min(len(rows), 6)
            assert clips.shape == (1, 768)
            assert clips[0] in rows
        for number, caption in enumerate(split.captions):
            assert np.array_equal(split.query(number).numpy(), text.words(caption)[:14])
    assert text.words("a red circle").ravel().tolist() == [12, 0, 2, 3, 13]


def test_the_encoder_gives_what_the_image_processor_gives(films: Films) -> None:
    from transformers import CLIPImageProcessor

    encoder, picture = open_encoder(f"pixels:{films.clip}"), noise(1, height=16, width=16)[0]
    expected = CLIPImageProcessor.from_pretrained(films.clip)(images=picture, return_tensors="np")["pixel_values"]
    found = encoder.encode(encoder.prepare(picture)[None])
    np.testing.assert_allclose(found, expected.reshape(1, 768), atol=1e-5)
    assert found.dtype == np.float32
    assert (encoder.dim, encoder.joint_dim) == (768, 0)


def test_everything_but_the_start_works_without_the_clip(films: Films, run: Path, tmp_path: Path) -> None:
    """Resuming is equal bit by bit, evaluation gives the numbers of the run."""
    copy = tmp_path / "clip"
    shutil.copytree(films.clip, copy)
    config = films.read(model__clip=str(copy))
    with pytest.raises(KeyboardInterrupt):
        train(config, output=tmp_path / "run", device="cpu", progress=StopInEpoch(2, interrupt, 0))
    shutil.rmtree(copy)
    resumed = resume(tmp_path / "run", device="cpu")
    assert same_end(tmp_path / "run", run)
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", "-q"]) == 0
    with open_split(config, "test") as split:
        found = evaluate(load_pretrained(tmp_path / "run" / "best"), split, EvaluationConfig(bootstrap=0))
    assert found.text_to_video == resumed.report.text_to_video


def test_as_a_stage_over_everything_it_ranks_as_alone(films: Films, run: Path, tmp_path: Path) -> None:
    """Over a first stage that reads the same features."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"video_dim": 768, "query_dim": 1, "hidden": 8, "heads": 2, "num_clips": 4}
    first = Retriever(ModelConfig(**sizes, max_frames=9, max_words=15, lorentz_dim=7)).eval()
    stage = RetrieverStage.load(RetrieverSettings(combine="replace", top_k=10), run, None)
    settings, plain = PackSettings.of(first.config, keep_last=True), EvaluationConfig(bootstrap=0)
    with pack(open_corpus(films.root, "films"), "train", cache_dir=tmp_path, settings=settings) as split:
        report = evaluate(Pipeline(first, [stage]), split, plain)
        assert (report.ranks != evaluate(first, split, plain).ranks).any()
    with open_split(films.read(), "train") as split:
        assert (report.ranks == evaluate(load_pretrained(run / "best"), split, plain).ranks).all()
