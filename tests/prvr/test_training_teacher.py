"""A system that teaches: its scores, which batches carry them, and what a training with it learns."""

import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training_runs import Runs, make_config, same_end

import prvr
import prvr.training
from prvr.config import Config, ConfigError
from prvr.data import PackedSplit, TextData, VideoLoader, open_corpus, segment_mean, write_layout
from prvr.errors import DataError, InputError
from prvr.evaluation import evaluate, report_from_scores
from prvr.models import build_retriever
from prvr.published.dl_dkd.teacher import Teacher, frame_cosines
from prvr.stages import Pipeline, ZeroShotSettings, ZeroShotStage
from prvr.stages.joint_space import JointSplit
from prvr.training import RunResult, Splits, TrainingError

ALONE = {
    "loss__triplet": 0.0,
    "loss__info_nce_clips": 0.0,
    "loss__info_nce_frames": 0.0,
    "loss__diversity": 0.0,
    "loss__distillation": 1.0,
}
"""Nothing but the teacher to learn from."""


@pytest.fixture(scope="module")
def teacher(straight: RunResult) -> Teacher:
    return Teacher.open(str(straight.output))


@pytest.fixture(scope="module")
def scores(teacher: Teacher, splits: Splits, straight: RunResult) -> Tensor:
    return teacher.scores(splits.train, taught(straight).train)


def taught(straight: RunResult, cache: str = "", **changes: Any) -> Config:
    return make_config(cache, **(ALONE | {"train__teacher": str(straight.output)} | changes))


def numbers(split: PackedSplit) -> tuple[dict[str, int], dict[str, int]]:
    """The numbers of its videos and of its queries, by their names."""
    videos, queries = ({name: i for i, name in enumerate(names)} for names in (split.video_ids, split.query_ids))
    return videos, queries


def test_scores_rank_as_the_system_does_with_its_stages_and_without_videos_held_out(
    teacher: Teacher, splits: Splits, scores: Tensor, straight: RunResult, tmp_path: Path
) -> None:
    found, split = report_from_scores(scores.float(), splits.train), splits.train
    expected = evaluate(teacher.pipeline, split)
    assert scores.dtype == torch.float16
    assert found.text_to_video.sumr == pytest.approx(expected.text_to_video.sumr, abs=1.0)  # ties of 11 bits
    first = Teacher.open(str(straight.output)).pipeline.first
    Pipeline(first, [ZeroShotStage(ZeroShotSettings(weight=2.0))]).save_pretrained(tmp_path / "both")
    more = Teacher.open(str(tmp_path / "both")).scores(splits.train, taught(straight).train)
    added = (more.float() - scores.float()) / 2
    assert -1.01 < added.min() < added.max() < 1.01  # cosines
    part = splits.train.subset([5, 2, 9])
    found = teacher.scores(part, make_config("").train)
    videos, queries = numbers(splits.train)
    expected = scores[[queries[name] for name in part.query_ids]][:, [videos[name] for name in part.video_ids]]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


def test_the_teacher_is_found_by_the_names_it_had() -> None:
    assert prvr.Teacher is prvr.training.Teacher is Teacher


@pytest.mark.parametrize("captions", [None, 2])
def test_batches_carry_the_scores_of_their_own_pairs(splits: Splits, captions: int | None) -> None:
    split: PackedSplit = splits.train
    known = torch.arange(len(split.query_ids) * len(split)).view(len(split.query_ids), len(split)).remainder(2048)
    loader = VideoLoader(split, 6, captions_per_video=captions, teacher=known.half())
    videos, queries = numbers(split)
    loader.set_epoch(1)
    infos = list(loader.batch_infos())
    for resident in (False, True):
        batches = loader.to("cpu", resident=resident)
        for batch, info in zip(batches, infos, strict=True):
            rows, columns = [queries[name] for name in batch.query_ids], [videos[name] for name in batch.video_ids]
            expected = known[rows][:, columns].float()
            assert torch.equal(batch.teacher, expected)
            assert torch.equal(info.labels.teacher, expected)
            parts = batch.split(4)
            assert torch.equal(parts[1].teacher, expected[-len(parts[1].query_ids) :, 4:])


def test_a_student_comes_to_score_as_its_teacher(straight: RunResult, cache: str, runs: Runs) -> None:
    config = taught(straight, cache, train__epochs=6, loss__distillation={"weight": 1.0, "temperature": 0.05})
    course = [line["loss"]["distillation"] for line in runs.train(config).history]
    assert course[-1] < 0.7 * course[0]


def test_a_broken_off_run_goes_on_with_its_teacher(straight: RunResult, cache: str, runs: Runs) -> None:
    config = taught(straight, cache)
    whole = runs.train(config, "whole")
    runs.stop(2, 0, config)
    other = Teacher(Pipeline(build_retriever(config.model)))
    with pytest.raises(TrainingError, match=r"gives other scores than the one this run began with\. Restore it"):
        runs.resume(teacher=other)
    runs.resume()
    assert same_end(whole.output, runs.path)


