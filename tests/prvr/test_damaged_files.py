"""Files that are damaged, empty, of another kind or made to do harm: one sentence of the project's own, never more."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest
import torch
from benchmark_files import WRITERS
from commands import explained
from fuzzing import REPLACEMENTS, json_text_mutations, mutations

from prvr.config import BlockConfig, ModelConfig, dump_config, load_config
from prvr.corpora import benchmark, benchmark_of
from prvr.corpora.encoders import corpus_encoders, read_sentences, write_sentences
from prvr.corpora.user_captions import read_user_captions
from prvr.data import (
    Caption,
    Moment,
    PackedSplit,
    PackSettings,
    QueryFeatures,
    TextData,
    load_encoder,
    open_corpus,
    open_features,
    pack,
    write_corpus,
    write_layout,
)
from prvr.data.synthetic.scenes import draw_split, read_scenes, write_scenes
from prvr.errors import DataError, PrvrError
from prvr.evaluation.compare import compare, comparison_table
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.evaluation.report import EvaluationReport, GroupMetrics, TagMetrics
from prvr.evaluation.significance import Interval
from prvr.models import Retriever, load_pretrained
from prvr.released.convert import convert_checkpoint
from prvr.stages import CandidateReranker
from prvr.stages.diffusion.config import RerankerConfig
from prvr.training import is_reranker_run, read_reranker_config

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
    rounds: int = 1
    """Copies of each kind of damage."""
    readable: bool = True
    """Whether what is written can be read."""
    most: int = 20 * 2**20
    """Bytes of a damaged file; larger ones are left out where they only cost time."""


def written_corpus(root: Path) -> Path:
    rng = np.random.default_rng(0)
    captions = {"test": [Caption(f"{v}#enc#{k}", v, f"text {k} of {v}") for v in ("one", "two") for k in range(2)]}
    some = captions["test"]
    return write_layout(
        root / "col",
        TextData(
            captions=captions,
            moments={c.id: Moment(0.0, 1.0, 2.0) for c in some},
            relevance={c.id: ["one", "two"] for c in some},
            tags={c.id: ["tag"] for c in some},
        ),
        videos=[(v, rng.standard_normal((3, 4)).astype(np.float32)) for v in ("one", "two")],
        queries=[(c.id, rng.standard_normal((2, 3))) for c in some],
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
        return found.files.folder


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
    torch.save({"state_dict": {"a.h_attns.b": torch.ones(2)}, "config": {"num": 1}}, folder / "best.ckpt")
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
        lambda folder: (is_reranker_run(folder), read_reranker_config(folder / "config.yaml")),
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
    "feature.hdf5": Reader(of_corpus(f"{FEATURES}/feature.hdf5"), hdf5_of, rounds=12),
    "query features": Reader(of_corpus(f"{TEXT}/roberta_col_query_feat.hdf5"), queries_of, rounds=12),
    "packed header": Reader(lambda root: packed(root) / "meta.json", open_packed),
    "packed index": Reader(lambda root: packed(root) / "index.npz", open_packed),
    "packed text": Reader(lambda root: packed(root) / "text.json", open_packed),
    "packed frames": Reader(lambda root: packed(root) / "frames.bin", open_packed),
    "own captions, CSV": Reader(
        table("own.csv", "video,text,start,end\na.mp4,a dog,0:01,2\n"),
        lambda folder: read_user_captions(folder / "own.csv"),
    ),
    "own captions, JSON lines": Reader(
        table("own.jsonl", '{"video": "a.mp4", "text": "a dog", "start": 1, "end": 2.5}\n'),
        lambda folder: read_user_captions(folder / "own.jsonl"),
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
    "msvd": replace(annotations("msvd", "raw-captions.pkl"), most=2**20),
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
        for name, damaged in json_text_mutations(value, random, 15):
            if name in REPLACEMENTS:  # they were among the first
                continue
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
        if len(content) > reader.most:
            continue
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


def hdf5(path: Path, fill: Callable[[h5py.File], object]) -> Path:
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def link_to(target: object) -> Callable[[h5py.File], object]:
    return lambda file: file.__setitem__("v#enc#0", target)


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (link_to(h5py.SoftLink("/nowhere")), "is a link"),
        (link_to(h5py.ExternalLink("pipe", "/v")), "is a link"),
        (lambda file: file.create_group("v#enc#0"), "is a Group"),
        (link_to(np.arange(4)), "is int64"),
        (link_to(h5py.Empty("f4")), "is float32|cannot be read"),
        (lambda file: file.create_dataset("v#enc#0", (2,), h5py.string_dtype()), "is object"),
        (lambda file: file.create_dataset("v#enc#0", (10**12, 4), "f4", chunks=(64, 4)), "of which the file holds 0"),
        (lambda file: file.create_dataset("v#enc#0", (1, 4), "f4", external=[("pipe", 0, 16)]), "lies in another file"),
        (link_to(np.full((2, 4), np.nan)), "NaN or infinity"),
        (link_to(np.float32(1.0)), "is not a matrix"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_hdf5_that_is_no_flat_file_of_matrices_is_refused(
    fill: Callable[[h5py.File], object], message: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")  # whoever follows a link to it waits forever
    with pytest.raises(DataError, match=message), QueryFeatures(hdf5(tmp_path / "q.hdf5", fill)) as queries:
        queries.read("v#enc#0")
    with pytest.raises(DataError, match=message), open_features(hdf5(tmp_path / "feature.hdf5", fill).parent) as videos:
        videos.read("v#enc#0")


@pytest.mark.parametrize("name", ["missing", "./missing", "~/missing", "a/b/c", "/missing/model", "runs\\best"])
@pytest.mark.parametrize("load", [load_pretrained, Retriever.from_pretrained, CandidateReranker.from_pretrained])
def test_a_missing_model_folder_is_named_without_asking_the_hub(
    load: Callable[[str], object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no such folder\. Expected a folder of save_pretrained, or OWNER/NAME"):
        load(name)


def test_a_model_of_the_hub_is_looked_for_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^owner/name: no such folder, and the hub does not give such a model"):
        Retriever.from_pretrained("owner/name", cache_dir=tmp_path / "cache", local_files_only=True)
    snapshot = tmp_path / "cache" / "models--owner--name" / "snapshots" / ("0" * 40)
    Retriever(small()).save_pretrained(snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("0" * 40)
    loaded = Retriever.from_pretrained("owner/name", cache_dir=tmp_path / "cache", local_files_only=True)
    assert loaded.config == small()


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    file = retriever("config.json")(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"blocks": [{}, {}]}))
    with pytest.raises(DataError, match=r"model\.safetensors: not the weights of this model"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"a: &a [1]\nb: *a\n",
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [*%c,*%c]\n" % (c + 1, c + 1, c, c) for c in range(97, 121)),
        b"[" * 100_000,
        b"a: " * 100_000,
        b"x" * 10_000_000,
        b"\xff\xfe",
        b"1: 2\n",
        b"null: 2\n",
        b"? [a]\n: 1\n",
        b"model: " + b"9" * 5000,
        b"model: 2020-13-45\n",
        b"!!python/object/apply:os.system [true]\n",
        b"",
    ],
)
def test_a_configuration_that_does_harm_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    assert "mine.yaml" in explained(["train", "--config", str(file), "--output", str(tmp_path / "run")], capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_pipe_or_a_folder_as_configuration_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe", "folder"):
        for option in ("--config", "--preset"):
            said = explained(["train", option, str(tmp_path / f"{name}.yaml")], capsys)
            assert f"{name}.yaml: expected a regular file" in said
