"""Every kind of file that prvr reads, damaged in every way that `fuzzing` knows, read in a process of its own."""

import os
import resource
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from commands import SMALL
from damaged_films import sound_films
from file_formats import READERS, Reader
from fuzzing import damages
from golden import Golden
from search_files import TOY, make_features, make_index, some_videos

from prvr.config import Config, load_config
from prvr.corpora import benchmark_of
from prvr.corpora.corpus_encoders import corpus_encoders
from prvr.data import Caption, Moment, PackedSplit, TextData, open_corpus, pack, write_layout
from prvr.errors import PrvrError
from prvr.evaluation.report import EvaluationReport
from prvr.models import load_pretrained
from prvr.models.pretrained import model_files
from prvr.released.checkpoint_files import convert_checkpoint
from prvr.search import Library, VideoIndex
from prvr.stages import load_rerankers
from prvr.training import open_splits, read_reranker_config, reranker_run_config, train, train_reranker
from prvr.training.checkpoint import load_state
from prvr.video import Storage
from prvr.video.storage import encoder_key

SECONDS = 30
"""A case that takes longer counts as a hang."""

GROWTH = 800
"""MiB by which reading a damaged file may raise the memory of the process."""


@dataclass(frozen=True)
class Item:
    """Something on disk that prvr reads.

    Args:
        name: of its kind.
        make: writes an intact one into an empty folder; if it returns a file, that alone is damaged.
        read: reads all that is in it; what it returns is compared with what the intact one gave.
        sealed: whether hashes protect it, so that a change must be noticed.
        only: the suffixes of the files that are damaged; all files if empty.
        loose: the suffixes of files that nothing else names: one less is no damage.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    sealed: bool
    only: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of a case: "as before", "refused", "other content", "traceback", "hang" or "memory"."""

    item: str
    case: str
    result: str
    detail: str = ""

    @property
    def is_good(self) -> bool:
        return self.result in ("as before", "refused", "read otherwise")


def damaged(folder: Path, item: Item, random: Random, rounds: int) -> Iterator[tuple[str, Path, bytes | str]]:
    """Makes an intact item. Cases: a name, the file that is damaged, its new content or what stands in its place."""
    made = item.make(folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and (not item.only or p.suffix in item.only))
    for file in [made] if isinstance(made, Path) and made.is_file() else files:
        content, where = file.read_bytes(), file.relative_to(folder)
        for what in ("missing", "folder", "pipe", "dangling link"):
            if what == "missing" and file.suffix in item.loose:
                continue
            yield f"{where}: {what}", where, what
        for name, other in damages(content, random, rounds, most=10 * rounds):
            yield f"{where}: {name}", where, other


def sample(cases: list[Any], random: Random, most: int | None) -> list[Any]:
    return cases if most is None or most >= len(cases) else random.sample(cases, most)


def survey(item: Item, folder: Path, *, seed: int = 0, rounds: int = 4, most: int | None = None) -> list[Outcome]:
    """Reads damaged copies of an item, each outcome told; the process that reads is started anew after a hang.

    Args:
        item: what is damaged.
        folder: empty, to work in.
        seed: of the damage.
        rounds: copies of each kind of damage for each file.
        most: how many cases at most, drawn from all.
    """
    intact = folder / "intact"
    intact.mkdir(parents=True)
    random = Random(f"{seed} {item.name}")
    cases = sample(list(damaged(intact, item, random, rounds)), random, most)
    outcomes: list[Outcome] = []
    context = get_context("fork")  # what is imported need not be imported again
    while len(outcomes) < len(cases):
        ours, theirs = context.Pipe()
        child = context.Process(target=_read_all, args=(item, intact, cases[len(outcomes) :], theirs))
        child.start()
        theirs.close()
        with closing(ours):
            try:
                if (wrong := ours.recv()) is not None:
                    raise AssertionError(f"{item.name}: the intact one cannot be read:\n{wrong}")
                while len(outcomes) < len(cases):
                    if not ours.poll(SECONDS):
                        outcomes.append(Outcome(item.name, cases[len(outcomes)][0], "hang"))
                        break
                    outcomes.append(ours.recv())
            except EOFError:
                outcomes.append(Outcome(item.name, cases[len(outcomes)][0], "crash", f"exit code {child.exitcode}"))
        if child.is_alive():
            os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
    return outcomes


