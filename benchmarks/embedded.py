"""What a frame of the embedded corpus costs, and how well its features hold what happens in a shot.

    python benchmarks/embedded.py [--size demo] [--data-root ROOT]

Cost: drawing a frame against encoding it, one thread, best of three rounds. Content: a ridge regression that is told
the shots of the training videos names the action of each test shot, from the mean embedding of its frames, from the
mean of how embeddings change, or from both.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from prvr.data import Corpus, load_encoder, open_corpus, write_corpus
from prvr.data.synthetic import Scenes, read_embedded_scenes, render
from prvr.data.synthetic.encoder import DIM
from prvr.data.synthetic.world import ACTIONS

RIDGE = 30.0


def best(work: Callable[[], object], rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def cost(scenes: Scenes) -> str:
    encoder, videos = load_encoder(), scenes.videos[:10]
    frames = np.concatenate([render(video) for video in videos])
    drawing = best(lambda: [render(video) for video in videos])
    encoding = best(lambda: encoder.encode_frames(frames))
    return f"drawing a frame takes {drawing / encoding:.2f} times as long as encoding it ({len(frames)} frames)"


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="demo")
    parser.add_argument("--data-root", help="folder that holds embedded-SIZE; default: it is made for this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = (
            open_corpus(args.data_root, f"embedded-{args.size}") if args.data_root else write_corpus(folder, args.size)
        )
        scenes = read_embedded_scenes(corpus)
        print(cost(scenes["test"]))
        train, test = (
            tuple(map(np.stack, zip(*shots(corpus, scenes[split]), strict=True))) for split in ("train", "test")
        )
    print(f"\nright names of {len(test[1])} test shots in %, chance {100 / len(ACTIONS):.0f}")
    print("and, where the pair is told, right ones of two opposites, chance 50")
    pairs = [f"{a}/{b}" for a, b in zip(ACTIONS[::2], ACTIONS[1::2], strict=True)]
    print(f"{'':14} {'all':>5}  " + "  ".join(pairs))
    for name, part in (("embedding", slice(0, DIM)), ("its change", slice(DIM, None)), ("both", slice(None))):
        scores = named(train, test, part)
        each = []
        for k in range(len(pairs)):
            own = test[1] // 2 == k
            each.append(np.mean((scores[own, 2 * k] < scores[own, 2 * k + 1]) == (test[1][own] % 2 == 1)))
        cells = "  ".join(f"{100 * share:{len(pair)}.0f}" for share, pair in zip(each, pairs, strict=True))
        print(f"{name:14} {100 * np.mean(scores.argmax(1) == test[1]):5.1f}  {cells}")


if __name__ == "__main__":
    main()
