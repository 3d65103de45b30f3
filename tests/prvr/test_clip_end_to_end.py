"""A CLIP trained along, on films: extracted, converted, trained, resumed, evaluated and searched as any retriever."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_diffusionret import PlainDiffusionRet
from search_files import make_index, without
from training_runs import StopInEpoch, interrupt, same_end
from video_files import noise, write_video
from video_models import square_clip

from prvr import Pipeline, Retriever
from prvr.cli import main
from prvr.config import Config, ModelConfig, dump_config, load_config
from prvr.corpora.exported import read_export
from prvr.data import PackSettings, open_corpus, pack, sample_video
from prvr.encoders import open_encoder, open_featurizer
from prvr.evaluation import EvaluationConfig, EvaluationReport, evaluate
from prvr.models import ClipRetriever, build_retriever, load_pretrained
from prvr.stages import RetrieverSettings, RetrieverStage, load_rerankers
from prvr.toy import render
from prvr.toy.scenes import draw_split
from prvr.training import open_split, resume, train
from prvr.training.checkpoint import derived_seed
from prvr_search.toy_videos import write_mp4

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
    assert not features.joint_dim
    rows = np.array([[49407.0], [250_001.0], [0.0]], np.float32)  # of any vocabulary
    assert np.array_equal(PackSettings(unit=False).query(rows), rows)


def printed(out: str) -> list[str]:
    """The command that the last one says is next."""
    command = out.split("Next:\n")[-1].splitlines()[0]
    assert command.startswith("prvr ")
    return shlex.split(command)[1:]


def test_from_a_folder_of_films_to_an_evaluated_run_in_chunks(
    films: Films, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Films of the toy world and their captions, each command as the one before prints it."""
    scenes = draw_split("train", 8, seed=0)
    (tmp_path / "films").mkdir()
    for film in scenes.videos:
        write_mp4(tmp_path / "films" / f"{film.id}.mp4", render(film))
    brief = [sentence for sentence in scenes.sentences if len(sentence.text.split()) <= 12]  # the model reads 16 tokens
    lines = [f"{sentence.video_id}.mp4,{sentence.text}" for sentence in brief]
    (tmp_path / "captions.csv").write_text("\n".join(["video,text", *lines]))
    monkeypatch.chdir(tmp_path)
    assert main(["export", "films", "--encoder", f"pixels:{films.clip}", "--rate", "0.2", "--output", "features"]) == 0
    command = printed(capsys.readouterr().out)
    assert command[:3] == ["convert", "captions", "CAPTIONS.csv"]
    command[2] = "captions.csv"
    assert main([*command, "--test", "0.25", "--val", "0.25"]) == 0
    command = printed(capsys.readouterr().out)
    assert main([*command, "--print-config"]) == 0
    (tmp_path / "config.yaml").write_text(capsys.readouterr().out)
    config = load_config(tmp_path / "config.yaml")
    assert (config.train.chunk_videos, config.model.hidden, config.model.depth) == (16, 16, 3)
    small = ["--train.epochs", "2", "--train.chunk_videos", "2", "--data.cache_dir", "cache", "--device", "cpu"]
    assert main([*command, *small, "--output", "run"]) == 0
    command = printed(capsys.readouterr().out)
    assert command == ["evaluate", "run"]
    assert main([*command, "--device", "cpu", "--output", "again.json"]) == 0
    found, again = (EvaluationReport.from_json(tmp_path / file) for file in ("run/evaluation.json", "again.json"))
    assert found.ranks.tolist() == again.ranks.tolist()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_the_encoder_gives_what_the_image_processor_gives(films: Films) -> None:
    from transformers import CLIPImageProcessor

    encoder, picture = open_encoder(f"pixels:{films.clip}"), noise(1, height=16, width=16)[0]
    expected = CLIPImageProcessor.from_pretrained(films.clip)(images=picture, return_tensors="np")["pixel_values"]
    found = encoder.encode(encoder.prepare(picture)[None])
    np.testing.assert_allclose(found, expected.reshape(1, 768), atol=1e-5)
    assert found.dtype == np.float32
    assert (encoder.dim, encoder.joint_dim) == (768, 0)


@pytest.mark.parametrize("length", [1, 2, 6, 7, 25])
def test_the_middle_picture_stands_for_a_segment(length: int) -> None:
    rows = np.arange(length, dtype=np.float32)[:, None]
    clips, frames = sample_video(rows, clips=3, frames=6, unit=False)
    assert (len(clips), len(frames)) == (3, min(length, 6))
    edges = np.rint(np.arange(7) * length / 6)
    for number, row in enumerate(frames[:, 0] if length > 6 else []):
        assert edges[number] <= row < edges[number + 1]
        assert abs(row + 0.5 - (edges[number] + edges[number + 1]) / 2) <= 0.5
    if length <= 6:
        assert np.array_equal(frames, rows)