def _read_all(item: Item, intact: Path, cases: list[tuple[str, Path, bytes | str]], out: Connection) -> None:
    """Reads the cases one after the other and sends an outcome for each."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings of thousands of files
    try:
        expected = item.read(_copy(intact, intact.with_name("expected")))
    except Exception:
        out.send(traceback.format_exc())
        return
    out.send(None)
    for name, where, content in cases:
        folder = _copy(intact, intact.with_name("case"))
        _damage(folder / where, content)
        before = _peak()
        try:
            found = item.read(folder)
            if found == expected:
                outcome = Outcome(item.name, name, "as before")
            else:
                outcome = Outcome(item.name, name, "other content" if item.sealed else "read otherwise")
        except PrvrError as error:
            outcome = Outcome(item.name, name, "refused", str(error))
        except Exception:
            outcome = Outcome(item.name, name, "traceback", traceback.format_exc())
        if (growth := _peak() - before) > GROWTH:
            outcome = Outcome(item.name, name, "memory", f"{growth:.0f} MiB more")
        out.send(outcome)
    out.close()


def _copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def _damage(file: Path, content: bytes | str) -> None:
    file.unlink()
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content == "folder":
        file.mkdir()
    elif content == "pipe":
        os.mkfifo(file)
    elif content == "dangling link":
        file.symlink_to("nowhere")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# What is read, beside the single files of `READERS`.


def _write_corpus(root: Path) -> Path:
    """Noise in the public layout: six videos in each split, each with two captions."""
    rng = np.random.default_rng(0)
    captions = {
        split: [Caption(f"{split}{v}#enc#{k}", f"{split}{v}", f"text {k}") for v in range(6) for k in range(2)]
        for split in ("train", "val", "test")
    }
    lines = [caption for group in captions.values() for caption in group]
    return write_layout(
        root / "noise",
        TextData(captions, moments={caption.id: Moment(0.0, 1.0, 2.0) for caption in lines}),
        videos=[(video, rng.standard_normal((5, 8))) for video in dict.fromkeys(c.video_id for c in lines)],
        queries=[(caption.id, rng.standard_normal((3, 6))) for caption in lines],
    )


def _config(root: Path) -> Config:
    changes = {"model.video_dim": 8, "model.query_dim": 6, "train.batch_size": 4, "train.epochs": 1}
    places = {"data.root": str(root), "data.collection": "noise", "data.cache_dir": str(root / "cache")}
    return load_config("hybrid-toy", SMALL | changes | places)


def _make_library(folder: Path) -> None:
    storage, features = Storage(folder / "library"), make_features(some_videos([5, 9, 6, 4]))
    key = storage.add_encoder(TOY)
    for entry in features.entries.values():
        storage.add(key, entry.sha256, features.read(entry.id), {"duration": entry.duration})


def _read_library(folder: Path) -> object:
    storage, key = Storage(folder / "library"), encoder_key(TOY)
    shas = sorted(storage.encoded(key))
    for problem in storage.check(key, TOY, shas).values():
        raise PrvrError(problem)
    return [(sha256, storage.read_features(key, sha256).tobytes()) for sha256 in shas]


def _index(folder: Path, backend: str) -> VideoIndex:
    return make_index(folder / "index", features=make_features(some_videos([5, 9, 6, 4])), backend=backend)


def _make_index(folder: Path) -> None:
    _index(folder, "exact").close()


def _read_index(folder: Path) -> object:
    with _index(folder, "exact") as index:
        return index.search("a red circle jumps", 9).hits


def _make_run(folder: Path) -> None:
    root = _write_corpus(folder.parent / "old").parent
    train(_config(root), output=folder / "run")
    (folder / "run" / "curves.png").unlink()


def _read_run(folder: Path) -> object:
    run = folder / "run"
    state = load_state(run / "last" / "state.pt")
    report = EvaluationReport.from_json(run / "evaluation.json")
    retriever, config = load_pretrained(model_files(run)[0]), load_config(run / "config.yaml")
    weights = {name: tensor.tolist() for name, tensor in retriever.state_dict().items()}
    return str(state), str(report.to_dict()), report.ranks.tolist(), weights, str(config)


def _make_reranker(folder: Path) -> None:
    config = _config(_write_corpus(folder.parent / "reranked").parent)
    values = {"reranker": {"steps": 5, "sampling_steps": 2, "candidates": 3}, "train": {"epochs": 1, "batch_size": 4}}
    with closing(open_splits(config)) as splits:
        run = train(config, output=folder.parent / "reranked" / "run", splits=splits)
        retriever = load_pretrained(run.output / "best")
        train_reranker(reranker_run_config(values, width=16), retriever, splits, output=folder / "run")
    (folder / "run" / "curves.png").unlink()


def _read_reranker(folder: Path) -> object:
    run = folder / "run"
    reports = [EvaluationReport.from_json(run / f"{name}.json") for name in ("evaluation", "evaluation_retriever")]
    rerankers = load_rerankers(run)
    weights = {side: [t.tolist() for t in one.state_dict().values()] for side, one in rerankers.items()}
    if sorted(rerankers) != ["t2v", "v2t"]:
        raise PrvrError("a direction is missing")
    config = read_reranker_config(run / "config.yaml")
    return (
        str(load_state(run / "last" / "state.pt")),
        [(str(one.to_dict()), one.ranks.tolist()) for one in reports],
        weights,
        str(config),
    )


def _read_corpus(folder: Path) -> object:
    corpus = open_corpus(folder, "noise")
    content: list[object] = [benchmark_of(corpus), corpus_encoders(corpus)]
    for name in ("train", "val", "test"):
        with pack(corpus, name, cache_dir=folder / "cache") as split:
            content += [split.query_ids, split.video_ids, [x.tolist() for x in split.moments]]
    return str(content)


def _make_packed(folder: Path) -> None:
    corpus = open_corpus(_write_corpus(folder.parent / "old").parent, "noise")
    pack(corpus, "train", cache_dir=folder).close()


def _read_packed(folder: Path) -> object:
    (store,) = [path for path in folder.iterdir() if path.is_dir()]
    with PackedSplit.open(store, verify=True) as split:
        rows = [part.tolist() for number in range(len(split)) for part in split.video(number)[:2]]
        return str((rows, split.query_ids, split.video_ids, [x.tolist() for x in split.moments]))


def _make_checkpoint(folder: Path) -> None:
    golden = Golden("hlformer")
    torch.save({"state_dict": golden.state, "config": golden.config}, folder / "best.ckpt")


def _read_checkpoint(folder: Path) -> object:
    shutil.rmtree(folder / "out", ignore_errors=True)
    return str(convert_checkpoint(folder / "best.ckpt", "tvr", folder / "out").config)


def _make_faiss(folder: Path) -> None:
    _read_faiss(folder)


def _read_faiss(folder: Path) -> object:
    with _index(folder, "faiss") as index:
        return index.search("a red circle jumps", 3).hits


def _read_films(folder: Path) -> object:
    """Features of all films; that one is damaged must not stop the others."""
    home = folder.with_name("library-of-films")
    shutil.rmtree(home, ignore_errors=True)
    with Library(folder, encoder="toy", home=home) as library:
        failed = library.update().unreadable
        if len(failed) > 1:
            raise AssertionError(f"{len(failed)} films failed, one is damaged")
        if failed:
            raise PrvrError(failed[0].reason)
        features = library.features()
    return [(video, features.read(video).tobytes()) for video in features.video_ids]


def _reading(reader: Reader) -> Callable[[Path], str]:
    """Reads a file as text, which can be compared whatever was read."""
    return lambda folder: str(reader.read(folder))


ITEMS = (
    Item("film", sound_films, _read_films, sealed=False),
    Item("features", _make_library, _read_library, sealed=True, only=(".npy",)),
    Item("library", _make_library, _read_library, sealed=False, only=(".sqlite",)),
    Item("index", _make_index, _read_index, sealed=False),
    Item("faiss files", _make_faiss, _read_faiss, sealed=True, only=(".faiss",)),
    Item("run", _make_run, _read_run, sealed=True, only=(".pt", ".safetensors", ".json", ".npz")),
    Item("run of stage 2", _make_reranker, _read_reranker, sealed=True, only=(".pt", ".safetensors", ".json", ".npz")),
    Item("packed split", _make_packed, _read_packed, sealed=True),
    Item("corpus", _write_corpus, _read_corpus, sealed=False),
    Item("checkpoint", _make_checkpoint, _read_checkpoint, sealed=False),
    *(Item(name, one.write, _reading(one), sealed=False) for name, one in READERS.items() if one.readable),
)
