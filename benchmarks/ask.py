"""More ways to ask, on the toy world: by picture, by moment, with and without a sentence, and copies encoded anew.

    python benchmarks/ask.py          # the 160 test videos of the demo corpus, without training: some minutes
    python benchmarks/ask.py --quick  # the tiny corpus: that it runs, not how well

Intervals are of a bootstrap over films. Whoever asks by picture has drawn the shot anew, with other places, another
tint and other noise: the picture is the middle of that shot, on the ground of the film or on another one. Whoever asks
by moment points at the shot in its film, which is left out, as are queries whose film is the only right one.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import av
import numpy as np

from _harness import option, parse_options, show, write_figures
from confidence import indexed
from prvr import Query
from prvr.data import open_corpus
from prvr.data.synthetic import read_toy_scenes, render, render_frames
from prvr.data.synthetic.grammar import BACKGROUND_WORDS
from prvr.data.synthetic.mp4 import write_mp4
from prvr.data.synthetic.near_misses import relevance
from prvr.data.synthetic.timelines import one_detail_changed
from prvr.data.synthetic.world import BACKGROUNDS, FPS, Shot, Thing, Video
from prvr.evaluation.significance import bootstrap_intervals
from prvr.search import VideoIndex
from prvr.search.query import WITHOUT
from prvr.search.ranking import video_scores
from prvr.video import encode_video, open_encoder, open_video

WEIGHTS = (0.25, 0.5, 0.75, 1.0)
SMALLER, CRF = 160, 36  # pixels of a side, where the films have 256, and the quality of what is encoded anew
Looks = tuple[str, str]


def drawn_anew(shot: Shot, background: str, seed: int) -> np.ndarray:
    """The middle frame of a shot that is drawn another time."""
    again = replace(shot, start=0.0, end=4.0)
    return render_frames(Video("asked", 4.0, background, False, seed, (again,)), [4])[0]


def scored(index: VideoIndex, vectors: Sequence[np.ndarray]) -> np.ndarray:
    return video_scores(index.source, np.stack(vectors), None)


def first_right(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The rank of the best right film of each query; a film that is left out has the score -inf."""
    best = np.where(right, scores, -np.inf).max(1)
    return 1 + (scores > best[:, None]).sum(1)


def rate(ranks: np.ndarray, films: np.ndarray) -> list[str]:
    """R@1 in percent with its interval, and how many queries there are."""
    interval = bootstrap_intervals(ranks, films)["r1"]
    return [f"{100 * np.mean(ranks == 1):.1f} ({interval.low:.1f} to {interval.high:.1f})", f"{len(ranks):,}"]


def chance(right: np.ndarray, left_out: int = 0) -> str:
    return f"{100 * float(np.mean(right.sum(1) / (right.shape[1] - left_out))):.1f}"


def looks(thing: Thing) -> Looks:
    return thing.shape, thing.colour


def said(look: Looks) -> str:
    return f"a {look[1]} {look[0]}"


def asked_of_shots(index: VideoIndex, videos: Sequence[Video], sentences: Sequence) -> dict[str, list[str]]:
    """By sentence, by picture and by moment of the same shots."""
    number = {name: at for at, name in enumerate(index.video_ids)}
    by_id, rng = {video.id: video for video in videos}, np.random.default_rng(0)
    true = relevance({one.id: one.claim for one in sentences}, videos)
    claimed = np.zeros((len(sentences), len(number)), bool)
    shown = np.zeros_like(claimed)
    seen = {video.id: {looks(thing) for shot in video.shots for thing in shot.things} for video in videos}
    vectors: dict[str, list[np.ndarray]] = {
        name: [] for name in ("a sentence", "same", "other", "moment", "all", "thing")
    }
    for row, one in enumerate(sentences):
        video = by_id[one.video_id]
        shot = next(shot for shot in video.shots if shot.start == one.start and shot.captioned)
        assert shot.actor is not None
        claimed[row, [number[name] for name in true[one.id]]] = True
        shown[row, [number[name] for name, things in seen.items() if looks(shot.actor) in things]] = True
        ground = str(rng.choice([other for other in BACKGROUNDS if other != video.background]))
        seed, middle = int(rng.integers(2**31)), (shot.start + shot.end) / 2
        for name, query in (
            ("a sentence", one.text),
            ("thing", said(looks(shot.actor))),
            ("same", Query(image=drawn_anew(shot, video.background, seed))),
            ("other", Query(image=drawn_anew(shot, ground, seed))),
            ("moment", Query(like=(one.video_id, middle))),
            ("all", Query(like=(one.video_id, shot.start, shot.end))),
        ):
            vectors[name].append(index.encode(query))
    own = np.array([number[one.video_id] for one in sentences])
    rows = {}
    every = {name: scored(index, some) for name, some in vectors.items()}
    for scores, left_out in ((every, False), (every, True)):
        if left_out:
            for some in scores.values():
                some[np.arange(len(own)), own] = -np.inf
            for right in (claimed, shown):
                right[np.arange(len(own)), own] = False
        kept = [right.any(1) for right in (claimed, shown)]
        names = (
            {"a sentence, own film left out": "a sentence", "its middle": "moment", "all of it": "all"}
            if left_out
            else {
                "a sentence": "a sentence",
                "the thing in words": "thing",
                "a picture": "same",
                "on other ground": "other",
            }
        )
        rows["chance, own film left out" if left_out else "chance"] = [
            part
            for right, keep in zip((claimed, shown), kept, strict=True)
            for part in (chance(right[keep], left_out), "")
        ]
        for title, name in names.items():
            rows[title] = [
                part
                for right, keep in zip((claimed, shown), kept, strict=True)
                for part in rate(first_right(scores[name][keep], right[keep]), own[keep])
            ]
    return rows