FRAMES = {"model__clip_construction": "frames", "loss__frame_distillation": {"weight": 0.1, "decay": 0.9}}


def test_cosines_with_frames_are_those_of_a_joint_space(splits: Splits, tmp_path: Path) -> None:
    """The corpus itself teaches; so does one of the same vectors without the names of their encoders."""
    split, corpus = splits.train.subset([5, 2, 9]), splits.train.source.corpus
    joint, length = JointSplit(corpus, "train", split.video_ids), int(split.frame_counts.max())
    cosines = frame_cosines(None, split, length + 1)
    with corpus.open_features() as features:
        frames = [torch.from_numpy(features.read(v)[:, : joint.encoders.joint_dim]).float() for v in split.video_ids]
    for q, v in enumerate(split.query_to_video.tolist()):
        rows = segment_mean(frames[v], int(split.frame_counts[v]))
        expected = F.cosine_similarity(joint.text_vectors[q], rows, dim=-1)
        torch.testing.assert_close(cosines[q, : len(rows)].float(), expected, rtol=0, atol=1e-3)
        assert bool((cosines[q, len(rows) :] == -torch.inf).all())
    lines = [caption for caption in corpus.split("train").captions if caption.video_id in split.video_ids]
    queries = [(c.id, rows[None].numpy()) for c, rows in zip(lines, joint.text_vectors, strict=True)]
    videos = zip(split.video_ids, (rows.numpy() for rows in frames), strict=True)
    other = write_layout(tmp_path / "clip", TextData({"train": lines}), videos=videos, queries=queries)
    torch.testing.assert_close(frame_cosines(str(other), split, length + 1), cosines, rtol=0, atol=1e-3)
    theirs = tmp_path / "theirs" / "clip"  # as the authors of DL-DKD name them
    for folder in ("FeatureData", "TextData"):
        (theirs / folder).mkdir(parents=True)
    name = "new_clip_vit_32_clip_vid_features.hdf5"
    shutil.move(other / "FeatureData" / "frames" / "feature.hdf5", theirs / "FeatureData" / name)
    with h5py.File(theirs / "TextData" / "clip_ViT_B_32_clip_query_feat.hdf5", "w") as file:
        file.update({name.replace("#enc#", "#"): rows for name, rows in queries})
    torch.testing.assert_close(frame_cosines(str(theirs), split, length + 1), cosines, rtol=0, atol=1e-3)
    videos = zip(split.video_ids, (rows.numpy() for rows in frames), strict=True)
    narrow = [(name, rows[:, 1:]) for name, rows in queries]
    folder = write_layout(tmp_path / "narrow", TextData({"train": lines}), videos=videos, queries=narrow)
    with pytest.raises(DataError, match="no joint space"):
        frame_cosines(str(folder), split, length)
    with pytest.raises(DataError, match=r"got \[\]\. Name the folder of a corpus, ROOT/COLLECTION\.$"):
        frame_cosines(str(tmp_path), split, length)


def test_captions_of_a_joint_space_may_stand_in_another_order_and_be_long(
    splits: Splits, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    split, corpus = splits.train.subset([5, 2, 9]), splits.train.source.corpus
    length, query = int(split.frame_counts.max()), split.query_ids[3]
    cosines = frame_cosines(None, split, length)
    again = shutil.copytree(corpus.folder, tmp_path / "again" / corpus.name)
    file = open_corpus(again.parent, corpus.name).caption_file("train")
    lines = file.read_text().splitlines()[::-1]
    long = f"{query} {'a red circle rises ' * 750}"
    file.write_text("\n".join(long if line.startswith(f"{query} ") else line for line in lines))
    of_long = frame_cosines(str(again), split, length)
    assert f"caption {query}: of 3000 words the joint encoder reads 46" in caplog.text
    assert torch.equal(of_long[:3], cosines[:3])
    file.write_text("\n".join(line for line in lines if not line.startswith(query)))
    with pytest.raises(DataError, match=f"train lacks 1 captions, among them '{query}'"):
        frame_cosines(str(again), split, length)


def test_a_student_comes_to_look_where_a_joint_space_does(cache: str, runs: Runs) -> None:
    config = make_config(cache, **(ALONE | FRAMES | {"loss__distillation": 0.0, "train__chunk_videos": 5}))
    whole = runs.train(config, "whole")
    course = [line["loss"]["frame_distillation"] for line in whole.history]
    assert course[-1] < 0.9 * course[0]
    runs.stop(2, 0, config)
    runs.resume()
    assert same_end(whole.output, runs.path)


def test_what_cannot_teach_is_refused(splits: Splits, straight: RunResult) -> None:
    with pytest.raises(ConfigError, match="needs a teacher: name a system in"):
        make_config("", loss__distillation=1.0)
    broken = build_retriever(taught(straight).model)
    for parameter in broken.parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(InputError, match=r"its scores of query .* are not finite"):
        Teacher(Pipeline(broken)).scores(splits.train, make_config("").train)
