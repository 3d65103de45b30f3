"""The embedded world without its pixels: what is drawn, said and true, what training never shows, and near misses."""

import itertools
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from prvr.data import DataError
from prvr.data.synthetic.drawing import draw_videos
from prvr.data.synthetic.grammar import (
    ACTION_WORDS,
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    HELD_OUT_TEMPLATES,
    HELD_OUT_WORDS,
    SHAPE_WORDS,
    SIZE_WORDS,
    TEMPLATES,
    Claim,
    describe,
)
from prvr.data.synthetic.near_misses import near_misses, relevance
from prvr.data.synthetic.scenes import SPLITS, Scenes, draw_split, read_scenes, write_scenes
from prvr.data.synthetic.world import (
    ACTIONS,
    BACKGROUNDS,
    COLOURS,
    HELD_OUT_ACTIONS,
    HELD_OUT_COLOURS,
    OPPOSITE,
    SHAPES,
    SIZES,
    Shot,
    Thing,
    Video,
)


@pytest.fixture(scope="module")
def tiny() -> dict[str, Scenes]:
    return {split: draw_split(split, count, seed=0) for split, count in SPLITS["tiny"].items()}


def test_timelines_are_as_described(tiny: dict[str, Scenes]) -> None:
    ratios = []
    for scenes in tiny.values():
        for video in scenes.videos:
            assert 20 <= video.duration <= 120
            assert video.shots[0].start == 0
            assert video.shots[-1].end == video.duration
            assert all(a.end == b.start for a, b in itertools.pairwise(video.shots))
            lengths = [shot.end - shot.start for shot in video.moments()]
            assert 3 <= len(lengths) <= 5
            assert min(lengths) >= 2.99
            assert max(lengths) <= 15.01
            ratios += [length / video.duration for length in lengths]
            assert any(shot.action and not shot.captioned for shot in video.shots)
            for shot in video.shots:
                looks = [(thing.shape, thing.colour) for thing in shot.things]
                assert len(set(looks)) == len(looks), "two things that look the same cannot be told apart"
    assert 0.10 <= np.mean(ratios) <= 0.25


def test_every_moment_is_told_and_five_sentences_are_different(tiny: dict[str, Scenes]) -> None:
    for scenes in tiny.values():
        told = defaultdict(list)
        for sentence in scenes.sentences:
            told[sentence.video_id].append(sentence)
        for video in scenes.videos:
            own = told[video.id]
            assert len({sentence.text for sentence in own}) == 5
            assert {(s.start, s.end) for s in own} == {(s.start, s.end) for s in video.moments()}
            assert all(4 <= len(sentence.text.split()) <= 20 for sentence in own)


def test_the_same_seed_draws_the_same_and_another_does_not(tiny: dict[str, Scenes]) -> None:
    assert draw_split("test", 20, 0) == tiny["test"]
    assert draw_split("test", 20, 1) != tiny["test"]
    assert draw_split("val", 20, 0).videos[0].shots != tiny["test"].videos[0].shots


def test_scenes_survive_the_disk(tiny: dict[str, Scenes], tmp_path: Path) -> None:
    path = tmp_path / "scenes.jsonl"
    write_scenes(path, tiny)
    assert read_scenes(path) == tiny
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match="damaged"):
        read_scenes(path)
    with pytest.raises(DataError, match="no such file"):
        read_scenes(tmp_path / "none.jsonl")


