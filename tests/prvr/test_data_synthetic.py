"""The embedded corpus: reproducible, true to its description, and neither trivial nor hopeless."""

import itertools
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from prvr.data import Corpus, DataError, PackedSplit, embed_text, open_corpus, pack, write_corpus
from prvr.data.synthetic.corpus import SIZES
from prvr.data.synthetic.encoder import SceneEncoder
from prvr.data.synthetic.grammar import ACTION_WORDS, COLOUR_WORDS, SHAPE_WORDS, Claim, describe, matching_videos
from prvr.data.synthetic.world import ACTIONS, COLOURS, FPS, OPPOSITE, SHAPES, Event, Thing, Video, draw_video


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embedded")


@pytest.fixture(scope="module")
def corpus(root: Path) -> Corpus:
    return write_corpus(root)


@pytest.fixture(scope="module")
def packs(corpus: Corpus, root: Path) -> dict[str, PackedSplit]:
    return {
        split: pack(corpus, split, cache_dir=root / "cache", feature_dim=96, query_dim=64) for split in SIZES["tiny"]
    }


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix != ".hdf5"}


def test_sizes_and_partial_relevance(packs: dict[str, PackedSplit]) -> None:
    assert {split: len(packed) for split, packed in packs.items()} == SIZES["tiny"]
    for packed in packs.values():
        assert len(packed.query_ids) == 5 * len(packed)
        start, end, duration = packed.moments
        assert (duration >= 20).all()
        assert (duration <= 120).all()
        assert (end - start >= 2.99).all()
        assert (end - start <= 15.01).all()
        assert (start >= 0).all()
        assert (end <= duration + 0.01).all()
        assert 0.10 <= ((end - start) / duration).mean() <= 0.25
        np.testing.assert_array_equal(packed.source_frame_counts, np.ceil(packed.durations * FPS))
        lengths = [len(caption.split()) for caption in packed.captions]
        assert 2 <= min(lengths) <= max(lengths) <= 20
    assert len({text for packed in packs.values() for text in packed.captions}) > 450


def test_the_same_seed_gives_the_same_files_and_another_does_not(corpus: Corpus, tmp_path: Path) -> None:
    again = content(write_corpus(tmp_path / "again").folder)
    assert again == content(corpus.folder)
    with corpus.open_queries() as queries:
        for caption in corpus.split("test").captions:
            np.testing.assert_array_equal(queries.read(caption.id), embed_text(caption.text))
    assert content(write_corpus(tmp_path / "other", seed=1).folder)["feature.bin"] != again["feature.bin"]


def test_a_corpus_that_stands_is_reused_and_another_is_an_error(root: Path, corpus: Corpus, tmp_path: Path) -> None:
    before = (corpus.folder / "corpus.json").stat().st_mtime_ns
    assert write_corpus(root) == corpus == open_corpus(root, "embedded")
    assert (corpus.folder / "corpus.json").stat().st_mtime_ns == before
    with pytest.raises(DataError, match="holds another corpus"):
        write_corpus(root, seed=1)
    with pytest.raises(ValueError, match="huge"):
        write_corpus(root, size="huge")
    (tmp_path / "embedded").mkdir()
    with pytest.raises(DataError, match="holds another corpus"):
        write_corpus(tmp_path)
    about = {"generator": "prvr.data.synthetic", "version": -1, "size": "tiny", "seed": 0}
    (tmp_path / "embedded" / "corpus.json").write_text(json.dumps(about))
    with pytest.raises(DataError, match="'version': -1"):
        write_corpus(tmp_path)


def plain_matches(claim: Claim, video: Video) -> bool:
    """Whether a claim holds, told out in words: shape and action must agree, the rest where it is said."""
    for event in video.events:
        for thing, action, other in [(event.actor, event.action, event.other)] + (
            [(event.other, OPPOSITE[event.action], event.actor)] if event.other else []
        ):
            said = {"shape": claim.shape, "colour": claim.colour, "size": claim.size}
            fits = all(value in (None, getattr(thing, key)) for key, value in said.items())
            if other is not None:
                fits &= claim.other_shape in (None, other.shape) and claim.other_colour in (None, other.colour)
            if fits and action == claim.action:
                return True
    return False


def test_relevance_holds_every_true_video_and_no_other() -> None:
    rng = np.random.default_rng(0)
    videos = [draw_video(f"v{i}", rng) for i in range(40)]
    claims = {f"{v.id}/{i}": describe(event, rng)[1] for v in videos for i, event in enumerate(v.captioned)}
    for shape in SHAPES[:3]:  # loose claims, so that many videos match
        claims |= {f"{shape} {action}": Claim(shape, None, None, action) for action in ACTIONS}
    found = matching_videos(claims, videos)
    assert found == {
        name: [v.id for v in sorted(videos, key=lambda v: v.id) if plain_matches(c, v)] for name, c in claims.items()
    }
    assert all(name.split("/")[0] in ids for name, ids in found.items() if "/" in name)
    assert max(map(len, found.values())) > 2


