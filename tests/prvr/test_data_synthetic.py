"""The toy world without its pixels: what is drawn, said and true, what training never shows, and near misses.

What the audit counts (`toy_world.world_rows`) is held by test_data_audit: here stands what it does not look at.
"""

import itertools
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from prvr.data import DataError, open_corpus
from prvr.data.synthetic import read_toy_scenes
from prvr.data.synthetic.grammar import (
    ACTION_WORDS,
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    HELD_OUT_WORDS,
    SHAPE_WORDS,
    SIZE_WORDS,
    TEMPLATES,
    Claim,
    describe,
    with_article,
)
from prvr.data.synthetic.near_misses import near_misses, relevance
from prvr.data.synthetic.scenes import Scenes, draw_split, read_scenes, write_scenes
from prvr.data.synthetic.timelines import draw_videos
from prvr.data.synthetic.world import (
    ACTIONS,
    BACKGROUNDS,
    COLOURS,
    HELD_OUT_ACTIONS,
    HELD_OUT_COLOURS,
    SHAPES,
    SIZES,
    Shot,
    Thing,
    Video,
)
from toy_world.reading import all_held, happenings, mistakes, read_sentence, split_text, words_held
from toy_world.world import world_rows


@pytest.fixture(scope="module")
def tiny(toy_root: Path) -> dict[str, Scenes]:
    """Drawn with the seed 0, and read back."""
    return read_toy_scenes(open_corpus(toy_root, "toy-tiny"))


def test_timelines_have_no_gap_and_no_twins(tiny: dict[str, Scenes]) -> None:
    for scenes in tiny.values():
        for video in scenes.videos:
            assert video.shots[0].start == 0
            assert video.shots[-1].end == video.duration
            assert all(a.end == b.start for a, b in itertools.pairwise(video.shots))
            assert len(video.moments()) <= 5
            for shot in video.shots:
                looks = [(thing.shape, thing.colour) for thing in shot.things]
                assert len(set(looks)) == len(looks), "two things that look the same cannot be told apart"


def test_every_moment_is_told_and_five_sentences_are_different(tiny: dict[str, Scenes]) -> None:
    for scenes in tiny.values():
        told = defaultdict(list)
        for sentence in scenes.sentences:
            told[sentence.video_id].append(sentence)
        for video in scenes.videos:
            own = told[video.id]
            assert len({sentence.text for sentence in own}) == 5
            assert {(s.start, s.end) for s in own} == {(s.start, s.end) for s in video.moments()}


def test_the_same_seed_draws_the_same_and_another_does_not(tiny: dict[str, Scenes]) -> None:
    assert draw_split("test", 20, 0) == tiny["test"]
    assert draw_split("test", 20, 1) != tiny["test"]
    assert draw_split("val", 20, 0).videos[0].shots != tiny["test"].videos[0].shots


def test_the_large_test_shares_no_video_with_other_corpora_and_keeps_their_laws(tiny: dict[str, Scenes]) -> None:
    seeds = {video.seed for scenes in tiny.values() for video in scenes.videos}
    large = draw_split("test", 20, 0, "large")
    assert seeds.isdisjoint(video.seed for video in large.videos)
    assert (large.videos[0].id, large.sentences[0].id) == ("large0000", "large0000#enc#0")
    rows = {row.key: row.ok for row in world_rows({"test": large}, relevance(large.claims, large.videos))}
    assert {key for key, ok in rows.items() if ok is False} == set()


def test_scenes_survive_the_disk(tiny: dict[str, Scenes], tmp_path: Path) -> None:
    path = tmp_path / "scenes.jsonl"
    write_scenes(path, tiny)
    assert read_scenes(path) == tiny
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match="line 100: not valid JSON"):
        read_scenes(path)
    with pytest.raises(DataError, match="no such file"):
        read_scenes(tmp_path / "none.jsonl")


def test_tests_have_everything_that_training_lacks(tiny: dict[str, Scenes]) -> None:
    assert {sentence.tags for split in ("train", "val") for sentence in tiny[split].sentences} == {("seen",)}
    sentences = tiny["test"].sentences
    words = {word for sentence in sentences for word in split_text(sentence.text)}
    assert len(words & HELD_OUT_WORDS) >= 3
    tags = {tag for sentence in sentences for tag in sentence.tags}
    assert tags == {"seen", "unseen", "unseen composition", "unseen template", "unseen word"}


