"""What a change of this repository costs: training, evaluation, extraction and search, this checkout over another one.

    git worktree add ../before COMMIT
    python benchmarks/against.py --other ../before

Each checkout runs in a process of its own, with its sources first on the path; the two take turns. The table has the
ratio of their times, this over the other: the median over rounds with the lowest and the highest. Without --other the
checkout is compared with itself, which says what noise alone does.

training step: forward, losses with hard negatives, backward, update, at the size of the papers, on noise
batches:       a pass over a split of noise at the size of the papers, 32 videos at a time
evaluation:    a split of a toy corpus, encoded and ranked, `hybrid-toy`
extraction:    a film of noise that moves, 360 lines, 25 frames per second, with the `toy` encoder
search:        one sentence, zero-shot, over an index of films of noise

With --late it is late interaction alone (MaxSim, forward and backward, 3 captions of 20 words for each video of 64
frames, 256 wide), beside the plain form that keeps every product, in time and in the most memory that a pass adds.
"""

import importlib
import inspect
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from _harness import (
    ROOT,
    Comparison,
    Contender,
    Measured,
    Tasks,
    compare,
    environment,
    memory_of,
    option,
    parse_options,
    show,
    write_figures,
)

PROCESS = ExitStack()  # of a checkout's process, which has the settings that the trainer makes
SMALL = {"model.hidden": 32, "model.video_dim": 64, "model.query_dim": 48}
PRESETS = {"hybrid-tvr": SMALL | {"model.lorentz_dim": 31}, "dreamprvr-tvr": SMALL}
"""The presets whose steps are timed, and what makes them small."""


def first_of(*places: str) -> Any:
    """The object at the first place, "module:name", that this checkout has: newer names come first."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"this checkout has none of {', '.join(places)}")


def toy() -> str:
    """The name of the toy corpus and its encoder in this checkout."""
    return "toy" if "hybrid-toy" in first_of("prvr.config:preset_names")() else "embedded"


def tasks(folder: str, videos: int, small: bool) -> Tasks:
    """All that is timed, from the checkout whose sources come first on the path."""
    import prvr

    print(f"timing {Path(prvr.__file__).parent}", flush=True)
    with suppress(ImportError):  # an older checkout's trainer does not
        PROCESS.enter_context(first_of("prvr.training.processes:kept_memory")())
    work = Path(tempfile.mkdtemp(dir=folder))
    configs = {preset: prvr.load_config(preset, keys if small else {}) for preset, keys in PRESETS.items()}
    steps = {f"training step, {preset}": training_step(config, videos) for preset, config in configs.items()}
    return steps | {
        "batches": batches(work, 8 if small else 64),
        "evaluation of a split": evaluation(work, small),
        "extraction": extraction(work, 2.0 if small else 30.0),
        "search": search(work, 4 if small else 24),
    }


def training_step(config: Any, videos: int) -> Callable[[], object]:
    """Forward, losses with hard negatives, backward and update, on one batch of noise."""
    import prvr

    model, batch = config.model, noise_batch(config.model, videos)
    retriever = first_of("prvr.models:build_retriever", "prvr:Retriever")(model).train()
    try:  # losses train the register generator that they are given
        objective = prvr.Objective(config.loss, model, retriever.registers).train()
    except TypeError:
        objective = prvr.Objective(config.loss, model).train()
    build = first_of("prvr.training:build_optimizer", "prvr.training.optimizer:build_optimizer")
    optimizer, schedule = build(config, retriever, objective, 20_000)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        objective(retriever(batch), batch, negatives="hard")["total"].backward()
        if schedule is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, config.optim.max_grad_norm)
        optimizer.step()
        if schedule is not None:
            schedule.step()

    return step


def noise_batch(model: Any, videos: int, captions: int = 5, most: int = 90) -> Any:
    """Videos of 30 to `most` frames and 32 clips, captions of 5 to 30 words."""
    import prvr

    frames = torch.randint(30, most + 1, (videos,)).clamp(max=model.max_frames)
    words = torch.randint(5, 31, (captions * videos,)).clamp(max=model.max_words)
    longest = int(frames.max())
    return prvr.Batch(
        clips=torch.randn(videos, model.num_clips, model.video_dim),
        frames=torch.randn(videos, longest, model.video_dim),
        frame_mask=torch.arange(longest) < frames[:, None],
        words=torch.randn(captions * videos, model.max_words, model.query_dim),
        word_mask=torch.arange(model.max_words) < words[:, None],
        query_to_video=torch.arange(videos).repeat_interleave(captions),
    )


def batches(work: Path, videos: int) -> Callable[[], object]:
    import numpy as np

    data, rng = importlib.import_module("prvr.data"), np.random.default_rng(0)
    names = [f"video{i:05d}" for i in range(videos)]
    texts = [data.Caption(f"{name}#enc#{k}", name, "noise") for name in names for k in range(5)]
    data.write_layout(
        work / "noise",
        data.TextData({"train": texts}),
        videos=((name, rng.standard_normal((rng.integers(20, 160), 1024))) for name in names),
        queries=((text.id, rng.standard_normal((rng.integers(6, 30), 768))) for text in texts),
    )
    packed = data.pack(data.open_corpus(work, "noise"), "train", cache_dir=work)
    return partial(deque, getattr(data, "VideoLoader", getattr(data, "make_loader", None))(packed, 32), 0)


def extraction(work: Path, seconds: float) -> Callable[[], object]:
    encoder = first_of("prvr.encoders:open_encoder", "prvr.video:open_encoder")(toy())
    film = write_film(work / "film.mp4", seconds, 360)
    encode, opened = (first_of(f"prvr_search.films:{x}", f"prvr.video:{x}") for x in ("encode_video", "open_video"))

    def run() -> None:
        with opened(film) as video:
            encode(video, encoder, 2.0)

    return run


def evaluation(work: Path, small: bool) -> Callable[[], object]:
    import prvr

    name = toy()
    where = {"data.collection": f"{name}-tiny", "data.cache_dir": str(work)}
    config = prvr.load_config(
        f"hybrid-{name}", where | ({"model.hidden": 32, "model.lorentz_dim": 31} if small else {})
    )
    splits = first_of("prvr.training:open_splits", "prvr.training.splits:open_splits")(config)
    evaluate = first_of("prvr.evaluation:evaluate", "prvr.evaluation.rank:evaluate")
    run = partial(evaluate, prvr.Retriever(config.model).eval(), splits.train)
    try:  # the settings of an evaluation are a record now
        return partial(run, first_of("prvr.evaluation:EvaluationConfig")(bootstrap=0))
    except ImportError:
        return partial(run, bootstrap=0)


def search(work: Path, videos: int) -> Callable[[], object]:
    films = work / "films"
    films.mkdir()
    for number in range(videos):
        write_film(films / f"film{number:03}.mp4", 12.0, 96, seed=number)
    library = first_of("prvr_search:Library", "prvr:Library", "prvr.search:Library")
    place = "home" if "home" in inspect.signature(library).parameters else "state"
    opened = library(films, encoder=toy(), device="cpu", **{place: work / "library"})
    opened.update()
    return partial(opened.index.search, "a red square moves to the left")


def write_film(path: Path, seconds: float, height: int, seed: int = 0) -> Path:
    """A film of noise that moves, H.264, 25 frames per second."""
    import av
    import numpy as np

    width = height * 16 // 9 // 2 * 2
    coarse = np.random.default_rng(seed).integers(0, 255, (height // 8, width // 8, 3), np.uint8)
    picture = coarse.repeat(8, 0).repeat(8, 1)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = *picture.shape[:2], "yuv420p"
        for number in range(round(25 * seconds)):
            frame = av.VideoFrame.from_ndarray(np.roll(picture, 2 * number, 1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def late_interaction(videos: int, plain: bool) -> Tasks:
    """MaxSim of words with frames and its gradients, as this checkout has it or by the product of all."""
    words, frames = torch.randn(3 * videos, 20, 256), torch.randn(videos, 64, 256)
    mask, weights = torch.ones(3 * videos, 20, dtype=torch.bool), torch.full((3 * videos, 20), 1 / 20)

    def score(words: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
        if not plain:
            return first_of("prvr.scoring:word_scores")(words, mask, weights, frames)
        rows = (torch.nn.functional.normalize(x, dim=-1) for x in (words, frames))
        return (torch.einsum("qwd,vfd->qwvf", *rows).amax(3) * weights[..., None]).sum(1)

    def step() -> None:
        score(words.requires_grad_(), frames.requires_grad_()).square().sum().backward()

    if videos > 1:  # what torch imports at its first step is no memory of it
        late_interaction(1, plain)["late interaction"]()
    return {"late interaction": step}


def added_memory(run: Callable[[], object]) -> Measured:
    """The most bytes that a call adds to those of its process, which has not called it before."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak of Linux begins anew
    before = memory_of("self")["VmHWM"]
    run()
    return {"bytes": memory_of("self")["VmHWM"] - before}