def test_a_run_trains_the_clip_at_its_own_rate(films: Films, run: Path) -> None:
    config, trained = films.read(), load_pretrained(run / "best")
    torch.manual_seed(derived_seed(config.train.seed, "weights"))
    start = build_retriever(config.model)
    assert isinstance(trained, ClipRetriever)
    before = dict(start.named_parameters())
    moved = {name: (p - before[name]).abs().max().item() for name, p in trained.named_parameters()}
    ours = {name: far for name, far in moved.items() if not name.startswith("backbone.")}
    theirs = {name: far for name, far in moved.items() if name.startswith("backbone.")}
    assert 1e-3 < max(ours.values()) < 4.1e-2  # at most four steps of Adam, each by hardly more than its rate
    assert 1e-5 < max(theirs.values()) < 4.1e-4
    moving = {name.split(".")[1] for name, far in theirs.items() if far > 1e-5}
    assert moving == {"text_model", "vision_model", "text_projection", "visual_projection"}


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
    assert "load_pretrained" in (run / "best" / "README.md").read_text()


def test_as_a_stage_it_is_searched_as_it_is_evaluated(films: Films, run: Path, tmp_path: Path) -> None:
    """Over a first stage that reads the same features."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"video_dim": 768, "query_dim": 1, "hidden": 8, "heads": 2, "num_clips": 4}
    first = Retriever(ModelConfig(**sizes, max_frames=9, max_words=15, lorentz_dim=7)).eval()
    stage = RetrieverStage.load(RetrieverSettings(combine="replace", top_k=10), run, None)
    pipeline = Pipeline(first, [stage])
    pipeline.save_pretrained(tmp_path / "saved")
    features, settings = read_export(films.features), PackSettings.of(first.config, keep_last=True)
    with pack(open_corpus(films.root, "films"), "train", cache_dir=tmp_path, settings=settings) as split:
        report = evaluate(pipeline, split, EvaluationConfig(bootstrap=0))
        others = [video for video in features.video_ids if video not in split.video_ids]
        with make_index(tmp_path / "index", tmp_path / "saved", without(features, *others)) as index:
            results = [[hit.video_id for hit in index.search(caption, 10).hits] for caption in split.captions]
        relevant = [[split.video_ids[video] for video in videos] for videos in split.relevant]
        assert (report.ranks != evaluate(first, split, EvaluationConfig(bootstrap=0)).ranks).any()
    found = [1 + min(map(hits.index, videos)) for hits, videos in zip(results, relevant, strict=True)]
    assert found == report.ranks.tolist()


def test_a_published_checkpoint_is_evaluated_and_its_first_stage_trained_over(films: Films, tmp_path: Path) -> None:
    """Converted from the authors' tensors: the pipeline, and new re-rankers over its first stage."""
    torch.manual_seed(0)
    torch.save(PlainDiffusionRet().state_dict(), tmp_path / "best.pth")
    out, again = tmp_path / "out", tmp_path / "again"
    assert main(["convert", "checkpoint", str(tmp_path / "best.pth"), "--dataset", "msrvtt", "--output", str(out)]) == 0
    where = ["--data-root", str(films.root), "--device", "cpu", "-q"]
    report = tmp_path / "report.json"
    assert main(["evaluate", str(out), "--collection", "films", *where, "--output", str(report)]) == 0
    found = EvaluationReport.from_json(report)
    assert found.stages == ("diffusion over the best 32, both directions",)
    with open_split(films.read(), "test") as split:
        first = evaluate(load_pretrained(out / "first"), split, EvaluationConfig(bootstrap=0))
    assert found.ranks.shape == first.ranks.shape
    assert (found.ranks != first.ranks).any()
    data = ["--data.collection", "films", "--train.protocol", "val", "--data.cache_dir", str(tmp_path / "cache")]
    quick = ["--train.epochs", "1", "--reranker.steps", "3", "--output", str(again)]
    command = ["train", "--retriever", str(out / "first"), "--preset", "diffusionret-stage2-released"]
    assert main([*command, *where, *data, *quick]) == 0
    assert (
        load_rerankers(again)["t2v"].config.compat
        == load_rerankers(out / "stages" / "1-diffusion")["t2v"].config.compat
    )