def test_no_shape_and_no_plain_name_is_held_out() -> None:
    assert len(set(TEMPLATES)) == len(TEMPLATES)
    for shape in SHAPES:  # each is still learned with most colours and actions
        assert sum((shape, colour) in HELD_OUT_COLOURS for colour in COLOURS) <= 2
        assert sum((shape, action) in HELD_OUT_ACTIONS for action in ACTIONS) <= 3
    firsts = {names[0] for table in (SHAPE_WORDS, COLOUR_WORDS, SIZE_WORDS) for names in table.values()}
    assert not firsts & HELD_OUT_WORDS, "a first word is a thing's name, not a synonym"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_near_misses_are_those_of_plain_loops_and_every_sentence_has_some(tiny: dict[str, Scenes], seed: int) -> None:
    scenes = tiny["test"] if seed == 0 else draw_split("test", 24, seed)
    shown = [happenings(video.shots, video.background) for video in scenes.videos]
    held = [words_held(video) for video in scenes.videos]
    found, names = near_misses(list(scenes.claims.values()), scenes.videos), relevance(scenes.claims, scenes.videos)
    for q, (name, claim) in enumerate(scenes.claims.items()):
        wrong = [mistakes(claim, some) for some in shown]
        rebound = [n > 0 and all_held(claim, words) for n, words in zip(wrong, held, strict=True)]
        assert found.relevant[q].tolist() == [n == 0 for n in wrong]
        assert found.one_factor[q].tolist() == [n == 1 for n in wrong]
        assert found.rebound[q].tolist() == rebound
        assert names[name] == [video.id for video, n in zip(scenes.videos, wrong, strict=True) if n == 0]
        assert wrong.count(1) >= 4
        assert sum(rebound) >= 2


@pytest.mark.usefixtures("unchecked")  # for speed: it draws until it gives up
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


def test_sentences_have_their_articles_and_no_size_that_changes() -> None:
    """That a sentence says what it claims is shown by reading it (test_data_audit)."""
    rng = np.random.default_rng(1)
    for video in draw_videos([f"v{i}" for i in range(100)], rng):
        for shot in video.moments():
            text, claim, _ = describe(shot, video.background, rng, training=False)
            for article, word in itertools.pairwise(split_text(text)):
                assert article not in ("a", "an") or (article == "an") == (word[0] in "aeiou"), text
            assert (claim.other_shape is None) == (shot.other is None)
            assert claim.size is None or shot.action not in ("grow", "shrink"), "what grows has no size of its own"


@pytest.mark.parametrize("phrases", ACTION_WORDS.values(), ids=ACTION_WORDS)
def test_a_finite_verb_and_its_participle_are_of_the_same_verb(phrases: tuple[tuple[str, str], ...]) -> None:
    for does, doing in phrases:
        (finite, *rest), (participle, *other_rest) = does.split(), doing.split()
        bases = {"be"} if finite == "is" else {finite.removesuffix("s"), finite.removesuffix("es")}
        forms = {f"{base}ing" for base in bases} | {f"{base.removesuffix('e')}ing" for base in bases - {"be"}}
        forms |= {f"{base}{base[-1]}ing" for base in bases}
        assert finite.endswith("s")
        assert participle in forms
        assert rest == other_rest


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_takes_every_action_and_can_be_read_back(template: str) -> None:
    """A finite verb follows its singular subject, and a participle its noun or a form of "to be"."""
    finite = r"(.* )?(\{a\}|\{the\}|\{a\} as it) \{does\}"
    participle = r"(.* )?(\{a\}|\{the\})( can be seen| is shown)? \{doing\}"
    assert re.fullmatch(f"{finite}|{participle}", template)
    other = with_article(["amber", "arrow"])
    assert other == "an amber arrow"
    grounds = [(key, phrase) for key, phrases in BACKGROUND_WORDS.items() for phrase in phrases]
    number = itertools.count()
    for action, phrases in ACTION_WORDS.items():
        for does, doing in phrases:
            background, where = grounds[next(number) % len(grounds)]
            text = template.format(
                a="an orange hoop", the="the orange hoop", does=does.format(o=other), doing=doing.format(o=other)
            )
            partner = ("arrow", "orange") if "{o}" in does else (None, None)
            for ending, ground in (("", None), (f" {where}", background)):
                reading = read_sentence(text + ending)
                assert reading.claim == Claim("ring", "orange", None, action, *partner, ground)
                assert reading.template == template


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
    values = (SHAPES, COLOURS, SIZES, BACKGROUNDS, ACTIONS)
    assert tuple(map(tuple, (*tables, BACKGROUND_WORDS, ACTION_WORDS))) == values
    names = {name for table in tables for words in table.values() for name in words}
    other = " ".join([*TEMPLATES, *(p for ps in BACKGROUND_WORDS.values() for p in ps)]).replace(",", "").split()
    assert names.isdisjoint(other)