def compare_late(options: Any, other: Path) -> Comparison:
    contenders = [Contender("this", late_interaction, (options.videos, False), sources(ROOT))]
    contenders += [Contender("other", late_interaction, (options.videos, False), sources(other))]
    contenders += [Contender("plain", late_interaction, (options.videos, True), sources(ROOT))]
    memory = compare(contenders, rounds=1, threads=options.threads, measure=added_memory)
    time = compare(contenders, rounds=options.rounds, threads=options.threads)
    measured = (time, "seconds"), (memory, "bytes")
    rows = [
        [name, *(each.ratio("late interaction", name, "this", what) for each, what in measured)]
        for name in ("other", "plain")
    ]
    show("late interaction over that of this checkout", ["what", "time", "memory"], rows)
    return time


def sources(checkout: Path) -> tuple[str, ...]:
    """The folders of the packages of a checkout."""
    folders = tuple(str(path) for path in sorted(checkout.resolve().glob("packages/*/src")))
    if not folders:
        raise SystemExit(f"{checkout}: no packages/*/src in it; give the top folder of a checkout")
    return folders


def main() -> None:
    options = parse_options(
        __doc__,
        other=option(None, "top folder of the other checkout; default: this one", type=Path),
        videos=option(32, "videos in a batch, with 5 captions each"),
        rounds=3,
        small=option(False, "toy sizes, to see that it works"),
        late=option(False, "late interaction alone, with its memory"),
    )
    print(environment())
    if options.late:
        write_figures(options, compare_late(options, options.other or ROOT).figures())
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, 4 if options.small else options.videos, options.small)
        here = Contender("this", tasks, arguments, sources(ROOT))
        there = Contender("other", tasks, arguments, sources(options.other or ROOT))
        comparison = compare([here, there], rounds=options.rounds, threads=options.threads)
    rows = [[task, comparison.ratio(task, "this", "other")] for task in comparison]
    show("time of this checkout over that of the other", ["what", "median (lowest-highest)"], rows)
    write_figures(options, comparison.figures())


if __name__ == "__main__":
    main()