def test_training_never_shows_or_says_what_is_held_out(tiny: dict[str, Scenes]) -> None:
    for split in ("train", "val"):
        for video in tiny[split].videos:
            for shot in video.shots:
                assert all((thing.shape, thing.colour) not in HELD_OUT_COLOURS for thing in shot.things)
                assert all((fact.thing.shape, fact.action) not in HELD_OUT_ACTIONS for fact in shot.facts())
        for sentence in tiny[split].sentences:
            assert HELD_OUT_WORDS.isdisjoint(sentence.text.replace(",", "").split())
            assert sentence.tags == ("seen",)
    test = tiny["test"]
    words = {word for sentence in test.sentences for word in sentence.text.replace(",", "").split()}
    assert len(words & HELD_OUT_WORDS) >= 3
    tags = {tag for sentence in test.sentences for tag in sentence.tags}
    assert tags == {"seen", "unseen", "unseen composition", "unseen template", "unseen word"}
    for sentence in test.sentences:
        new = {(sentence.claim.shape, sentence.claim.colour)} & HELD_OUT_COLOURS
        assert not new or "unseen composition" in sentence.tags
        assert ("seen" in sentence.tags) == (len(sentence.tags) == 1)


def test_how_much_is_held_out() -> None:
    assert len(HELD_OUT_COLOURS) == 0.2 * len(SHAPES) * len(COLOURS)
    assert len(HELD_OUT_ACTIONS) == 0.2 * len(SHAPES) * len(ACTIONS)
    assert len(HELD_OUT_TEMPLATES) == 0.25 * len(TEMPLATES)
    assert len(set(TEMPLATES)) == len(TEMPLATES) >= 40
    for shape in SHAPES:  # each is still learned with most colours and actions
        assert sum((shape, colour) in HELD_OUT_COLOURS for colour in COLOURS) <= 2
        assert sum((shape, action) in HELD_OUT_ACTIONS for action in ACTIONS) <= 3
    synonyms = [{f.split()[0] for f in forms} for names in ACTION_WORDS.values() for forms in names[1:]]
    synonyms += [
        {w} for table in (SHAPE_WORDS, COLOUR_WORDS, SIZE_WORDS) for names in table.values() for w in names[1:]
    ]
    held = [words for words in synonyms if words & HELD_OUT_WORDS]
    assert len(held) == 10
    firsts = {names[0] for table in (SHAPE_WORDS, COLOUR_WORDS, SIZE_WORDS) for names in table.values()}
    assert not firsts & HELD_OUT_WORDS, "a first word is a thing's name, not a synonym"


def true_of(claim: Claim, video: Video) -> tuple[bool, bool]:
    """Told out in words: whether a claim is true of a video, and whether some shot misses it by one factor."""
    misses = []
    for shot in video.shots:
        tellings: list[tuple[Thing, str, Thing | None]] = []
        if shot.actor is not None and shot.action is not None:
            tellings.append((shot.actor, shot.action, shot.other))
            if shot.other is not None and shot.heading is not None:
                tellings.append((shot.other, OPPOSITE[shot.action], shot.actor))
                tellings += [(thing, shot.heading, None) for thing in (shot.actor, shot.other)]
        for thing, action, other in tellings:
            said_and_true = [
                (claim.shape, thing.shape), (claim.colour, thing.colour), (claim.size, thing.size),
                (claim.action, action), (claim.background, video.background),
                (claim.other_shape, other and other.shape), (claim.other_colour, other and other.colour),
            ]  # fmt: skip
            misses.append(sum(said is not None and said != true for said, true in said_and_true))
    return 0 in misses, 0 not in misses and 1 in misses


def bound_otherwise(claim: Claim, video: Video) -> bool:
    """Whether everything that is said is somewhere in a video that it is not true of."""
    things = [thing for shot in video.shots for thing in shot.things]
    actions = {fact.action for shot in video.shots for fact in shot.facts()}
    there = {t.shape for t in things} | {t.colour for t in things} | {t.size for t in things} | actions
    there.add(video.background)
    said = {
        claim.shape,
        claim.colour,
        claim.size,
        claim.action,
        claim.other_shape,
        claim.other_colour,
        claim.background,
    }
    return said - {None} <= there and not true_of(claim, video)[0]


