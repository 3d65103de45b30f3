"""The audit: variants of a corpus, what is left to find in them, and a whole audit with small models."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from audit import audit
from prvr.config import Config, load_config
from prvr.data import Caption, Corpus, DataError, Moment, TextData, load_encoder, open_corpus, pack, write_layout
from prvr.data.synthetic.encoder import DIM, WORD_DIM
from prvr.data.synthetic.near_misses import relevance
from prvr.data.synthetic.render import render, render_frames
from prvr.data.synthetic.scenes import Scenes, write_scenes
from prvr.data.synthetic.toy_corpus import SCENES, frame_features, read_toy_scenes
from prvr.data.synthetic.world import ACTIONS, PUSHES, Video
from prvr.evaluation import EvaluationConfig, report_from_scores
from prvr.evaluation.zero_shot import zero_shot_scores
from toy_world import runs
from toy_world.runs import fair_recall
from toy_world.variants import decoded, exchanged, lengths_only, reversed_in_time, shuffled, write_variant
from toy_world.world import AuditRow, file_rows, world_rows


@pytest.fixture(scope="module")
def scenes(toy_root: Path) -> dict[str, Scenes]:
    return read_toy_scenes(open_corpus(toy_root, "toy-tiny"))


def test_fair_recall_is_the_mean_over_orders_of_ties() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 3, (6, 5), generator=generator).float()
    relevant = torch.rand(6, 5, generator=generator) < 0.4
    relevant[:, 0] = True
    total = 0.0
    for _ in range(4000):
        first = (scores + 0.1 * torch.rand(6, 5, generator=generator)).argmax(1, keepdim=True)
        total += float(relevant.gather(1, first).float().mean())
    assert abs(fair_recall(scores, relevant) - 100 * total / 4000) < 2


def test_reversed_features_are_those_of_reversed_frames(scenes: dict[str, Scenes]) -> None:
    frames = render_frames(scenes["test"].videos[0], range(12, 24))
    features = frame_features(frames, load_encoder())
    found = reversed_in_time("v", lambda _: features)
    np.testing.assert_allclose(found, frame_features(frames[::-1], load_encoder()), atol=1e-5)
    assert not np.allclose(found, features, atol=0.01)


def test_features_of_decoded_videos_are_nearly_the_same(scenes: dict[str, Scenes]) -> None:
    pytest.importorskip("av")
    video = replace(scenes["test"].videos[0], duration=6.0, shots=scenes["test"].videos[0].shots[:1])
    found = decoded([video])(video.id, lambda _: pytest.fail("read the stored features"))
    expected = frame_features(render(video), load_encoder())
    assert found.shape == expected.shape == (12, 2 * DIM)
    assert (found[:, :DIM] * expected[:, :DIM]).sum(1).min() > 0.95
    assert np.abs(found - expected).max() > 0  # they did go through a file


@pytest.fixture(scope="module")
def corpus(scenes: dict[str, Scenes], tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The tiny corpus without pixels: in each frame the encoder's words for what is there, and a sign of what it does.

    Of a captioned moment, what its first caption says is seen as well: the best that the encoder could do.
    """
    root, encoder = tmp_path_factory.mktemp("corpus"), load_encoder()
    rng = np.random.default_rng(0)
    signs = {action: (-1) ** (i % 2) * rng.standard_normal(DIM) / 16 for i, action in enumerate(ACTIONS)}
    splits = scenes
    sentences = [sentence for split in splits.values() for sentence in split.sentences]
    said = {(sentence.video_id, sentence.start): sentence.text for sentence in reversed(sentences)}
    videos = [video for split in splits.values() for video in split.videos]
    duration = {video.id: video.duration for video in videos}

    def features(video: Video) -> np.ndarray:
        rows = np.zeros((video.frame_count, 2 * DIM), np.float32)
        times = video.frame_times()
        for shot in video.shots:
            inside = (times >= shot.start) & (times < shot.end)
            looks = " ".join(f"{t.size} {t.colour} {t.shape}" for t in shot.things) or "ground"
            rows[inside, :DIM] = encoder.encode_text(said.get((video.id, shot.start), looks))
            if shot.action is not None:
                rows[inside, DIM:] = signs[shot.action]
        return rows + rng.normal(0, 1e-3, rows.shape).astype(np.float32)

    write_layout(
        root / "toy-tiny",
        TextData(
            captions={
                name: [Caption(s.id, s.video_id, s.text) for s in split.sentences] for name, split in splits.items()
            },
            moments={s.id: Moment(s.start, s.end, duration[s.video_id]) for s in sentences},
            relevance=relevance({s.id: s.claim for s in sentences}, videos),
            tags={s.id: s.tags for s in sentences},
        ),
        videos=((video.id, features(video)) for video in videos),
        queries=((s.id, encoder.encode_words(s.text)) for s in sentences),
        about={"encoder": encoder.sha256},
        extras=lambda folder: write_scenes(folder / SCENES, splits),
    )
    return open_corpus(root, "toy-tiny")


