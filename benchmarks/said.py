"""What lines of subtitles add to the ranking of a plain sentence: by all words, by some of them, by the cosine.

    python benchmarks/said.py --root ROOT --collection charades --dialogue tvr
    python benchmarks/said.py --root ROOT --collection toy-demo --dialogue tvr

Of moments with two captions or more, one caption is asked and another stands as a line of subtitles, at that time.
`charades` is a corpus with token features of a sentence encoder: its pictures are simulated as in `training_free.py`,
in the middle. `toy-demo` has pictures and sentences of the drawn encoder. Lines are the film's own captions, or as a
control captions of another corpus, which say nothing about the film. All films have lines, or one in ten.

A line enters the ranking by
    all words      its words hold all of the sentence (what prvr does)
    some words     they hold a share of the sentence's words above a margin, each weighted by log(lines / lines with it)
    cosine         its cosine with the sentence is more than a margin of robust deviations (1.4826 median absolute
                   deviations) above the median of all lines
and rankings are joined by reciprocal rank fusion. Margins are chosen on `val`: the one with the highest SumR over the
films' own captions among those that lose at most 1 over the captions of another corpus.

Rule, written before the first run: a way replaces `all words` if on `test`, with both encoders, (1) over the films' own
captions SumR is higher, with the 95 % interval of the difference over videos above 0, where all films have lines and
where one in ten has; (2) over the captions of another corpus SumR is at most 1 below that of pictures alone; (3) so it
is for the sentences about films without lines, where one film in ten has them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from _harness import environment, option, parse_options, show, write_figures
from prvr.data import Corpus, open_corpus
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.evaluation.significance import paired_test
from prvr.evaluation.zero_shot import has_zero_shot, zero_shot_scores
from prvr.search.ranking import fuse
from prvr.stages.joint_space import JointSplit
from prvr.video import Storage, SubtitleLine, open_featurizer
from training_free import MIDDLE, gallery, read, sentence_vectors, unit

LINES = 5  # of another corpus, for each film
SHARES = (1.0, 0.1)
SOME = (0.5, 0.6, 0.7, 0.8, 0.9)
COSINES = (3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


class Lines(NamedTuple):
    """Lines with their vectors and the number of the film of each."""

    texts: list[str]
    vectors: np.ndarray
    owner: np.ndarray

    def of(self, films: np.ndarray) -> "Lines":
        kept = np.flatnonzero(np.isin(self.owner, films))
        return Lines([self.texts[i] for i in kept], self.vectors[kept], self.owner[kept])


class World(NamedTuple):
    """The scores of the pictures, sentences with their vectors and films, and both kinds of lines."""

    pictures: np.ndarray
    texts: list[str]
    vectors: np.ndarray
    owner: np.ndarray
    own: Lines
    other: Lines


def world(corpus: Corpus, split: str, other: Corpus) -> World:
    content = corpus.split(split)
    texts = [caption.text for caption in content.captions]
    talk = [caption.text for name in ("train", "val", "test") for caption in other.split(name).captions]
    if has_zero_shot(corpus):
        vectors = unit(JointSplit(corpus, split).text_vectors.numpy().astype(np.float64))
        side = open_featurizer("toy")
        foreign = unit(np.stack([side.sentence(text) for text in talk]))
        pictures = zero_shot_scores(corpus, split).numpy()
    else:
        vectors = sentence_vectors(corpus, content)
        foreign = np.concatenate([sentence_vectors(other, other.split(name)) for name in ("train", "val", "test")])
        captions = read(corpus, split, len(content.video_ids))
        queries = captions.queries.vectors.astype(np.float32)
        frames = (video.frames for video in gallery(captions, MIDDLE))
        pictures = np.stack([(queries @ rows.T).max(1) for rows in frames], 1)
    groups = defaultdict(list)
    for number, caption in enumerate(content.captions):
        moment = content.moments[caption.id]
        groups[caption.video_id, moment.start, moment.end].append(number)
    numbers = {video: number for number, video in enumerate(content.video_ids)}
    lines = [members[0] for members in groups.values()]
    asked = [some[-1] for some in groups.values() if words(texts[some[-1]]) != words(texts[some[0]])]
    films = np.array([numbers[caption.video_id] for caption in content.captions])
    spoken = np.random.default_rng(0).choice(len(talk), LINES * len(numbers))
    return World(
        pictures[asked],
        [texts[i] for i in asked],
        vectors[asked],
        films[asked],
        Lines([texts[i] for i in lines], vectors[lines], films[lines]),
        Lines([talk[i] for i in spoken], foreign[spoken], np.repeat(np.arange(len(numbers)), LINES)),
    )


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


Way = Callable[[Lines, str, np.ndarray], np.ndarray]
"""The score of each line for a sentence and its vector; -inf for lines that do not enter."""


def by_all_words(lines: Lines, folder: Path) -> Way:
    """What prvr does."""
    storage = Storage(folder)
    for film in np.unique(lines.owner):
        said = [SubtitleLine(float(i), float(i) + 1, lines.texts[i]) for i in np.flatnonzero(lines.owner == film)]
        storage.add_subtitles(str(film), said)
    shas = [str(film) for film in np.unique(lines.owner)]

    def scores(lines: Lines, text: str, vector: np.ndarray) -> np.ndarray:
        found = np.full(len(lines.texts), -np.inf)
        for _, score, line in storage.find_lines(text, shas):
            found[int(line.start)] = score
        return found

    return scores


def by_some_words(margin: float, lines: Lines) -> Way:
    held = [set(words(text)) for text in lines.texts]
    counts = Counter(word for some in held for word in some)

    def scores(lines: Lines, text: str, vector: np.ndarray) -> np.ndarray:
        weights = {word: np.log((len(held) + 1) / (counts[word] + 0.5)) for word in set(words(text))}
        found = np.array([sum(weights[word] for word in some & weights.keys()) for some in held]) / sum(
            weights.values()
        )
        return np.where(found > margin, found, -np.inf)

    return scores


def by_cosine(margin: float) -> Way:
    def scores(lines: Lines, text: str, vector: np.ndarray) -> np.ndarray:
        cosines = lines.vectors @ vector
        middle = np.median(cosines)
        deviation = 1.4826 * np.median(np.abs(cosines - middle))
        return np.where(cosines - middle > margin * deviation, cosines, -np.inf)

    return scores


def ranks(world: World, lines: Lines, ways: list[Way]) -> np.ndarray:
    """The rank of the right film for each sentence, by pictures and the lines that enter by any of the ways."""
    found = []
    for text, vector, owner, pictures in zip(world.texts, world.vectors, world.owner, world.pictures, strict=True):
        rankings = [np.argsort(-pictures, kind="stable").tolist()]
        for way in ways:
            scores = way(lines, text, vector)
            order = [int(lines.owner[i]) for i in np.argsort(-scores, kind="stable") if scores[i] > -np.inf]
            rankings.append(list(dict.fromkeys(order)))
        found.append(fuse(*rankings).index(owner) + 1)
    return np.array(found)


def sumr(places: np.ndarray) -> float:
    import torch

    return RetrievalMetrics.from_ranks(torch.from_numpy(places)).sumr


def tables(world: World, chosen: dict[str, float] | None) -> dict[tuple[str, float, str], dict[str, np.ndarray]]:
    """Ranks by kind of lines, share of films and way; of all margins, or of those that were chosen."""
    found: dict[tuple[str, float, str], dict[str, np.ndarray]] = {}
    for kind, everything in (("own", world.own), ("other", world.other)):
        for share in SHARES:
            films = np.random.default_rng(1).permutation(world.pictures.shape[1])
            lines = everything.of(films[: round(share * len(films))])
            with TemporaryDirectory() as folder:
                exact = by_all_words(lines, Path(folder))
                ways: dict[str, list[Way]] = {"pictures": [], "all words": [exact]}
                for margin in SOME if chosen is None else (chosen["some words"],):
                    ways[f"some words > {margin:g}"] = [by_some_words(margin, lines)]
                for margin in COSINES if chosen is None else (chosen["cosine"],):
                    ways[f"cosine > {margin:g}"] = [by_cosine(margin)]
                    ways[f"all words, cosine > {margin:g}"] = [exact, by_cosine(margin)]
                found[kind, share, ""] = {name: ranks(world, lines, some) for name, some in ways.items()}
            with_lines = np.isin(world.owner, lines.owner)
            if share < 1:
                found[kind, share, "films without lines"] = {
                    name: places[~with_lines] for name, places in found[kind, share, ""].items()
                }
    return found


def choose(found: dict[tuple[str, float, str], dict[str, np.ndarray]], stem: str, margins: tuple[float, ...]) -> float:
    def gain(margin: float, kind: str) -> float:
        tables = [table for (name, _, part), table in found.items() if name == kind and not part]
        return min(sumr(table[f"{stem} > {margin:g}"]) - sumr(table["pictures"]) for table in tables)

    harmless = [margin for margin in margins if gain(margin, "other") >= -1] or [margins[-1]]
    return max(harmless, key=lambda margin: gain(margin, "own"))


def main() -> None:
    args = parse_options(
        __doc__,
        root=option("data", "folder of collections, as --data-root of prvr train"),
        collection="charades",
        dialogue=option("tvr", "the other corpus"),
    )
    print(environment())
    corpus, other = open_corpus(args.root, args.collection), open_corpus(args.root, args.dialogue)
    tuned = tables(world(corpus, "val", other), None)
    chosen = {"some words": choose(tuned, "some words", SOME), "cosine": choose(tuned, "cosine", COSINES)}
    print(f"margins chosen on val: {chosen}")
    asked = world(corpus, "test", other)
    print(f"{len(asked.texts)} sentences, {asked.pictures.shape[1]} films, {len(asked.own.texts)} lines")
    written = []
    for (kind, share, part), table in tables(asked, chosen).items():
        films = np.random.default_rng(1).permutation(asked.pictures.shape[1])
        lined = np.isin(asked.owner, films[: round(share * len(films))])
        owner = asked.owner[~lined] if part else asked.owner
        rows = []
        for name, places in table.items():
            cells = [name, f"{100 * (places == 1).mean():.1f}", f"{sumr(places):.1f}"]
            for base in ("pictures", "all words"):
                lead = paired_test(table[base], places, owner)["sumr"]
                cells.append(f"{lead.value:+.1f} ({lead.interval.low:+.1f} to {lead.interval.high:+.1f})")
            rows.append(cells)
        title = (
            f"{args.collection}, lines: {kind}, films with lines: {share:.0%}{', sentences about ' * bool(part)}{part}"
        )
        show(title, ["", "R@1", "SumR", "minus pictures", "minus all words"], rows)
        written.append({"title": title, "rows": rows})
    write_figures(args, written)


if __name__ == "__main__":
    main()