def test_relevance_and_near_misses_against_plain_loops(tiny: dict[str, Scenes]) -> None:
    test = tiny["test"]
    videos, claims = test.videos, list(test.claims.values())
    found = near_misses(claims, videos)
    for q, claim in enumerate(claims):
        for v, video in enumerate(videos):
            true, near = true_of(claim, video)
            assert (found.relevant[q, v], found.one_factor[q, v]) == (true, near)
            assert found.rebound[q, v] == bound_otherwise(claim, video)
    names = relevance(test.claims, videos)
    for sentence in test.sentences:
        assert sentence.video_id in names[sentence.id]
        assert names[sentence.id] == [video.id for video in videos if true_of(sentence.claim, video)[0]]


@pytest.mark.parametrize("seed", [1, 2])
def test_every_sentence_has_its_near_misses(seed: int) -> None:
    scenes = draw_split("test", 40, seed)
    for claim in scenes.claims.values():
        assert sum(true_of(claim, video)[1] for video in scenes.videos) >= 4
        assert sum(bound_otherwise(claim, video) for video in scenes.videos) >= 2


def test_a_gallery_without_room_for_near_misses_is_an_error() -> None:
    with pytest.raises(ValueError, match="20 or more"):
        draw_split("test", 3, 0)


def test_a_push_is_also_told_from_the_other_side_and_goes_somewhere() -> None:
    a, b = Thing("ring", "red", "small"), Thing("star", "blue", "large")
    video = Video("v", 20.0, "plain", False, 0, (Shot(0.0, 20.0, a, "push", b, "left"),))
    claims = {
        "told back": Claim("star", "blue", None, "pushed", "ring", "red"),
        "it goes left": Claim("ring", "red", None, "left"),
        "so does the other": Claim("star", None, "large", "left"),
        "swapped": Claim("star", "blue", None, "push", "ring", "red"),
        "wrong colour": Claim("ring", "red", None, "push", "star", "green"),
        "wrong way": Claim("ring", "red", None, "right"),
    }
    found = relevance(claims, [video])
    assert [name for name, videos in found.items() if videos] == ["told back", "it goes left", "so does the other"]


def test_sentences_say_what_they_claim() -> None:
    rng = np.random.default_rng(1)
    for video in draw_videos([f"v{i}" for i in range(100)], rng):
        for shot in video.moments():
            text, claim, _ = describe(shot, video.background, rng, training=False)
            words = text.replace(",", "").split()
            assert any(name in words for name in SHAPE_WORDS[claim.shape])
            for value, table in ((claim.colour, COLOUR_WORDS), (claim.size, SIZE_WORDS)):
                assert value is None or any(name in words for name in table[value])
            assert claim.background is None or any(phrase in text for phrase in BACKGROUND_WORDS[claim.background])
            spoken = [form.split("{o}")[0].strip() for forms in ACTION_WORDS[claim.action] for form in forms]
            assert any(phrase in text for phrase in spoken)
            assert not any(a == "a" and b[0] in "aeiou" for a, b in itertools.pairwise(words))
            assert (claim.other_shape is None) == (shot.other is None)
            assert claim.size is None or shot.action not in ("grow", "shrink"), "what grows has no size of its own"


def test_no_word_names_two_things_and_no_template_names_one() -> None:
    tables = (SHAPE_WORDS, COLOUR_WORDS, SIZE_WORDS)
    owners: dict[str, set[str]] = defaultdict(set)
    for table in tables:
        for key, names in table.items():
            for name in names:
                owners[name].add(key)
    for key, names in ACTION_WORDS.items():
        for phrase in (form for forms in names for form in forms):
            owners[phrase].add(key)
    assert all(len(keys) == 1 for keys in owners.values())
    assert tuple(map(tuple, (*tables, BACKGROUND_WORDS, ACTION_WORDS))) == (
        SHAPES,
        COLOURS,
        SIZES,
        BACKGROUNDS,
        ACTIONS,
    )
    names = {name for table in tables for words in table.values() for name in words}
    other = " ".join([*TEMPLATES, *(p for ps in BACKGROUND_WORDS.values() for p in ps)]).replace(",", "").split()
    assert names.isdisjoint(other)