def test_a_sound_world_passes(scenes: dict[str, Scenes]) -> None:
    claims = {name: claim for split in scenes.values() for name, claim in split.claims.items()}
    relevant = relevance(claims, [video for split in scenes.values() for video in split.videos])
    rows = {row.key: row for row in world_rows(scenes, relevant, "tiny")}
    assert {key for key, row in rows.items() if not row.ok} == set()
    assert rows["one_factor"].value >= 4
    assert rows["rebound"].value >= 2
    relevant[min(relevant)] = []
    assert not next(row for row in world_rows(scenes, relevant, "tiny") if row.key == "false_negatives").ok


def test_files_agree_with_scenes(scenes: dict[str, Scenes], corpus: Corpus) -> None:
    assert [row.value for row in file_rows(corpus, scenes)] == [0]
    changes = ({"text": "a square rises"}, {"start": 0.5}, {"tags": ("seen", "more")}, {"id": "test0000#enc#9"})
    for change in changes:
        test = scenes["test"]
        other = replace(test, sentences=(replace(test.sentences[0], **change), *test.sentences[1:]))
        assert [row.value for row in file_rows(corpus, scenes | {"test": other})] == [1], change


def test_a_variant_differs_in_features_alone(corpus: Corpus, tmp_path: Path) -> None:
    variant = write_variant(corpus, tmp_path, ("val", "test"), reversed_in_time)
    assert variant.splits == ("test", "val")
    for name in variant.splits:
        old, new = corpus.split(name), variant.split(name)
        ids = {caption.id for caption in old.captions}
        assert (old.captions, old.video_ids) == (new.captions, new.video_ids)
        for kind in ("moments", "relevance", "tags"):
            before, after = getattr(old, kind), getattr(new, kind)
            assert {name: before[name] for name in ids} == {name: after[name] for name in ids}
    with corpus.open_queries() as before, variant.open_queries() as after:
        np.testing.assert_array_equal(before.read("test0000#enc#0"), after.read("test0000#enc#0"))
    with corpus.open_features() as before, variant.open_features() as after:
        x, y = before.read("test0003"), after.read("test0003")
        np.testing.assert_array_equal(x[:, :DIM], y[::-1, :DIM])
        np.testing.assert_array_equal(x[:, DIM:], -y[::-1, DIM:])


