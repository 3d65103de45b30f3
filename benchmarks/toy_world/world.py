"""Checks of a toy world from its scene graphs: what the generator promises, counted anew. Nothing is trained."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from prvr.data.corpus import Corpus
from prvr.data.synthetic.grammar import (
    ACTION_WORDS,
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    HELD_OUT_TEMPLATES,
    HELD_OUT_WORDS,
    SHAPE_WORDS,
    SIZE_WORDS,
    TEMPLATES,
    UNSEEN,
    WORDS_RANGE,
)
from prvr.data.synthetic.scenes import SENTENCES_PER_VIDEO, SPLITS, Scenes, Sentence
from prvr.data.synthetic.world import (
    ACTIONS,
    COLOURS,
    HELD_OUT_ACTIONS,
    HELD_OUT_COLOURS,
    OPPOSITE,
    PUSHES,
    SHAPES,
    Shot,
    Video,
)
from toy_world.reading import (
    Reading,
    all_held,
    happenings,
    mistakes,
    read_sentence,
    satisfied,
    split_text,
    true_videos,
    words_held,
)

TRAINING = ("train", "val")  # the second chooses the epoch
TEST = "test"
ONE_FACTOR, REBOUND = 4, 2
ROUNDED = 0.011  # seconds: cuts are written in hundredths


@dataclass(frozen=True)
class AuditRow:
    """One thing that was measured.

    Args:
        key: names it in files.
        name: names it for people.
        found: what was found, as text.
        band: what was expected, as text.
        ok: whether it is; None where nothing was expected, or it was not measured.
        value: what was found, as JSON can hold it.
    """

    key: str
    name: str
    found: str
    band: str
    ok: bool | None
    value: Any


def world_rows(
    scenes: Mapping[str, Scenes], relevance: Mapping[str, Iterable[str]], size: str | None = None
) -> tuple[AuditRow, ...]:
    """Counts what the world promises, and works out again which videos each sentence is true of.

    Args:
        scenes: the scenes of each split.
        relevance: by caption id, the videos that the corpus says match it.
        size: name of the corpus's size; if it is one of `SPLITS`, the corpus should have as many videos.
    """
    videos = [video for split in scenes.values() for video in split.videos]
    sentences = [sentence for split in scenes.values() for sentence in split.sentences]
    readings = read_all(sentences)
    return (
        *_sizes(scenes, size),
        *_timelines(videos),
        *_held_out(scenes, readings),
        *_near_misses(scenes[TEST], readings),
        *_truth(videos, sentences, readings, relevance),
    )


def file_rows(corpus: Corpus, scenes: Mapping[str, Scenes]) -> tuple[AuditRow, ...]:
    """Whether the files of a corpus say what its scene graphs do: texts, moments and tags, in the same order."""
    wrong = 0
    for name, split in scenes.items():
        files, duration = corpus.split(name), {video.id: video.duration for video in split.videos}
        wrong += abs(len(files.captions) - len(split.sentences))
        for caption, sentence in zip(files.captions, split.sentences, strict=False):
            moment = files.moments.get(caption.id)
            read = (moment.start, moment.end, moment.duration) if moment is not None else None
            expected = (sentence.start, sentence.end, duration[sentence.video_id])
            text = (caption.id, caption.video_id, caption.text) == (sentence.id, sentence.video_id, sentence.text)
            wrong += not (text and read == expected and files.tags.get(caption.id) == frozenset(sentence.tags))
    return (_count("files", "captions that files tell otherwise", wrong),)


def read_all(sentences: Iterable[Sentence]) -> dict[str, Reading]:
    """By caption id, what can be read."""
    readings = {}
    for sentence in sentences:
        try:
            readings[sentence.id] = read_sentence(sentence.text)
        except ValueError:
            continue
    return readings


def oracle_scores(texts: Sequence[str], videos: Sequence[Video]) -> Float[np.ndarray, "q v"]:
    """Scores of whoever sees the scene graphs: the share of what a sentence names that the best happening satisfies.

    Args:
        texts: sentences, and nothing else of them; one that cannot be read scores 0 everywhere.
        videos: the gallery.
    """
    shown = [happenings(video.shots, video.background) for video in videos]
    scores = np.zeros((len(texts), len(videos)))
    for row, text in zip(scores, texts, strict=True):
        try:
            claim = read_sentence(text).claim
        except ValueError:
            continue
        for v, events in enumerate(shown):
            row[v] = satisfied(claim, mistakes(claim, events))
    return scores


def vocabulary() -> frozenset[str]:
    """Every word that a sentence can have."""
    actions = [form.replace("{o}", "") for forms in ACTION_WORDS.values() for pair in forms for form in pair]
    patterns = [re.sub(r"\{\w+\}", "", template) for template in TEMPLATES]
    tables = SHAPE_WORDS, COLOUR_WORDS, SIZE_WORDS, BACKGROUND_WORDS
    phrases = [phrase for table in tables for words in table.values() for phrase in words]
    return frozenset(word for text in ("a an the", *patterns, *actions, *phrases) for word in split_text(text))


def _sizes(scenes: Mapping[str, Scenes], size: str | None) -> Iterator[AuditRow]:
    counts = {name: len(split.videos) for name, split in scenes.items()}
    expected = SPLITS.get(size or "")
    shown = ["-" if numbers is None else " / ".join(map(str, numbers.values())) for numbers in (counts, expected)]
    ok = None if expected is None else counts == expected
    yield AuditRow("videos", f"videos: {' / '.join(counts)}", shown[0], shown[1], ok, counts)
    sentences = [sentence for split in scenes.values() for sentence in split.sentences]
    own = {video.id: 0 for split in scenes.values() for video in split.videos}
    for sentence in sentences:
        own[sentence.video_id] += 1
    yield _range("captions", "captions of a video", own.values(), SENTENCES_PER_VIDEO, SENTENCES_PER_VIDEO)
    lengths = [len(split_text(sentence.text)) for sentence in sentences]
    yield _range("words", "words of a caption", lengths, *WORDS_RANGE)
    yield _at_least("templates", "templates of the grammar", len(set(TEMPLATES)), 40)
    yield _at_least("vocabulary", "words of the grammar", len(vocabulary()), 150)


def _timelines(videos: Sequence[Video]) -> Iterator[AuditRow]:
    moments = [(shot.end - shot.start, video.duration) for video in videos for shot in video.shots if shot.captioned]
    yield _range("duration", "seconds of a video", [video.duration for video in videos], 20, 120)
    yield _range("moments", "captioned moments of a video", [len(video.moments()) for video in videos], 3, 7)
    yield _range("moment", "seconds of a moment", [length for length, _ in moments], 3, 15, ROUNDED)
    ratio = sum(length / duration for length, duration in moments) / max(len(moments), 1)
    yield AuditRow("ratio", "moment-to-video ratio, mean", f"{ratio:.2f}", "0.10 - 0.25", 0.10 <= ratio <= 0.25, ratio)
    silent = [sum(shot.action is not None and not shot.captioned for shot in video.shots) for video in videos]
    yield _at_least("distractors", "fewest actions without a caption", min(silent), 1)


def _held_out(scenes: Mapping[str, Scenes], readings: Mapping[str, Reading]) -> Iterator[AuditRow]:
    pairs = len(SHAPES) * len(COLOURS), len(SHAPES) * len(ACTIONS)
    shares = [len(HELD_OUT_COLOURS) / pairs[0], len(HELD_OUT_ACTIONS) / pairs[1]]
    shares += [len(HELD_OUT_TEMPLATES) / len(TEMPLATES)]
    ok = all(abs(share - wanted) < 0.01 for share, wanted in zip(shares, (0.2, 0.2, 0.25), strict=True))
    shown = ", ".join(f"{share:.0%}" for share in shares)
    yield AuditRow("held_out", "held out: looks, doings, templates", shown, "20%, 20%, 25%", ok, shares)
    words = _held_out_synonyms()
    yield AuditRow("held_out_words", "held out: synonyms", str(words), "10", words == 10, words)

    training = [scenes[name] for name in TRAINING if name in scenes]
    shots = sum(_breaks(shot) for split in training for video in split.videos for shot in video.shots)
    yield _count("training_shots", "held-out parts in training shots", shots)
    sentences = [sentence for split in training for sentence in split.sentences]
    unseen = sum(_unseen(sentence, readings) != set() for sentence in sentences)
    yield _count("training_sentences", "held-out parts in training sentences", unseen)

    tests = scenes[TEST].sentences
    unseen_parts = [_unseen(sentence, readings) for sentence in tests]
    share = sum(parts != set() for parts in unseen_parts) / max(len(unseen_parts), 1)
    yield AuditRow("unseen", "queries with something unseen", f"{share:.0%}", "some", 0 < share < 1, share)
    wrong = sum(
        set(sentence.tags) != ({"unseen", *parts} if parts else {"seen"})
        for sentence, parts in zip(tests, unseen_parts, strict=True)
    )
    yield _count("tags", "queries with wrong tags", wrong)


def _held_out_synonyms() -> int:
    """Synonyms with a held-out word; the two voices of a push are one."""
    nouns = [{word} for table in (SHAPE_WORDS, COLOUR_WORDS, SIZE_WORDS) for words in table.values() for word in words]
    verbs: dict[tuple[str, int], set[str]] = {}
    for action, forms in ACTION_WORDS.items():
        for number, pair in enumerate(forms):
            key = (PUSHES[0] if action in PUSHES else action, number)
            verbs.setdefault(key, set()).update(word for form in pair for word in form.split())
    return sum(not HELD_OUT_WORDS.isdisjoint(words) for words in [*nouns, *verbs.values()])


def _breaks(shot: Shot) -> bool:
    looks = any((thing.shape, thing.colour) in HELD_OUT_COLOURS for thing in shot.things)
    return looks or any((happening[0], happening[3]) in HELD_OUT_ACTIONS for happening in happenings([shot], ""))


def _unseen(sentence: Sentence, readings: Mapping[str, Reading]) -> set[str]:
    """What of a sentence training lacks; all of it where it cannot be read."""
    reading = readings.get(sentence.id)
    if reading is None:
        return set(UNSEEN)
    claim, parts = reading.claim, set()
    looks = {(claim.shape, claim.colour), (claim.other_shape, claim.other_colour)}
    does = {(claim.shape, claim.action)} | {(claim.other_shape, OPPOSITE[claim.action])}
    if looks & HELD_OUT_COLOURS or does & HELD_OUT_ACTIONS:
        parts.add(UNSEEN[0])
    if reading.template in HELD_OUT_TEMPLATES:
        parts.add(UNSEEN[1])
    if set(split_text(sentence.text)) & HELD_OUT_WORDS:
        parts.add(UNSEEN[2])
    return parts


def _near_misses(scenes: Scenes, readings: Mapping[str, Reading]) -> Iterator[AuditRow]:
    shown = [happenings(video.shots, video.background) for video in scenes.videos]
    held = [words_held(video) for video in scenes.videos]
    one_factor, rebound = [], []
    for sentence in scenes.sentences:
        if sentence.id not in readings:
            continue
        claim = readings[sentence.id].claim
        wrong = [mistakes(claim, events) for events in shown]
        one_factor.append(wrong.count(1))
        rebound.append(sum(n > 0 and all_held(claim, words) for n, words in zip(wrong, held, strict=True)))
    names = "fewest one-factor videos of a query", "fewest rebound videos of a query"
    yield _at_least("one_factor", names[0], min(one_factor, default=0), ONE_FACTOR)
    yield _at_least("rebound", names[1], min(rebound, default=0), REBOUND)


def _truth(
    videos: Sequence[Video],
    sentences: Sequence[Sentence],
    readings: Mapping[str, Reading],
    relevance: Mapping[str, Iterable[str]],
) -> Iterator[AuditRow]:
    yield _count("unread", "sentences that cannot be read back", len(sentences) - len(readings))
    by_id = {video.id: video for video in videos}
    untrue = 0
    for sentence in sentences:
        video = by_id[sentence.video_id]
        own = [s for s in video.shots if s.captioned and (s.start, s.end) == (sentence.start, sentence.end)]
        reading = readings.get(sentence.id)
        untrue += reading is None or mistakes(reading.claim, happenings(own, video.background)) > 0
    yield _count("untrue", "sentences untrue of their own moment", untrue)
    matches = true_videos([reading.claim for reading in readings.values()], videos)
    truth = dict(zip(readings, matches, strict=True))
    lacking = sum(len(videos_of - set(relevance.get(name, ()))) for name, videos_of in truth.items())
    extra = sum(len(set(videos_of) - truth.get(name, frozenset())) for name, videos_of in relevance.items())
    yield _count("false_negatives", "relevance sets: missing videos", lacking)
    yield _count("false_positives", "relevance sets: wrong videos", extra)


def _count(key: str, name: str, number: int) -> AuditRow:
    return AuditRow(key, name, str(number), "0", number == 0, number)


def _at_least(key: str, name: str, number: int, least: int) -> AuditRow:
    return AuditRow(key, name, str(number), f">= {least}", number >= least, number)


def _range(key: str, name: str, values: Iterable[int | float], low: int, high: int, rounded: float = 0.0) -> AuditRow:
    values, band = list(values), _span(low, high)
    if not values:
        return AuditRow(key, name, "none", band, False, None)
    least, most = min(values), max(values)
    ok = low - rounded <= least and most <= high + rounded
    return AuditRow(key, name, _span(least, most), band, ok, [least, most])


def _span(low: int | float, high: int | float) -> str:
    return f"{low:g}" if low == high else f"{low:g} - {high:g}"
