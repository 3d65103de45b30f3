"""Files that are damaged, empty, of another kind or made to do harm: one sentence of the project's own, never more."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from benchmark_files import WRITERS
from fuzzing import json_text_mutations, mutations

from prvr.cli.convert import convert_checkpoint
from prvr.compare import compare, comparison_table
from prvr.config import BlockConfig, ModelConfig, dump_config, load_config
from prvr.data import (
    Caption,
    Moment,
    PackedSplit,
    PackSettings,
    load_encoder,
    open_corpus,
    pack,
    write_corpus,
    write_layout,
)
from prvr.data.benchmarks import benchmark, benchmark_of
from prvr.data.own import read_own_captions
from prvr.data.synthetic.annotate import draw_split, read_scenes, write_scenes
from prvr.errors import PrvrError
from prvr.generation.folder import is_generation_run, read_config
from prvr.metrics import RetrievalMetrics
from prvr.models import Retriever, load_pretrained
from prvr.reranking import CandidateReranker
from prvr.reranking.config import RerankerConfig
from prvr.results import EvaluationReport, GroupMetrics, TagMetrics
from prvr.statistics import Interval
from prvr.video.joint import corpus_encoders, read_sentences, write_sentences

LONGEST = 2_000
"""Letters of a message that somebody can read."""


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A reader that waits for a pipe fails instead of stopping the suite."""
    if sys.platform == "win32":
        yield
        return

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError("a reader waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Reader:
    """A file of some format and what reads it."""

    write: Callable[[Path], Path]
    """Fills a folder; gives the file to be damaged."""
    read: Callable[[Path], object]
    """Reads the folder."""
    rounds: int = 3
    """Copies of each kind of damage."""
    readable: bool = True
    """Whether what is written can be read."""


def written_corpus(root: Path) -> Path:
    rng = np.random.default_rng(0)
    captions = {"test": [Caption(f"{v}#enc#{k}", v, f"text {k} of {v}") for v in ("one", "two") for k in range(2)]}
    some = captions["test"]
    return write_layout(
        root,
        "col",
        captions=captions,
        videos=[(v, rng.standard_normal((3, 4)).astype(np.float32)) for v in ("one", "two")],
        queries=[(c.id, rng.standard_normal((2, 3))) for c in some],
        moments={c.id: Moment(0.0, 1.0, 2.0) for c in some},
        relevance={c.id: ["one", "two"] for c in some},
        tags={c.id: ["tag"] for c in some},
        formats=("bigfile", "hdf5"),
        about={"benchmark": "msvd", "encoders": encoders(), "look": "day"},
        extras=lambda folder: write_sentences(folder, captions, {c.id: np.ones(4, np.float32) / 2 for c in some}),
    )


def encoders() -> dict[str, object]:
    identity = {"name": "embedded", "weights": "0" * 64, "preprocessing": "1"}
    return {"frames": identity, "text": identity, "rate": 2.0, "dim": 4, "word_dim": 3, "joint_dim": 4}


def of_corpus(name: str) -> Callable[[Path], Path]:
    return lambda root: written_corpus(root) / name


def split_of(root: Path) -> object:
    return open_corpus(root, "col").split("test")


def features_of(root: Path) -> list[np.ndarray]:
    with open_corpus(root, "col").open_features() as reader:
        return [reader.read(video) for video in reader.video_ids]


def hdf5_of(root: Path) -> list[np.ndarray]:
    (root / "col" / "FeatureData" / "frames" / "id.txt").unlink(missing_ok=True)
    return features_of(root)


def queries_of(root: Path) -> list[np.ndarray]:
    with open_corpus(root, "col").open_queries() as reader:
        return [reader.read(caption.id) for caption in open_corpus(root, "col").split("test").captions]


def annotations(name: str, file: str) -> Reader:
    def write(folder: Path) -> Path:
        WRITERS[name](folder)
        return folder / file

    return Reader(write, benchmark(name).read)


def packed(root: Path) -> Path:
    written_corpus(root)
    with pack(open_corpus(root, "col"), "test", cache_dir=root / "cache", settings=PackSettings(2, 4, 4)) as found:
        return found.store.folder


def open_packed(root: Path) -> None:
    (folder,) = (root / "cache").iterdir()
    with PackedSplit.open(folder) as split:
        _ = (split.captions, split.relevant, split.tags, split.moments, split.video(0), split.query(0))


def table(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return folder / name

    return write


def evaluation(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        metrics = RetrievalMetrics.from_ranks(torch.tensor([1, 2]))
        EvaluationReport(
            "col test", "worst", 0, 50.0, metrics, metrics, metrics, {"r1": Interval(0.0, 1.0)},
            (GroupMetrics(0.0, 0.2, metrics),), (TagMetrics("tag", metrics),), ("one#0", "two#0"), ("one", "two"),
            np.array([0, 1]), np.array([1, 2]), np.array([1, 2]), metrics,
        ).to_json(folder / "evaluation.json")  # fmt: skip
        return folder / name

    return write


def compared(folder: Path) -> str:
    path = folder / "evaluation.json"
    return str(comparison_table(compare(path, path, samples=2)).columns)


def scenes(folder: Path) -> Path:
    write_scenes(folder / "scenes.jsonl", {"train": draw_split("train", 2, 0)})
    return folder / "scenes.jsonl"


def encoder(folder: Path) -> Path:
    for name in ("encoder.json", "encoder.safetensors"):
        shutil.copyfile(resources.files("prvr.data.synthetic") / name, folder / name)
    return folder / "encoder.json"


def small() -> ModelConfig:
    return ModelConfig(video_dim=4, query_dim=3, hidden=4, heads=2, num_clips=2, max_frames=4, blocks=(BlockConfig(),))


def retriever(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        Retriever(small()).save_pretrained(folder)
        return folder / name

    return write


def reranker(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        CandidateReranker(RerankerConfig(width=8, steps=10, candidates=3), "v2t").save_pretrained(folder)
        return folder / name

    return write


def checkpoint(folder: Path) -> Path:
    torch.save({"state_dict": {"a.b": torch.ones(2)}, "config": {"model": "HLFormer_Net"}}, folder / "best.ckpt")
    return folder / "best.ckpt"


def converted(folder: Path) -> None:
    convert_checkpoint(folder / "best.ckpt", "tvr", folder / "out")


FEATURES, TEXT = "FeatureData/frames", "TextData"
READERS = {
    "configuration": Reader(
        table("a.yaml", dump_config(load_config("hybrid-embedded"))), lambda folder: load_config(folder / "a.yaml")
    ),
    "configuration of stage 2": Reader(
        table("config.yaml", "reranker: {width: 8}\noptim: {lr: 0.1}\n"),
        lambda folder: (is_generation_run(folder), read_config(folder / "config.yaml")),
    ),
    "captions": Reader(of_corpus(f"{TEXT}/coltest.caption.txt"), split_of),
    "moments": Reader(of_corpus(f"{TEXT}/col_moments.jsonl"), split_of),
    "relevance": Reader(of_corpus(f"{TEXT}/col_relevance.jsonl"), split_of),
    "tags": Reader(of_corpus(f"{TEXT}/col_tags.jsonl"), split_of),
    "corpus.json, benchmark": Reader(of_corpus("corpus.json"), lambda root: benchmark_of(open_corpus(root, "col"))),
    "corpus.json, encoders": Reader(of_corpus("corpus.json"), lambda root: corpus_encoders(open_corpus(root, "col"))),
    "sentences": Reader(
        of_corpus("sentences.safetensors"), lambda root: read_sentences(open_corpus(root, "col"), "test"), rounds=20
    ),
    "shape.txt": Reader(of_corpus(f"{FEATURES}/shape.txt"), features_of),
    "id.txt": Reader(of_corpus(f"{FEATURES}/id.txt"), features_of),
    "feature.bin": Reader(of_corpus(f"{FEATURES}/feature.bin"), features_of),
    "video2frames.txt": Reader(of_corpus(f"{FEATURES}/video2frames.txt"), features_of),
    "feature.hdf5": Reader(of_corpus(f"{FEATURES}/feature.hdf5"), hdf5_of, rounds=60),
    "query features": Reader(of_corpus(f"{TEXT}/roberta_col_query_feat.hdf5"), queries_of, rounds=60),
    "packed header": Reader(lambda root: packed(root) / "meta.json", open_packed),
    "packed index": Reader(lambda root: packed(root) / "index.npz", open_packed),
    "packed text": Reader(lambda root: packed(root) / "text.json", open_packed),
    "packed frames": Reader(lambda root: packed(root) / "frames.bin", open_packed),
    "own captions, CSV": Reader(
        table("own.csv", "video,text,start,end\na.mp4,a dog,0:01,2\n"),
        lambda folder: read_own_captions(folder / "own.csv"),
    ),
    "own captions, JSON lines": Reader(
        table("own.jsonl", '{"video": "a.mp4", "text": "a dog", "start": 1, "end": 2.5}\n'),
        lambda folder: read_own_captions(folder / "own.jsonl"),
    ),
    "evaluation": Reader(evaluation("evaluation.json"), compared),
    "ranks of an evaluation": Reader(evaluation("evaluation_ranks.npz"), compared),
    "scene graphs": Reader(scenes, lambda folder: read_scenes(folder / "scenes.jsonl")),
    "embedded corpus": Reader(
        table("embedded-tiny/corpus.json", "{}"), lambda root: write_corpus(root, "tiny"), readable=False
    ),
    "joint encoder": Reader(encoder, load_encoder),
    "configuration of a model": Reader(retriever("config.json"), load_pretrained),
    "weights of a model": Reader(retriever("model.safetensors"), load_pretrained, rounds=10),
    "configuration of a re-ranker": Reader(reranker("config.json"), CandidateReranker.from_pretrained),
    "checkpoint of the authors": Reader(checkpoint, converted, rounds=20, readable=False),
    "msrvtt": annotations("msrvtt", "MSRVTT_data.json"),
    "msrvtt, list": annotations("msrvtt", "MSRVTT_train.9k.csv"),
    "msrvtt, test": annotations("msrvtt", "MSRVTT_JSFUSION_test.csv"),
    "msvd": annotations("msvd", "raw-captions.pkl"),
    "msvd, list": annotations("msvd", "train_list.txt"),
    "lsmdc": annotations("lsmdc", "LSMDC16_annos_training.csv"),
    "didemo": annotations("didemo", "train_data.json"),
    "activitynet": annotations("activitynet-paragraphs", "train.json"),
    "activitynet, list": annotations("activitynet-paragraphs", "val_ids.json"),
}


def damages(file: Path, rounds: int) -> Iterator[tuple[str, bytes]]:
    content, random = file.read_bytes(), Random(0)
    yield from mutations(content, random, rounds)
    lines = content.splitlines()
    for text in (content, *lines[:1]):  # a JSON file, or a line of one
        try:
            value = json.loads(text)
        except ValueError:
            continue
        for name, damaged in json_text_mutations(value, random, 100):
            yield f"JSON: {name}", damaged
            if text is not content:
                yield f"first line: {name}", b"\n".join([damaged, *lines[1:]])
        break


def refusal(reader: Reader, folder: Path) -> str | None:
    """What it says; None if it reads the file."""
    try:
        reader.read(folder)
    except PrvrError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_with_one_sentence(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    file = reader.write(tmp_path)
    assert (refusal(reader, tmp_path) is None) == reader.readable
    bad = []
    for damage, content in damages(file, reader.rounds):
        file.write_bytes(content)
        try:
            said = refusal(reader, tmp_path)
        except Exception as error:
            bad.append(f"{damage}: {error!r:.300}")
            continue
        if said is not None and (len(said) > LONGEST or not names(file, tmp_path, said)):
            bad.append(f"{damage}: said {said[:300]!r}, {len(said)} letters")
    assert bad == []


def names(file: Path, folder: Path, said: str) -> bool:
    return file.name in said or str(file.parent) in said


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("name", READERS)
def test_a_folder_or_a_pipe_in_the_place_of_a_file_is_refused(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    file = reader.write(tmp_path)
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to(tmp_path / "nothing")):
        file.rename(tmp_path / "kept")
        make(file)
        said = refusal(reader, tmp_path)
        assert said is None or len(said) < LONGEST
        file.rmdir() if file.is_dir() else file.unlink()
        (tmp_path / "kept").rename(file)
    assert (refusal(reader, tmp_path) is None) == reader.readable
