"""What a frame of the toy corpus costs, and how well its features hold what happens in a shot.

    python benchmarks/toy.py [--size demo] [--data-root ROOT]

Cost: drawing a frame against encoding it, one thread, best of three rounds. Content: a ridge regression that is told
the shots of the training videos names the action of each test shot, from the mean embedding of its frames, from the
mean of how embeddings change, or from both.
"""

import tempfile
from collections.abc import Iterator

import numpy as np

from _harness import Contender, Tasks, compare, environment, option, parse_options, show, write_figures
from prvr.data import Corpus, load_encoder, open_corpus, write_corpus
from prvr.data.synthetic import Scenes, read_toy_scenes, render
from prvr.data.synthetic.encoder import DIM
from prvr.data.synthetic.world import ACTIONS

RIDGE = 30.0


def tasks(root: str, collection: str, drawing: bool) -> Tasks:
    """Ten videos drawn, or their frames encoded."""
    videos = read_toy_scenes(open_corpus(root, collection))["test"].videos[:10]
    if drawing:
        return {"frames": lambda: [render(video) for video in videos]}
    encoder, frames = load_encoder(), np.concatenate([render(video) for video in videos])
    return {"frames": lambda: encoder.encode_frames(frames)}


def shots(corpus: Corpus, scenes: Scenes) -> Iterator[tuple[np.ndarray, int]]:
    """Mean features of the inner frames of each shot in which something happens, and what."""
    with corpus.open_features() as features:
        for video in scenes.videos:
            x, times = features.read(video.id), video.frame_times()
            for shot in video.shots:
                inside = np.flatnonzero((times >= shot.start) & (times < shot.end))[1:-1]
                if shot.action is not None and len(inside) >= 2:
                    yield x[inside].mean(0), ACTIONS.index(shot.action)


def named(train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], part: slice) -> np.ndarray:
    """(shots, actions) scores of a ridge regression."""
    x, y = train[0][:, part], test[0][:, part]
    mean, deviation = x.mean(0), x.std(0) + 1e-9
    x, y = (np.c_[(rows - mean) / deviation, np.ones(len(rows))] for rows in (x, y))
    return y @ np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ np.eye(len(ACTIONS))[train[1]])


def main() -> None:
    args = parse_options(
        __doc__,
        size="demo",
        data_root=option(None, "folder that holds toy-SIZE; default: it is made for this"),
        rounds=3,
    )
    print(environment())
    with tempfile.TemporaryDirectory() as folder:
        root = args.data_root or folder
        corpus = open_corpus(root, f"toy-{args.size}") if args.data_root else write_corpus(root, args.size)
        scenes = read_toy_scenes(corpus)
        sides = [Contender(way, tasks, (root, corpus.name, way == "drawing")) for way in ("drawing", "encoding")]
        cost = compare(sides, rounds=args.rounds, threads=args.threads)
        train, test = (
            tuple(map(np.stack, zip(*shots(corpus, scenes[split]), strict=True))) for split in ("train", "test")
        )
    print(f"drawing a frame over encoding it, time: {cost.ratio('frames', 'drawing', 'encoding')}")
    pairs = [f"{a}/{b}" for a, b in zip(ACTIONS[::2], ACTIONS[1::2], strict=True)]
    rows = []
    for name, part in (("embedding", slice(0, DIM)), ("its change", slice(DIM, None)), ("both", slice(None))):
        scores = named(train, test, part)
        each = []
        for k in range(len(pairs)):
            own = test[1] // 2 == k
            each.append(np.mean((scores[own, 2 * k] < scores[own, 2 * k + 1]) == (test[1][own] % 2 == 1)))
        rows.append([name, f"{100 * np.mean(scores.argmax(1) == test[1]):.1f}", *(f"{100 * x:.0f}" for x in each)])
    title = f"right names of {len(test[1])} test shots in %, chance {100 / len(ACTIONS):.0f}"
    note = "a pair is told: right ones of two opposites, chance 50"
    show(title, ["features", "all", *pairs], rows, note=note)
    write_figures(args, {"cost": cost.figures(), "content": rows})


if __name__ == "__main__":
    main()