def with_and_without(index: VideoIndex, videos: Sequence[Video], most: int) -> dict[str, dict[str, list[str]]]:
    """What a second part changes, on queries for which it matters: both kinds of film are there."""
    rng = np.random.default_rng(1)
    shots = [[(frozenset(map(looks, shot.things)), video.background) for shot in video.shots] for video in videos]
    number = {video.id: at for at, video in enumerate(videos)}
    order = [number[name] for name in index.video_ids]
    shots = [shots[at] for at in order]
    every = sorted({look for film in shots for things, _ in film for look in things})

    def films(true: Callable[[frozenset[Looks], str], bool]) -> np.ndarray:
        return np.array([any(true(*shot) for shot in film) for film in shots])

    def chosen(cases: list) -> list:
        return [cases[at] for at in sorted(rng.permutation(len(cases))[:most].tolist())]

    things, grounds, both = [], [], []
    for a in every:
        for b in every:
            if a != b:
                right = films(lambda seen, _, a=a, b=b: a in seen and b not in seen)
                wrong = films(lambda seen, _, a=a, b=b: a in seen and b in seen) & ~right
                if right.any() and wrong.any():
                    things.append((a, said(b), right, wrong))
                pair = films(lambda seen, _, a=a, b=b: a in seen and b in seen)
                if a < b and pair.any():
                    both.append((a, b, pair, films(lambda seen, _, a=a: a in seen) & ~pair))
        for ground in BACKGROUNDS:
            right = films(lambda seen, where, a=a, g=ground: a in seen and where != g)
            wrong = films(lambda seen, where, a=a, g=ground: a in seen and where == g)
            if right.any() and wrong.any():
                grounds.append((a, BACKGROUND_WORDS[ground][0], right, wrong, ground))

    def measured(
        vectors: Sequence[np.ndarray], right: np.ndarray, wrong: np.ndarray, clusters: np.ndarray
    ) -> list[str]:
        scores = scored(index, vectors)
        first = scores.argmax(1)
        mistaken = 100 * float(np.mean(wrong[np.arange(len(first)), first]))
        return [*rate(first_right(scores, right), clusters)[:1], f"{mistaken:.1f}"]

    def study(cases: Sequence, wanted: Callable) -> dict[str, list[str]]:
        right, wrong = (np.stack([case[at] for case in cases]) for at in (2, 3))
        clusters = np.array([every.index(case[0]) for case in cases])
        plus = np.stack([index.encode(wanted(case)) for case in cases])
        minus = np.stack([index.encode(case[1]) for case in cases])
        rows = {f"chance, {len(cases)} queries": [chance(right), chance(wrong)]}
        rows["as it is"] = measured(list(plus), right, wrong, clusters)
        words = (
            [index.encode(f"{wanted(case)} without {case[1]}") for case in cases]
            if isinstance(wanted(cases[0]), str)
            else None
        )
        if words is not None:
            rows["in one sentence: ... without ..."] = measured(words, right, wrong, clusters)
        for weight in WEIGHTS:
            moved = plus - weight * minus
            rows[f"without, weight {weight:g}"] = measured(
                list(moved / np.linalg.norm(moved, axis=1, keepdims=True)), right, wrong, clusters
            )
        one = index.encode(Query(wanted(cases[0]), cases[0][1])) if words is not None else None
        if one is not None:  # what is measured is what the program does
            np.testing.assert_allclose(one, unit(plus[0] - WITHOUT * minus[0]), atol=1e-5)
        return rows

    found = {}
    some = chosen(things)
    found["a thing without another thing"] = study(some, lambda case: said(case[0]))
    some = chosen(grounds)
    found["a thing without a ground"] = study(some, lambda case: said(case[0]))
    pictures = {}
    for case in some:
        thing = Thing(*case[0], "large")
        pictures[id(case)] = Query(image=drawn_anew(Shot(0.0, 4.0, bystanders=(thing,)), case[4], len(pictures)))
    found["a picture of a thing on a ground, without this ground"] = study(some, lambda case: pictures[id(case)])

    some = chosen(both)
    right, wrong = (np.stack([case[at] for case in some]) for at in (2, 3))
    clusters = np.array([every.index(case[0]) for case in some])
    pictures = [
        drawn_anew(Shot(0.0, 4.0, bystanders=(Thing(*case[0], "large"),)), BACKGROUNDS[n % len(BACKGROUNDS)], n)
        for n, case in enumerate(some)
    ]
    asked = {
        "the first thing alone": [said(a) for a, *_ in some],
        "in one sentence": [f"{said(a)} and {said(b)}" for a, b, *_ in some],
        "two sentences": [Query([said(a), said(b)]) for a, b, *_ in some],
        "a picture of the first": [Query(image=one) for one in pictures],
        "a picture and a sentence": [Query(said(case[1]), image=one) for case, one in zip(some, pictures, strict=True)],
    }
    found["two things in one shot"] = {f"chance, {len(some)} queries": [chance(right), chance(wrong)]} | {
        name: measured([index.encode(query) for query in queries], right, wrong, clusters)
        for name, queries in asked.items()
    }
    return found


