"""Every kind of file that prvr reads, damaged in every way that `fuzzing` knows, read in a process of its own."""

import json
import os
import resource
import shutil
import signal
import tarfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from fuzzing import json_text_mutations, mutations

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "written_by_0.1.tar.xz"

SECONDS = 30
"""A case that takes longer counts as a hang."""

GROWTH = 800
"""MiB by which reading a damaged file may raise the memory of the process."""


@dataclass(frozen=True)
class Item:
    """Something on disk that prvr reads.

    Args:
        name: of its kind.
        make: writes an intact one into an empty folder.
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
    """Cases: a name, the file that is damaged, and its new content or what stands in its place."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and (not item.only or p.suffix in item.only))
    for file in files:
        content, where = file.read_bytes(), file.relative_to(folder)
        for what in ("missing", "folder", "pipe", "dangling link"):
            if what == "missing" and file.suffix in item.loose:
                continue
            yield f"{where}: {what}", where, what
        for name, other in mutations(content, random, rounds):
            yield f"{where}: {name}", where, other
        if file.suffix == ".json":
            for name, other in json_text_mutations(json.loads(content), random, most=10 * rounds):
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
    item.make(intact)
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
    from prvr import PrvrError

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


# What is read: stores, indexes, runs and corpora come from the fixtures, brought to today's format where that differs.


