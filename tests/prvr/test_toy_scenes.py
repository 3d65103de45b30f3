"""The toy world without its pixels: seeds, scene graphs on disk, relevance and near misses."""

from dataclasses import replace
from pathlib import Path

import pytest

from prvr.data import DataError, open_corpus
from prvr.toy import Scenes, read_toy_scenes
from prvr.toy.near_misses import near_misses, relevance
from prvr.toy.scenes import SCENES, draw_split, write_scenes
from prvr.toy.world import HELD_OUT, Claim, Shot, Thing, Video

KEYS = ("shape", "colour", "size", "action", "other_shape", "other_colour", "background")


def happenings(video: Video) -> list[tuple[str | None, ...]]:
    """What a video shows, as values of `KEYS`: a push is the being pushed of the other, and both go where they head."""

    def events(shot: Shot) -> list[tuple[Thing, str, Thing | None]]:
        if shot.actor is None or shot.action is None:
            return []
        if shot.other is None:
            return [(shot.actor, shot.action, None)]
        back, way = "pushed" if shot.action == "push" else "push", str(shot.heading)
        pair = [(shot.actor, shot.action, shot.other), (shot.other, back, shot.actor)]
        return [*pair, (shot.actor, way, None), (shot.other, way, None)]

    def looks(thing: Thing, action: str, other: Thing | None) -> tuple[str | None, ...]:
        shape, colour = (None, None) if other is None else (other.shape, other.colour)
        return thing.shape, thing.colour, thing.size, action, shape, colour, video.background

    return [looks(*event) for shot in video.shots for event in events(shot)]


def mistakes(claim: Claim, video: Video) -> int:
    """In how many of the things it names a claim is wrong, of the happening that fits it best."""
    values = [getattr(claim, key) for key in KEYS]
    return min(
        sum(value is not None and value != shown for value, shown in zip(values, happening, strict=True))
        for happening in happenings(video)
    )


def all_somewhere(claim: Claim, video: Video) -> bool:
    """Whether everything that a claim names is somewhere in a video, in whatever combination."""
    things = [thing for shot in video.shots for thing in shot.things]
    shapes, colours, sizes = ({getattr(thing, name) for thing in things} for name in ("shape", "colour", "size"))
    actions = {happening[3] for happening in happenings(video)}
    values = (shapes, colours, sizes, actions, shapes, colours, {video.background})
    return all(getattr(claim, key) in {None, *some} for key, some in zip(KEYS, values, strict=True))


@pytest.fixture(scope="module")
def tiny(toy_root: Path) -> dict[str, Scenes]:
    """Drawn with the seed 0, and read back."""
    return read_toy_scenes(open_corpus(toy_root, "toy-tiny"))


def test_the_same_seed_draws_the_same_and_another_does_not(tiny: dict[str, Scenes]) -> None:
    assert draw_split("test", 20, 0) == tiny["test"]
    assert draw_split("test", 20, 1) != tiny["test"]
    assert draw_split("val", 20, 0).videos[0].shots != tiny["test"].videos[0].shots


def test_the_large_test_shares_no_video_with_other_corpora(tiny: dict[str, Scenes]) -> None:
    seeds = {video.seed for scenes in tiny.values() for video in scenes.videos}
    large = draw_split("test", 20, 0, "large")
    assert seeds.isdisjoint(video.seed for video in large.videos)
    assert (large.videos[0].id, large.sentences[0].id) == ("large0000", "large0000#enc#0")


def test_scenes_survive_the_disk(tiny: dict[str, Scenes], toy_root: Path, tmp_path: Path) -> None:
    path, corpus = tmp_path / SCENES, replace(open_corpus(toy_root, "toy-tiny"), folder=tmp_path)
    write_scenes(path, tiny)
    assert read_toy_scenes(corpus) == tiny
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match="line 100: not valid JSON"):
        read_toy_scenes(corpus)


@pytest.mark.parametrize("seed", [0, 1])
def test_near_misses_are_those_of_plain_loops_and_every_sentence_has_some(tiny: dict[str, Scenes], seed: int) -> None:
    scenes = tiny["test"] if seed == 0 else draw_split("test", 24, seed)
    claims = {sentence.id: sentence.claim for sentence in scenes.sentences}
    relevant, one_factor, bound_otherwise, _ = near_misses(claims.values(), scenes.videos)
    names = relevance(scenes.sentences, scenes.videos)
    for q, (name, claim) in enumerate(claims.items()):
        wrong = [mistakes(claim, video) for video in scenes.videos]
        rebound = [n > 0 and all_somewhere(claim, video) for n, video in zip(wrong, scenes.videos, strict=True)]
        assert relevant[q].tolist() == [n == 0 for n in wrong]
        assert one_factor[q].tolist() == [n == 1 for n in wrong]
        assert bound_otherwise[q].tolist() == rebound
        assert names[name] == [video.id for video, n in zip(scenes.videos, wrong, strict=True) if n == 0]
        assert wrong.count(1) >= 4
        assert sum(rebound) >= 2


def test_training_shows_no_pair_that_is_held_out(tiny: dict[str, Scenes]) -> None:
    shown = [happening for video in tiny["train"].videos for happening in happenings(video)]
    assert HELD_OUT.isdisjoint((shape, action) for shape, _, _, action, *_ in shown)
    things = {(thing.shape, thing.colour) for v in tiny["train"].videos for shot in v.shots for thing in shot.things}
    assert HELD_OUT.isdisjoint(things)
    assert len(things) > 50  # of the 72 that are left
