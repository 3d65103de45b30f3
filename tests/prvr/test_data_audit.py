"""The audit of scene graphs: it reads what the grammar writes, and finds what is broken on purpose."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from prvr.data import open_corpus
from prvr.data.synthetic import read_toy_scenes
from prvr.data.synthetic.grammar import HELD_OUT_TEMPLATES, describe
from prvr.data.synthetic.near_misses import relevance
from prvr.data.synthetic.scenes import SPLITS, Scenes, Sentence
from prvr.data.synthetic.timelines import draw_videos
from prvr.data.synthetic.world import ACTIONS, Shot, Thing
from toy_world.reading import happenings, mistakes, read_sentence
from toy_world.world import AuditRow, oracle_scores, vocabulary, world_rows


@dataclass(frozen=True)
class World:
    """Scene graphs and relevance sets."""

    scenes: dict[str, Scenes]
    relevance: dict[str, list[str]]

    def rows(self) -> dict[str, AuditRow]:
        return {row.key: row for row in world_rows(self.scenes, self.relevance, "tiny")}

    def with_video(self, split: str, **changes: object) -> "World":
        """Another first video of a split."""
        first, *others = self.scenes[split].videos
        changed = replace(self.scenes[split], videos=(replace(first, **changes), *others))
        return replace(self, scenes=self.scenes | {split: changed})

    def with_shot(self, split: str, change: Callable[[Shot], Shot], captioned: bool = False) -> "World":
        """Another first shot of those that have an action and are, or are not, captioned."""
        shots = list(self.scenes[split].videos[0].shots)
        number = next(i for i, shot in enumerate(shots) if shot.action is not None and shot.captioned is captioned)
        shots[number] = change(shots[number])
        return self.with_video(split, shots=tuple(shots))

    def with_sentences(self, split: str, change: Callable[[tuple[Sentence, ...]], tuple[Sentence, ...]]) -> "World":
        changed = replace(self.scenes[split], sentences=change(self.scenes[split].sentences))
        return replace(self, scenes=self.scenes | {split: changed})

    def with_sentence(self, split: str, **changes: object) -> "World":
        """Another first sentence of a split."""
        return self.with_sentences(split, lambda all_: (replace(all_[0], **changes), *all_[1:]))


@pytest.fixture(scope="module")
def world(toy_root: Path) -> World:
    """Drawn with the seed 0."""
    scenes = read_toy_scenes(open_corpus(toy_root, "toy-tiny"))
    claims = {name: claim for split in scenes.values() for name, claim in split.claims.items()}
    return World(scenes, relevance(claims, [video for split in scenes.values() for video in split.videos]))


def test_reading_inverts_the_grammar() -> None:
    rng = np.random.default_rng(7)
    videos = draw_videos([f"v{i}" for i in range(60)], rng)
    told = [(shot, video) for video in videos for shot in video.shots if shot.action is not None]
    held_out = 0
    for i in range(500):
        shot, video = told[i % len(told)]
        text, claim, tags = describe(shot, video.background, rng, training=False)
        reading = read_sentence(text)
        assert reading.claim == claim, text
        assert (reading.template in HELD_OUT_TEMPLATES) == ("unseen template" in tags), text
        assert mistakes(reading.claim, happenings([shot], video.background)) == 0, text
        assert set(text.replace(",", "").split()) <= vocabulary()
        held_out += "unseen template" in tags
    assert 50 < held_out < 250


@pytest.mark.parametrize(
    "text",
    [
        "", "rises", "a red circle", "red circle rises", "a red rises", "a circle red rises", "it rises a red circle",
        "a red circle pushes", "a red circle pushes red square", "a red circle and a blue square rises",
        "we saw how a red circle rises", "a red circle rises quickly",
    ],
)  # fmt: skip
def test_reading_rejects_what_is_no_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"in '"):
        read_sentence(text)


def test_a_push_is_told_by_both_and_both_move() -> None:
    a, b = Thing("circle", "red", "small"), Thing("square", "blue", "large")
    shot = Shot(0.0, 3.0, a, "pushed", b, "up")
    assert set(happenings([shot], "grid")) == {
        ("circle", "red", "small", "pushed", "square", "blue", "grid"),
        ("square", "blue", "large", "push", "circle", "red", "grid"),
        ("circle", "red", "small", "up", None, None, "grid"),
        ("square", "blue", "large", "up", None, None, "grid"),
    }
    assert happenings([Shot(0.0, 3.0, bystanders=(a, b))], "grid") == []


def test_oracle_scores_only_the_relevant_videos_full_marks(world: World) -> None:
    test = world.scenes["test"]
    scores = oracle_scores([sentence.text for sentence in test.sentences], test.videos)
    for row, sentence in zip(scores, test.sentences, strict=True):
        full = {video.id for video, score in zip(test.videos, row, strict=True) if score == 1}
        assert full == set(world.relevance[sentence.id]) & {video.id for video in test.videos}
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (oracle_scores(["nothing happens"], test.videos) == 0).all()


def test_a_sound_world_passes(world: World) -> None:
    rows = world.rows()
    assert {key for key, row in rows.items() if not row.ok} == set()
    assert rows["videos"].value == SPLITS["tiny"]
    assert rows["one_factor"].value >= 4
    assert rows["rebound"].value >= 2


def _without_one(world: World) -> World:
    name = next(name for name, videos in world.relevance.items() if len(videos) > 1)
    return replace(world, relevance=world.relevance | {name: world.relevance[name][1:]})


def _with_one_more(world: World) -> World:
    name, videos = next(iter(world.relevance.items()))
    wrong = next(v.id for v in world.scenes["train"].videos if v.id not in videos)
    return replace(world, relevance=world.relevance | {name: [*videos, wrong]})


def _held_out_look(shot: Shot) -> Shot:
    return replace(shot, bystanders=(Thing("circle", "red", "small"),))


def _held_out_doing(shot: Shot) -> Shot:  # of the other of a push: the arrow is pushed
    return replace(
        shot, actor=Thing("star", "blue", "small"), action="push", other=Thing("square", "red", "small"), heading="down"
    )


def _few(world: World) -> World:
    return replace(world, scenes=world.scenes | {"test": _first(world.scenes["test"], 4)})


def _first(scenes: Scenes, count: int) -> Scenes:
    videos = scenes.videos[:count]
    ids = {video.id for video in videos}
    return Scenes(videos, tuple(s for s in scenes.sentences if s.video_id in ids))


def _idle(shot: Shot) -> Shot:
    return replace(shot, actor=None, action=None, other=None, heading=None)


def _no_distractors(world: World) -> World:
    shots = world.scenes["val"].videos[0].shots
    return world.with_video("val", shots=tuple(shot if shot.captioned else _idle(shot) for shot in shots))


BROKEN: dict[str, tuple[str, Callable[[World], World]]] = {
    "relevance set with an id removed": ("false_negatives", _without_one),
    "relevance set with an id too many": ("false_positives", _with_one_more),
    "held-out look in training": ("training_shots", lambda w: w.with_shot("train", _held_out_look)),
    "held-out doing of the other of a push": ("training_shots", lambda w: w.with_shot("val", _held_out_doing)),
    "held-out template in training": (
        "training_sentences",
        lambda w: w.with_sentence("train", text=sorted(HELD_OUT_TEMPLATES)[0].format(
            a="a blue circle", the="the blue circle", does="rises", doing="rising")),
    ),
    "held-out word in training": ("training_sentences", lambda w: w.with_sentence("train", text="a rhombus fades in")),
    "three words": ("words", lambda w: w.with_sentence("train", text="a square rises")),
    "no sentence": ("unread", lambda w: w.with_sentence("train", text="the sun is up today")),
    "opposite action": ("untrue", lambda w: w.with_shot(
        "train", lambda s: replace(s, action=ACTIONS[ACTIONS.index(str(s.action)) ^ 1]), captioned=True)),
    "another moment": ("untrue", lambda w: w.with_sentence("test", start=0.25)),
    "caption dropped": ("captions", lambda w: w.with_sentences("val", lambda all_: all_[1:])),
    "wrong tags": ("tags", lambda w: w.with_sentence("test", tags=("unseen", "unseen composition", "unseen word"))),
    "everything seen": ("unseen", lambda w: w.with_sentences(
        "test", lambda all_: tuple(s for s in all_ if s.tags == ("seen",)))),
    "few videos": ("videos", _few),
    "few videos: near misses": ("one_factor", _few),
    "few videos: rebound": ("rebound", _few),
    "long video": ("duration", lambda w: w.with_video("test", duration=121.0)),
    "short moment": ("moment", lambda w: w.with_shot("test", lambda s: replace(s, end=s.start + 2.5), captioned=True)),
    "one moment": ("moments", lambda w: w.with_video("test", shots=tuple(
        replace(s, captioned=i == 1) for i, s in enumerate(w.scenes["test"].videos[0].shots)))),
    "no distractors": ("distractors", _no_distractors),
    "short videos": ("ratio", lambda w: replace(w, scenes={
        name: replace(s, videos=tuple(replace(v, duration=v.duration / 3) for v in s.videos))
        for name, s in w.scenes.items()})),
}  # fmt: skip


@pytest.mark.usefixtures("unchecked")  # for speed; a sound world is counted with shape checks
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_world_is_found(world: World, name: str) -> None:
    key, break_ = BROKEN[name]
    assert break_(world).rows()[key].ok is False