def _unpack(name: str, folder: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        members = [m for m in archive if m.name.removeprefix("./").startswith(f"{name}/")]
        archive.extractall(folder, members, filter="data")
    return folder / name


def _make_store(folder: Path) -> None:
    from search_files import write_store

    from prvr.video import VideoStore

    old = VideoStore(_unpack("store", folder.parent / "old"))
    write_store(folder / "store", {video: old.read(video) for video in old.video_ids})


def _read_store(folder: Path) -> object:
    from prvr import PrvrError
    from prvr.video import VideoStore

    store = VideoStore(folder / "store")
    if problems := store.verify():
        raise PrvrError(str(problems[0]))
    return [(store.entries[video], store.read(video).tobytes()) for video in store.video_ids]


def _make_index(folder: Path, model: str, **options: Any) -> None:
    from search_files import forget, make_index, some_videos, tiny_model, write_store

    videos = some_videos([5, 9, 6, 4])
    weights = tiny_model(folder.parent / "model", branches="clips") if model == "trained" else model
    store = forget(write_store(folder.parent / "store", videos), "v003.mp4")
    with make_index(folder / "index", weights, store, **options) as index:
        index.add(write_store(folder.parent / "store", videos))
        index.remove(["v001.mp4"])


def _make_zero_shot(folder: Path) -> None:
    _make_index(folder, "zero-shot")


def _make_trained(folder: Path) -> None:
    _make_index(folder, "trained", dtype="int8", window=2.0, stride=1.0)


def _read_index(folder: Path) -> object:
    from prvr import PrvrError
    from prvr.search import VideoIndex, verify_index

    with VideoIndex.open(folder / "index", backend="exact") as index:
        hits = index.search("a red circle jumps", 9).hits
        if problems := verify_index(folder / "index"):
            raise PrvrError(problems[0])
        return hits


def _make_run(folder: Path) -> None:
    from prvr.config import load_config
    from prvr.training import train

    old = folder.parent / "old"
    places = {"data.root": str(_unpack("data", old)), "data.cache_dir": str(old)}
    train(load_config(_unpack("run", old) / "config.yaml", places), output=folder / "run")
    (folder / "run" / "curves.png").unlink()


def _read_run(folder: Path) -> object:
    from prvr.config import load_config
    from prvr.evaluation.report import EvaluationReport
    from prvr.models import load_pretrained
    from prvr.models.pretrained import model_files
    from prvr.training.checkpoint import load_state

    run = folder / "run"
    state = load_state(run / "last" / "state.pt")
    report = EvaluationReport.from_json(run / "evaluation.json")
    retriever, config = load_pretrained(model_files(run)[0]), load_config(run / "config.yaml")
    weights = {name: tensor.tolist() for name, tensor in retriever.state_dict().items()}
    return str(state), str(report.to_dict()), report.ranks.tolist(), weights, str(config)


def _make_reranker(folder: Path) -> None:
    from prvr.config import load_config
    from prvr.models import load_pretrained
    from prvr.training import open_splits, read_reranker_config, train_reranker

    for name in ("data", "run"):
        _unpack(name, folder.parent / "reranked")
    old = folder.parent / "reranked"
    config = load_config(old / "run" / "config.yaml", {"data.root": str(old / "data"), "data.cache_dir": str(old)})
    config = read_reranker_config(_unpack("run-generation", old) / "config.yaml")
    with closing(open_splits(config)) as splits:
        train_reranker(config, load_pretrained(old / "run" / "best"), splits, output=folder / "run")
    (folder / "run" / "curves.png").unlink()


def _read_reranker(folder: Path) -> object:
    from prvr.evaluation.report import EvaluationReport
    from prvr.stages import load_rerankers
    from prvr.training import read_reranker_config
    from prvr.training.checkpoint import load_state

    run = folder / "run"
    reports = [EvaluationReport.from_json(run / f"{name}.json") for name in ("evaluation", "evaluation_retriever")]
    rerankers = load_rerankers(run)
    weights = {side: [t.tolist() for t in one.state_dict().values()] for side, one in rerankers.items()}
    if sorted(rerankers) != ["t2v", "v2t"]:
        from prvr import PrvrError

        raise PrvrError("a direction is missing")
    config = read_reranker_config(run / "config.yaml")
    return (
        str(load_state(run / "last" / "state.pt")),
        [(str(one.to_dict()), one.ranks.tolist()) for one in reports],
        weights,
        str(config),
    )


def _make_corpus(folder: Path) -> None:
    _unpack("data", folder)


def _make_hdf5_corpus(folder: Path) -> None:
    """The same corpus with its frames in HDF5, and with relevance and tags."""
    from prvr.data import TextData, open_corpus, write_layout

    corpus = open_corpus(_unpack("data", folder.parent / "old"), "tiny")
    splits = {name: corpus.split(name) for name in ("train", "val", "test")}
    captions = {name: split.captions for name, split in splits.items()}
    ids = [caption.id for some in captions.values() for caption in some]
    with corpus.open_features() as videos, corpus.open_queries() as queries:
        write_layout(
            folder / "data" / "tiny",
            TextData(
                captions=captions,
                relevance={ids[0]: [ids[0].split("#")[0]]},
                tags={caption: ["short"] for caption in ids},
            ),
            videos=[(video, videos.read(video)) for video in videos.video_ids],
            queries=[(caption, queries.read(caption)) for caption in ids],
            formats=("hdf5",),
        )


def _read_corpus(folder: Path) -> object:
    from prvr.corpora import benchmark_of
    from prvr.corpora.encoders import corpus_encoders
    from prvr.data import open_corpus, pack

    corpus = open_corpus(folder / "data", "tiny")
    said: list[object] = [benchmark_of(corpus), corpus_encoders(corpus)]
    for name in ("train", "val", "test"):
        with pack(corpus, name, cache_dir=folder / "cache") as split:
            said += [split.query_ids, split.video_ids, [x.tolist() for x in split.moments]]
    return str(said)


def _make_packed(folder: Path) -> None:
    from prvr.data import open_corpus, pack

    corpus = open_corpus(_unpack("data", folder.parent / "old"), "tiny")
    pack(corpus, "train", cache_dir=folder).close()


def _read_packed(folder: Path) -> object:
    from prvr.data import PackedSplit

    (store,) = [path for path in folder.iterdir() if path.is_dir()]
    with PackedSplit.open(store, verify=True) as split:
        rows = [part.tolist() for number in range(len(split)) for part in split.video(number)[:2]]
        return str((rows, split.query_ids, split.video_ids, [x.tolist() for x in split.moments]))


def _make_configs(folder: Path) -> None:
    from importlib import resources

    for name in ("hybrid-tvr", "diffusionret-embedded"):
        source = resources.files("prvr") / "presets" / f"{name}.yaml"
        (folder / f"{name}.yaml").write_text(source.read_text(encoding="utf-8"))


def _read_configs(folder: Path) -> object:
    from prvr.config import load_config

    return [load_config(path) for path in sorted(folder.glob("*.yaml"))]


def _make_captions(folder: Path) -> None:
    rows = [("film0.mp4", "a red circle, jumping", 0.5, 2), ("film1.mp4", 'a "blue" square', "0:01", "0:02.5")]
    lines = [json.dumps(dict(zip(("video", "text", "start", "end"), row, strict=True))) for row in rows]
    (folder / "captions.jsonl").write_text("\n".join(lines))
    (folder / "captions.csv").write_text("video;text;start;end\nfilm0.mp4;a red circle;0.5;2\nfilm2.mp4;a square;;\n")


def _read_captions(folder: Path) -> object:
    from prvr.corpora.user_captions import read_user_captions

    return [read_user_captions(folder / f"captions.{kind}") for kind in ("jsonl", "csv")]


def _make_annotations(folder: Path) -> None:
    from benchmark_files import WRITERS

    for name, write in WRITERS.items():
        (folder / name).mkdir()
        write(folder / name)


def _read_annotations(folder: Path) -> object:
    from prvr.corpora import BENCHMARKS

    return str([BENCHMARKS[path.name].part.read(path) for path in sorted(folder.iterdir())])


def _make_models(folder: Path) -> None:
    """Folders of `save_pretrained`, which have no hashes."""
    from search_files import tiny_config

    from prvr import CandidateReranker, Retriever, TokenRetriever
    from prvr.config import TokenModelConfig
    from prvr.stages import RerankerConfig

    Retriever(tiny_config()).save_pretrained(folder / "retriever")
    tokens = TokenModelConfig(kind="tokens", video_dim=8, query_dim=8, hidden=8, heads=2)
    TokenRetriever(tokens).save_pretrained(folder / "tokens")
    CandidateReranker(RerankerConfig(width=8), "t2v").save_pretrained(folder / "reranker" / "t2v")
    for card in folder.rglob("README.md"):
        card.unlink()


def _read_models(folder: Path) -> object:
    from prvr.models import load_pretrained
    from prvr.stages import load_rerankers

    modules = [load_pretrained(folder / "retriever"), load_pretrained(folder / "tokens")]
    modules += load_rerankers(folder / "reranker").values()
    return [(str(module.config), [t.tolist() for t in module.state_dict().values()]) for module in modules]


def _make_checkpoint(folder: Path) -> None:
    import torch
    from golden import Golden

    golden = Golden("hlformer")
    torch.save({"state_dict": golden.state, "config": golden.config}, folder / "best.ckpt")


def _read_checkpoint(folder: Path) -> object:
    from prvr.released.convert import convert_checkpoint

    shutil.rmtree(folder / "out", ignore_errors=True)
    return str(convert_checkpoint(folder / "best.ckpt", "tvr", folder / "out").config)


def _make_faiss(folder: Path) -> None:
    from prvr.search import VideoIndex

    _make_zero_shot(folder)
    with VideoIndex.open(folder / "index", backend="faiss") as index:
        index.search("a person", 3)


def _read_faiss(folder: Path) -> object:
    from prvr.search import VideoIndex

    with VideoIndex.open(folder / "index", backend="faiss") as index:
        return index.search("a red circle jumps", 9).hits


def _make_films(folder: Path) -> None:
    from damaged_films import sound_films

    sound_films(folder)


def _read_films(folder: Path) -> object:
    """Features of all films; that one is damaged must not stop the others."""
    from prvr import PrvrError
    from prvr.video import VideoStore, extract, open_encoder

    place = folder.with_name("store-of-films")
    shutil.rmtree(place, ignore_errors=True)
    report = extract([folder], open_encoder("embedded"), place)
    if len(report.failed) > 1:
        raise AssertionError(f"{len(report.failed)} films failed, one is damaged")
    store = VideoStore(place)
    if report.failed:
        raise PrvrError(report.failed[0].reason)
    return [(video, store.read(video).tobytes()) for video in store.video_ids]


ITEMS = (
    Item("film", _make_films, _read_films, sealed=False),
    Item("store", _make_store, _read_store, sealed=True, loose=(".safetensors",)),
    Item("index", _make_zero_shot, _read_index, sealed=True),
    Item("index of a trained model", _make_trained, _read_index, sealed=True),
    Item("faiss files", _make_faiss, _read_faiss, sealed=True, only=(".faiss",)),
    Item("run", _make_run, _read_run, sealed=True, only=(".pt", ".safetensors", ".json", ".npz")),
    Item("run of stage 2", _make_reranker, _read_reranker, sealed=True, only=(".pt", ".safetensors", ".json", ".npz")),
    Item("packed split", _make_packed, _read_packed, sealed=True),
    Item("corpus", _make_corpus, _read_corpus, sealed=False),
    Item("corpus in HDF5", _make_hdf5_corpus, _read_corpus, sealed=False),
    Item("configuration", _make_configs, _read_configs, sealed=False),
    Item("captions", _make_captions, _read_captions, sealed=False),
    Item("benchmark annotations", _make_annotations, _read_annotations, sealed=False),
    Item("model", _make_models, _read_models, sealed=False),
    Item("checkpoint", _make_checkpoint, _read_checkpoint, sealed=False),
)
