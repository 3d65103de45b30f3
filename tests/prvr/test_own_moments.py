"""One score ranks videos and their rows; moments of a model's own part are judged and kept with it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from retrievers import MeanPooling
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from training_runs import interrupt, make_config, same_end

from prvr.config import LOSSES, LossSettings
from prvr.data import PackedSplit
from prvr.data.hashes import write_hashes
from prvr.errors import InputError
from prvr.evaluation import EvaluationConfig, evaluate, find_moments
from prvr.evaluation.tables import moment_baselines_table
from prvr.losses import LossInputs, Term
from prvr.models import load_pretrained, reconfigured
from prvr.scoring import max_scores, word_scores
from prvr.stages import Pipeline, Stage
from prvr.training import RetrievalTask, Splits, train
from prvr.training.checkpoint import load_best
from prvr.types import Scores, TextEmbedding, VideoEmbedding

FEW = EvaluationConfig(bootstrap=0)


class Words(MeanPooling):
    """Every word against its best clip or frame; the vector of the sentence is not read."""

    sign = 1.0

    def __init__(self, rows: str) -> None:
        super().__init__(512, 48)
        self.rows = rows

    def encode_text(self, words, word_mask):
        mapped = self.text(words.to(self.text.weight.dtype))
        weights = word_mask / word_mask.sum(1, keepdim=True)
        return TextEmbedding(self.sign * mapped.sum(1), mapped, word_mask, weights)

    def encode_video(self, clips, frames, frame_mask):
        video = super().encode_video(clips, frames, frame_mask)
        if self.rows == "frames":
            return VideoEmbedding(frames=video.frames, frame_mask=frame_mask)
        first = torch.arange(clips.shape[1]) / clips.shape[1]
        spans = torch.stack([first, first + 1 / clips.shape[1]], 1).expand(len(clips), -1, -1)
        return VideoEmbedding(video.clips, clip_spans=spans if self.rows == "spans" else None)

    def score(self, text, video):
        rows, mask = (video.frames, video.frame_mask) if self.rows == "frames" else (video.clips, None)
        return Scores(word_scores(text.words, text.mask, text.weights, rows, mask))


@pytest.mark.parametrize("rows", ["clips", "frames", "spans"])
def test_a_vector_that_the_score_does_not_read_changes_no_moment(rows: str, packed: PackedSplit) -> None:
    torch.manual_seed(0)
    model = Words(rows).eval()
    before = evaluate(model, packed, FEW)
    model.sign = -1.0
    after = evaluate(model, packed, FEW)
    assert len(before.moments) == 6
    assert before.moments == after.moments
    assert any(one.r1 for one in before.moments)


class OneRow(MeanPooling):
    """A video is one vector."""

    def encode_video(self, clips, frames, frame_mask):
        return VideoEmbedding(super().encode_video(clips, frames, frame_mask).clips.mean(1, keepdim=True))

    def score(self, text, video):
        return Scores(text @ video.clips[:, 0].mT)


class BesideFrames(OneRow):
    """Its vector stands beside frames, which the score weighs."""

    weight = 0.0

    def encode_video(self, clips, frames, frame_mask):
        own = MeanPooling.encode_video(self, clips, frames, frame_mask)
        return VideoEmbedding(own.clips.mean(1, keepdim=True), own.frames, frame_mask)

    def score(self, text, video):
        total = super().score(text, video).total
        return Scores(total + self.weight * max_scores(text, video.frames, video.frame_mask)[0])


@pytest.mark.parametrize("retriever", [OneRow, BesideFrames])
def test_moments_of_a_video_of_one_row_are_not_reported(retriever: type[OneRow], packed: PackedSplit) -> None:
    report = evaluate(retriever(512, 48), packed, FEW)
    assert report.moments == ()
    table = moment_baselines_table(report)
    assert table is not None
    assert "its videos have one row each" in str(table.caption)


def test_frames_beside_one_clip_give_moments_where_the_score_reads_them(packed: PackedSplit) -> None:
    retriever = BesideFrames(512, 48)
    retriever.weight = 1e-3
    assert len(evaluate(retriever, packed, FEW).moments) == 6


def test_moments_that_are_all_short_are_told_once(packed: PackedSplit) -> None:
    report = evaluate(OneRow(512, 48), packed, FEW)
    assert len({one.queries for one in report.baselines}) == 1  # of every kind and share
    fewer = [replace(one, queries=one.queries - (one.below < 1)) for one in report.baselines]
    for rows, said in ((report.baselines, True), (tuple(fewer), False)):
        table = moment_baselines_table(replace(report, baselines=rows))
        assert table is not None
        assert table.row_count == (6 if said else 12)
        assert ("all moments are below 70% of their video" in str(table.caption)) == said
    long = tuple(one for one in report.baselines if one.below == 1)  # no moment is below the share
    table = moment_baselines_table(replace(report, baselines=long))
    assert table is not None
    assert "all moments" not in str(table.caption)


class Told(Stage):
    """Gives the true moments."""

    kind = "told"
    settings = None

    def __init__(self, split: PackedSplit, change: Any = lambda times, scores: (times, scores)) -> None:
        super().__init__()
        self.split, self.change = split, change

    def bind(self, direction, matrix, prepared):
        return lambda scores, rows, columns: scores

    def moments(self, text, video):
        start, end, duration = (torch.from_numpy(part) for part in self.split.moments)
        query = (text[:, None] == self.known).all(2).int().argmax(1)
        times = torch.stack([start / duration, end / duration], 1)[query, None]
        whole = torch.tensor([0.0, 1.0]).expand_as(times)
        worse = torch.tensor([-1.0, 1.0]).expand(len(query), 2)
        return self.change(torch.cat([whole, times], 1), worse)


def told(packed: PackedSplit, *change: Any) -> Pipeline:
    from prvr.evaluation import encode_split

    torch.manual_seed(0)
    model, stage = OneRow(512, 48).eval(), Told(packed, *change)
    stage.known = encode_split(model, packed).text
    return Pipeline(model, [stage])


def test_moments_of_a_stage_are_judged_in_place_of_those_of_rows(packed: PackedSplit) -> None:
    report = evaluate(told(packed), packed, FEW)
    own = {(one.task, one.iou): one for one in report.moments}
    assert own["svmr", 0.7].r1 == 100
    assert own["vcmr", 0.3].r100 == own["vcmr", 0.7].r100 == 100
    hits = find_moments(told(packed), packed, [3, 4], k=2)
    for query in hits:
        assert (query.hits[0].start is None) == (packed.durations[packed.video_ids.index(query.hits[0].video_id)] == 0)
    own_hits = [hit for query in find_moments(told(packed), packed, [3], k=len(packed)) for hit in query.hits]
    (true,) = (hit for hit in own_hits if hit.video_id == hits[0].video_id)
    assert (true.start, true.end) == pytest.approx((hits[0].start, hits[0].end))


def nan(times: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return times.clone().index_fill_(1, torch.tensor([1]), torch.nan), scores


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (nan, "moment 1 of query 0, nan to nan, is NaN"),
        (lambda times, scores: (times.flip(2), scores), "moment 0 of query 0, 1 to 0, is reversed"),
        (lambda times, scores: (2 * times, scores), "moment 0 of query 0, 0 to 2, lies outside the video"),
        (lambda times, scores: (times, scores.log()), "has a score that is no number"),
        (lambda times, scores: (times, scores - torch.inf), "a query has none"),
        (lambda times, scores: (times[0], scores), r"times \(2, 2\), scores .*expected \(queries, moments, 2\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_moments_that_cannot_be_are_refused_by_name(packed: PackedSplit, change: Any, problem: str) -> None:
    with pytest.raises(InputError, match=f"moments of Told, video '.*': .*{problem}"):
        evaluate(told(packed, change), packed, FEW)


class Centre(Term[LossSettings]):
    """Where the moment of a query lies, from its vector and the mean frame of the video."""

    is_moment_head: ClassVar[bool] = True

    def __init__(self, settings: LossSettings, model: Any) -> None:
        super().__init__(settings, model)
        self.map = nn.Linear(2 * model.hidden, 2)

    def spans(self, text: Tensor, video: VideoEmbedding) -> Tensor:
        assert video.clips is not None
        centre, width = self.map(torch.cat([text, video.clips.mean(1).expand(len(text), -1)], 1)).sigmoid().unbind(1)
        return torch.stack([centre - centre * width, centre + (1 - centre) * width], 1)

    def forward(self, inputs: LossInputs) -> Tensor:
        assert inputs.labels.moments is not None
        start, end, duration = inputs.labels.moments.unbind(1)
        video = inputs.output.video[inputs.labels.query_to_video]
        true = torch.stack([start / duration, end / duration], 1)
        return (self.spans(inputs.text, video) - true).abs().nansum(1).mean()

    def moments(self, text: Any, video: VideoEmbedding) -> tuple[Tensor, Tensor]:
        spans = self.spans(text, video)
        return spans[:, None], spans.new_zeros(len(spans), 1)


@pytest.fixture
def centre(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOSSES, "_entries", dict(LOSSES._all))
    LOSSES.register("centre", Centre, "Where moments lie.", LossSettings, needs=["pooled", "clips", "moments"])


@pytest.mark.usefixtures("centre")
def test_a_head_that_asks_for_it_is_trained_saved_and_used_with_its_model(
    splits: Splits, cache: str, tmp_path: Path
) -> None:
    plain = train(make_config(cache), output=tmp_path / "plain", splits=splits, device="cpu")
    config = make_config(cache, loss__centre=1.0)
    result = train(config, output=tmp_path / "run", splits=splits, device="cpu")
    losses = [line["loss"]["centre"] for line in result.history]
    assert losses[-1] < losses[0]
    model = load_pretrained(tmp_path / "run" / "best")
    assert [*model.moment_heads] == ["centre"]
    split = splits.report
    old = shutil.copytree(tmp_path / "run" / "best", tmp_path / "old")  # as the heads were called once
    weights = {name.replace("moment_heads", "kept"): x for name, x in load_file(old / "model.safetensors").items()}
    save_file(weights, old / "model.safetensors", {"format": "pt"})
    (old / "config.json").write_text((old / "config.json").read_text("utf-8").replace("moment_heads", "kept"), "utf-8")
    write_hashes(old)
    before = load_pretrained(old)
    assert [*before.moment_heads] == ["centre"]
    assert before.state_dict().keys() == model.state_dict().keys()
    for one, two in zip(before.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    load_best(old, before)
    report = evaluate(model, split, FEW)
    assert report.moments != plain.report.moments
    assert [one.r1 for one in report.moments] == [one.r1 for one in result.report.moments]
    for system in (Pipeline(model), Pipeline(reconfigured(model, {"clip_weight": 0.7, "frame_weight": 0.3}))):
        system.save_pretrained(tmp_path / f"saved-{system.first.config.clip_weight}")
        again = Pipeline.from_pretrained(tmp_path / f"saved-{system.first.config.clip_weight}")
        svmr = [one for one in evaluate(again, split, FEW).moments if one.task == "svmr"]
        assert svmr == [one for one in report.moments if one.task == "svmr"]
    # A start without the head gives all else; one with a head that is not asked for, too.
    further = train(
        make_config(cache, loss__centre=1.0, train__start_from=str(tmp_path / "plain"), train__epochs=1),
        output=tmp_path / "further",
        splits=splits,
        device="cpu",
    )
    assert further.history[0]["loss"]["centre"] > losses[-1]
    other = make_config(cache, train__start_from=str(tmp_path / "run"), train__epochs=1)
    train(other, output=tmp_path / "other", splits=splits, device="cpu")
    assert not load_pretrained(tmp_path / "other" / "best").moment_heads


@pytest.mark.usefixtures("centre")
def test_a_head_is_trained_alike_in_chunks_and_resumed_bitwise(
    splits: Splits, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = {"model__dropout": 0.0, "model__input_dropout": 0.0, "loss__centre": 1.0}
    courses = []
    for chunk in (None, 5):
        config = make_config(cache, train__chunk_videos=chunk, **still)
        result = train(config, output=tmp_path / str(chunk), splits=splits, device="cpu")
        courses.append([line["loss"]["centre"] for line in result.history])
    assert courses[0] == pytest.approx(courses[1], rel=1e-3)
    config, select = make_config(cache, train__chunk_videos=None, **still), RetrievalTask.select
    monkeypatch.setattr(RetrievalTask, "select", lambda task, n: interrupt() if n else select(task, n))
    with pytest.raises(KeyboardInterrupt):
        train(config, output=tmp_path / "broken", splits=splits, device="cpu")
    monkeypatch.setattr(RetrievalTask, "select", select)
    train(config, output=tmp_path / "broken", splits=splits, device="cpu", resume=True)
    assert same_end(tmp_path / "None", tmp_path / "broken")