def test_a_push_is_also_told_from_the_other_side() -> None:
    a, b = Thing("ring", "red", "small"), Thing("star", "blue", "large")
    video = Video("v", 20.0, 0, (Event(0.0, 5.0, a, "push", b),), ())
    claims = {
        "true": Claim("star", "blue", None, "pushed", "ring", "red"),
        "swapped": Claim("star", "blue", None, "push", "ring", "red"),
        "wrong colour": Claim("ring", "red", None, "push", "star", "green"),
    }
    assert matching_videos(claims, [video]) == {"true": ["v"], "swapped": [], "wrong colour": []}


def test_sentences_say_what_they_claim() -> None:
    rng = np.random.default_rng(1)
    for i in range(300):
        event = draw_video(f"v{i}", rng).captioned[0]
        text, claim = describe(event, rng)
        words = text.split()
        assert any(name in words for name in SHAPE_WORDS[claim.shape])
        assert claim.colour is None or any(name in words for name in COLOUR_WORDS[claim.colour])
        assert any(phrase in text for phrase in ACTION_WORDS[claim.action])
        assert not any(a == "a" and b[0] in "aeiou" for a, b in itertools.pairwise(words))
        assert (claim.other_shape is None) == (event.action not in ("push", "pushed"))


def test_no_word_names_two_things() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for names in (SHAPE_WORDS, COLOUR_WORDS, ACTION_WORDS):
        for key, words in names.items():
            for word in words:
                owners[word].add(key)
    assert all(len(keys) == 1 for keys in owners.values())
    assert (set(SHAPE_WORDS), set(COLOUR_WORDS), set(ACTION_WORDS)) == (set(SHAPES), set(COLOURS), set(ACTIONS))


@pytest.mark.parametrize("action", ACTIONS[::2])
def test_an_action_reversed_in_time_is_its_opposite(action: str) -> None:
    other = Thing("star", "blue", "medium") if action == "push" else None

    class Still(np.random.Generator):
        """Draws without noise; places are drawn as ever."""

        def standard_normal(self, size: object) -> np.ndarray:  # type: ignore[override]
            return np.zeros(size)  # type: ignore[call-overload]

    def features(name: str) -> np.ndarray:
        event = Event(0.0, 10.0, Thing("ring", "red", "medium"), name, other)
        return SceneEncoder(0).encode(Video("v", 10.0, 2, (event,), ()), Still(np.random.PCG64(3)))

    if action == "push":  # who pushes differs, so the order of roles does, not the direction
        assert not np.allclose(features("push"), features("pushed"))
    else:
        np.testing.assert_allclose(features(action), features(OPPOSITE[action])[::-1], atol=1e-6)
        assert not np.allclose(features(action), features(OPPOSITE[action]), atol=0.05)


def test_word_features() -> None:
    words = embed_text("A red, RED circle's ünï 日本")
    assert words.shape == (7, 64)
    assert words.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(words, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(words[1], words[2])
    np.testing.assert_array_equal(embed_text("circle"), words[3:4])
    np.testing.assert_allclose(embed_text("circle")[0, :3], [0.137215, 0.117580, -0.091405], atol=1e-6)  # everywhere
    similar, different = embed_text("pushes pushed"), embed_text("circle purple")
    assert similar[0] @ similar[1] > 0.3 > abs(different[0] @ different[1])
    with pytest.raises(ValueError, match="no word"):
        embed_text("... !")


def test_a_ridge_that_is_told_the_moments_finds_videos_but_not_all(packs: dict[str, PackedSplit]) -> None:
    """Difficulty: frame features to mean word vector, trained on true moments, scored by the best frame."""
    train, test = packs["train"], packs["test"]
    targets = np.stack([train.query(j).numpy().mean(axis=0) for j in range(len(train.query_ids))])
    inputs = []
    for j, video in enumerate(train.query_to_video):
        frames = train.video(int(video))[1].numpy()
        times = (np.arange(len(frames)) + 0.5) / len(frames) * train.moments.duration[j]
        inputs.append(frames[(times >= train.moments.start[j]) & (times <= train.moments.end[j])].mean(axis=0))
    x, mean_x, mean_y = np.stack(inputs), np.mean(inputs, axis=0), targets.mean(axis=0)
    gram = (x - mean_x).T @ (x - mean_x)
    weights = np.linalg.solve(
        gram + 0.03 * np.trace(gram) / len(gram) * np.eye(len(gram)), (x - mean_x).T @ (targets - mean_y)
    )
    queries = np.stack([test.query(j).numpy().mean(axis=0) for j in range(len(test.query_ids))]) - mean_y
    scores = []
    for i in range(len(test)):
        found = (test.video(i)[1].numpy() - mean_x) @ weights
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        scores.append((queries / np.linalg.norm(queries, axis=1, keepdims=True) @ found.T).max(axis=1))
    best = np.stack(scores, axis=1).argmax(axis=1)
    share = float(test.relevant_matrix[np.arange(len(best)), best].mean())
    chance = float(test.relevant_matrix.mean())
    assert chance < 0.08
    assert 3 * chance < share < 0.9