def unit(row: np.ndarray) -> np.ndarray:
    return row / np.linalg.norm(row)


def encoded_anew(source: Path, target: Path) -> None:
    """The film again, smaller and of low quality."""
    with av.open(str(source)) as film, av.open(str(target), "w") as made:
        stream = made.add_stream("libx264", rate=24, options={"crf": str(CRF)})
        stream.width = stream.height = SMALLER
        stream.pix_fmt = "yuv420p"
        step = 0
        for frame in film.decode(video=0):
            picture = frame.reformat(SMALLER, SMALLER)
            for _ in range(round(24 / FPS)):
                again = av.VideoFrame.from_ndarray(picture.to_ndarray(format="rgb24"), format="rgb24")
                again.pts, step = step, step + 1
                made.mux(stream.encode(again))
        made.mux(stream.encode(None))


def near_copies(videos: Sequence[Video], folder: Path, most: int) -> dict[str, list[str]]:
    """How alike are a film and itself encoded anew, and a film and one of which one shot differs in one detail?"""
    encoder, rng = open_encoder("toy"), np.random.default_rng(2)

    def rows(path: Path) -> np.ndarray:
        with open_video(path) as film:
            found = encode_video(film, encoder, FPS)[:, : encoder.joint_dim]
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    alike: dict[str, list[tuple[float, float]]] = {"encoded anew": [], "one detail of one shot differs": []}
    for video in videos[:most]:
        at = int(rng.choice([n for n, shot in enumerate(video.shots) if shot.captioned]))
        other = replace(video, shots=(*video.shots[:at], changed(video.shots[at], rng), *video.shots[at + 1 :]))
        paths = [folder / f"{video.id}{kind}.mp4" for kind in ("", "-anew", "-other")]
        write_mp4(paths[0], render(video))
        encoded_anew(paths[0], paths[1])
        write_mp4(paths[2], render(other))
        film, *others = map(rows, paths)
        for name, one in zip(alike, others, strict=True):
            length = min(len(film), len(one))
            cosines = (film[:length] * one[:length]).sum(1)
            alike[name].append((float(cosines.min()), float(cosines.mean())))
        for path in paths:
            path.unlink()
    table = {}
    for name, pairs in alike.items():
        low, mean = np.array(pairs).T
        table[name] = [f"{np.quantile(part, share):.3f}" for part in (low, mean) for share in (0.05, 0.5, 0.95)]
    copies, others = (np.array(pairs) for pairs in alike.values())
    levels = np.quantile(copies, 0.05, axis=0)
    taken = 100 * np.mean(others >= levels, axis=0)
    table["taken for copies, where 95 % of the copies are (%)"] = ["", f"{taken[0]:.0f}", "", "", f"{taken[1]:.0f}", ""]
    return table


def changed(shot: Shot, rng: np.random.Generator) -> Shot:
    while (other := one_detail_changed(shot, rng)) == shot:
        pass
    return other


def main() -> None:
    args = parse_options(
        __doc__,
        quick=option(False, "the tiny corpus"),
        queries=option(400, "of each study of two parts"),
        copies=option(40, "films that are encoded anew"),
    )
    with tempfile.TemporaryDirectory() as name:
        run(args, Path(name))


def run(args: argparse.Namespace, folder: Path) -> None:
    size = "tiny" if args.quick else "demo"
    index, _ = indexed(folder, size)
    scenes = read_toy_scenes(open_corpus(folder, f"toy-{size}"))["test"]
    with index:
        shots = asked_of_shots(index, scenes.videos, scenes.sentences)
        parts = with_and_without(index, scenes.videos, 20 if args.quick else args.queries)
    count = len(scenes.videos)
    show(
        f"R@1 (%) by a sentence, a picture and a moment, {count} videos",
        ["asked by", "what the caption says", "queries", "the thing that acts", "queries"],
        [[name, *cells] for name, cells in shots.items()],
    )
    for title, rows in parts.items():
        show(title, ["", "R@1 (%)", "wrong film first (%)"], [[name, *cells] for name, cells in rows.items()])
    copies = near_copies(scenes.videos, folder, 3 if args.quick else args.copies)
    show(
        "cosines of a film, frame by frame, with another one",
        ["quantiles over films", *(f"{of}, {share} %" for of in ("lowest", "mean") for share in (5, 50, 95))],
        [[name, *cells] for name, cells in copies.items()],
    )
    write_figures(args, {"videos": count, "shots": shots, "parts": parts, "copies": copies})


if __name__ == "__main__":
    main()