def test_zero_shot_is_the_best_frame_and_controls_leave_nothing(corpus: Corpus, tmp_path: Path) -> None:
    split = corpus.split("test")
    scores = zero_shot_scores(corpus, "test")
    with corpus.open_features() as features:
        text = load_encoder().encode_text(split.captions[7].text)
        for v in (0, 11):
            frames = features.read(split.video_ids[v])[:, :DIM]
            best = max(float(frame @ text) / float(np.linalg.norm(frame)) for frame in frames)
            assert float(scores[7, v]) == pytest.approx(best, abs=1e-6)
    torch.testing.assert_close(zero_shot_scores(corpus, "test", [split.captions[7].text]), scores[7:8])

    with pack(corpus, "test", cache_dir=tmp_path / "packed") as packed:
        relevant = torch.from_numpy(packed.relevant_matrix)
        assert report_from_scores(scores, packed, EvaluationConfig(bootstrap=0)).text_to_video.r1 > 60
    same = write_variant(corpus, tmp_path / "reversed", ("test",), reversed_in_time)
    torch.testing.assert_close(zero_shot_scores(same, "test"), scores)
    others = shuffled(corpus, ("test",), seed=0)
    assert set(others) == set(others.values()) == set(split.video_ids)
    swapped = write_variant(corpus, tmp_path / "swapped", ("test",), exchanged(others))
    assert fair_recall(zero_shot_scores(swapped, "test"), relevant) < 30
    bare = write_variant(corpus, tmp_path / "bare", ("test",), lengths_only)
    chance = 100 * float(relevant.float().mean())
    assert fair_recall(zero_shot_scores(bare, "test"), relevant) == pytest.approx(chance, abs=1e-4)


def test_zero_shot_needs_its_own_encoder(corpus: Corpus, tmp_path: Path) -> None:
    other = write_variant(corpus, tmp_path, ("test",), lengths_only)
    (other.folder / "corpus.json").write_text('{"encoder": "another"}')
    with pytest.raises(DataError, match="features of the encoder 'another', expected"):
        zero_shot_scores(other, "test")
    (other.folder / "corpus.json").write_text("{}")
    with pytest.raises(DataError, match="does not name the encoder"):
        zero_shot_scores(other, "test")


@pytest.fixture(scope="module")
def config() -> Config:
    small = {"model.hidden": 16, "model.heads": 2, "model.depth": 1, "model.blocks": [{"space": "euclidean"}]}
    widths = {
        "model.video_dim": 2 * DIM,
        "model.query_dim": WORD_DIM,
        "model.branches": "clips",
        "model.frame_pooling": "none",
    }
    return load_config("gmmformer-toy", small | widths | {"train.epochs": 1})


def test_audit_measures_every_band(
    corpus: Corpus, config: Config, scenes: dict[str, Scenes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prvr.training.run.plot_curves", lambda *_: None)
    rows: dict[str, AuditRow] = {}
    for row in audit(corpus, config, seeds=(3,), folder=tmp_path):
        rows[row.key] = row
        if row.key == "lengths":  # MP4 files come last: test_features_of_decoded_videos_are_nearly_the_same
            break
    assert list(rows)[-8:] == ["chance", "oracle", "zero_shot", "trained", "reversed", "swapped", "shuffled", "lengths"]
    assert rows["oracle"].value == 100
    for key in ("swapped", "shuffled", "lengths"):
        value = rows[key].value
        assert rows[key].ok, rows[key]
        assert value["chance"] == rows["chance"].value
        assert value["low"] <= value["chance"] < value["high"] < 40
    trained, zero = rows["trained"].value["3"]["r1"], rows["zero_shot"].value
    assert rows["trained"].ok == (15 <= trained <= 65)
    assert (zero["low"], zero["high"]) == (2 * rows["chance"].value, trained / 2)
    assert rows["zero_shot"].ok == (zero["low"] < zero["r1"] < zero["high"])
    turned = rows["reversed"].value
    assert rows["reversed"].ok == (turned["r1_reversed"] <= turned["r1"] / 2)
    queries = [sentence.claim.action not in PUSHES for sentence in scenes["test"].sentences]
    assert turned["queries"] == sum(queries) < len(queries)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed", "runs"]  # variants are gone
    monkeypatch.setattr(runs, "train", lambda *_, **__: pytest.fail("trained a finished run again"))
    again = audit(corpus, config, seeds=(3,), folder=tmp_path)
    assert next(row.value for row in again if row.key == "trained") == rows["trained"].value


def test_an_audit_needs_scene_graphs(corpus: Corpus, config: Config, tmp_path: Path) -> None:
    bare = write_variant(corpus, tmp_path, ("test",), lengths_only)
    with pytest.raises(DataError, match="scene graphs"):
        next(audit(bare, config, seeds=(0,), folder=tmp_path))
