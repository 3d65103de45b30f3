"""Every format of a single file that prvr reads: what writes one, and what reads it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from benchmark_files import WRITERS
from reports import make_report

from prvr.config import BlockConfig, ModelConfig, dump_config, load_config
from prvr.corpora.corpus_encoders import read_sentences, write_sentences
from prvr.data import Caption, MomentTimes, PackedSplit, PackSettings, TextData, open_corpus, pack, write_layout
from prvr.evaluation import RetrievalMetrics
from prvr.evaluation.compare import compare, comparison_table
from prvr.evaluation.report import GroupMetrics, TagMetrics
from prvr.evaluation.significance import Interval
from prvr.models import Retriever, load_pretrained
from prvr.papers.benchmarks import BENCHMARKS
from prvr.published.checkpoint_files import convert_checkpoint
from prvr.published.diffusionret.candidate_reranker import CandidateReranker
from prvr.published.diffusionret.run_config import RerankerConfig
from prvr.published.diffusionret.token_retriever import TokenRetriever


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
    sealed: bool = False
    """Whether hashes protect it, so that what is read of a damaged file is what was written."""


def write_bigfile(folder: Path, videos: Iterable[tuple[str, np.ndarray]]) -> Path:
    """Frame features as BigFile: a flat matrix, its shape, the names of its rows, and those of each video."""
    matrices = dict(videos)
    frames = {name: [f"{name}_{row}" for row in range(len(matrix))] for name, matrix in matrices.items()}
    rows = np.concatenate([*matrices.values()]).astype("<f4")
    (folder / "feature.bin").write_bytes(rows.tobytes())
    (folder / "shape.txt").write_text(f"{rows.shape[0]} {rows.shape[1]}\n")
    (folder / "id.txt").write_bytes(" ".join(name for names in frames.values() for name in names).encode())
    (folder / "video2frames.txt").write_text(repr(frames), encoding="utf-8")
    return folder


def written_corpus(root: Path) -> Path:
    rng = np.random.default_rng(0)
    captions = {"test": [Caption(f"{v}#enc#{k}", v, f"text {k} of {v}") for v in ("one", "two") for k in range(2)]}
    some = captions["test"]
    videos = [(v, rng.standard_normal((3, 4)).astype(np.float32)) for v in ("one", "two")]
    corpus = write_layout(
        root / "col",
        TextData(
            captions=captions,
            moments={c.id: MomentTimes(0.0, 1.0, 2.0) for c in some},
            relevance={c.id: ["one", "two"] for c in some},
            tags={c.id: ["tag"] for c in some},
        ),
        videos=videos,
        queries=[(c.id, rng.standard_normal((2, 3))) for c in some],
        about={"benchmark": "msvd", "encoders": encoders(), "look": "day"},
        extras=lambda folder: write_sentences(folder, captions, {c.id: np.ones(4, np.float32) / 2 for c in some}),
    )
    write_bigfile(corpus / "FeatureData" / "frames", videos)
    return corpus


def encoders() -> dict[str, object]:
    identity = {"name": "toy", "weights": "0" * 64, "preprocessing": "1"}
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


def annotations(name: str, file: str) -> Reader:
    def write(folder: Path) -> Path:
        WRITERS[name](folder)
        return folder / file

    return Reader(write, BENCHMARKS[name].part.read)


def packed(root: Path) -> Path:
    written_corpus(root)
    with pack(open_corpus(root, "col"), "test", cache_dir=root / "cache", settings=PackSettings(2, 4, 4)) as found:
        return found.files.folder


def open_packed(root: Path) -> str:
    (folder,) = (root / "cache").iterdir()
    with PackedSplit.open(folder) as split:
        return str((split.captions, split.relevant, split.tags, split.moments, split.video(0), split.query(0)))


def table(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return folder / name

    return write


def evaluation(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        metrics = RetrievalMetrics.from_ranks(torch.tensor([1, 2]))
        parts = {"groups": (GroupMetrics(0.0, 0.2, metrics),), "tags": (TagMetrics("tag", metrics),)}
        more = {"text_to_text": metrics, "video_to_sets": metrics, "intervals": {"r1": Interval(0.0, 1.0)}}
        make_report([1, 2], [0, 1], **parts, **more).to_json(folder / "evaluation.json")
        return folder / name

    return write


def compared(folder: Path) -> str:
    path = folder / "evaluation.json"
    return str(comparison_table(compare(path, path, samples=2)).columns)


def small() -> ModelConfig:
    return ModelConfig(video_dim=4, query_dim=3, hidden=4, heads=2, num_clips=2, max_frames=4, blocks=(BlockConfig(),))


MODELS: dict[str, Callable[[], Retriever | TokenRetriever | CandidateReranker]] = {
    "retriever": lambda: Retriever(small()),
    "reranker": lambda: CandidateReranker(RerankerConfig(width=8, steps=10, candidates=3), "v2t"),
}


def saved(model: str, name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        MODELS[model]().save_pretrained(folder)
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
        table("a.yaml", dump_config(load_config("hybrid-toy"))), lambda folder: load_config(folder / "a.yaml")
    ),
    "captions": Reader(of_corpus(f"{TEXT}/coltest.caption.txt"), split_of),
    "relevance": Reader(of_corpus(f"{TEXT}/col_relevance.jsonl"), split_of),
    "corpus.json, benchmark": Reader(of_corpus("corpus.json"), lambda root: open_corpus(root, "col").is_benchmark),
    "sentences": Reader(
        of_corpus("sentences.safetensors"), lambda root: read_sentences(open_corpus(root, "col"), "test"), rounds=20
    ),
    "shape.txt": Reader(of_corpus(f"{FEATURES}/shape.txt"), features_of),
    "feature.bin": Reader(of_corpus(f"{FEATURES}/feature.bin"), features_of),
    "video2frames.txt": Reader(of_corpus(f"{FEATURES}/video2frames.txt"), features_of),
    "feature.hdf5": Reader(of_corpus(f"{FEATURES}/feature.hdf5"), hdf5_of, rounds=12),
    "packed header": Reader(lambda root: packed(root) / "meta.json", open_packed, sealed=True),
    "packed frames": Reader(lambda root: packed(root) / "frames.bin", open_packed, sealed=True),
    "evaluation": Reader(evaluation("evaluation.json"), compared),
    "ranks of an evaluation": Reader(evaluation("evaluation_ranks.npz"), compared),
    "configuration of a model": Reader(saved("retriever", "config.json"), load_pretrained),
    "weights of a model": Reader(saved("retriever", "model.safetensors"), load_pretrained, rounds=10),
    "configuration of a re-ranker": Reader(saved("reranker", "config.json"), CandidateReranker.from_pretrained),
    "checkpoint of the authors": Reader(checkpoint, converted, rounds=20, readable=False),
    "msrvtt": annotations("msrvtt", "MSRVTT_data.json"),
    "msvd": replace(annotations("msvd", "raw-captions.pkl"), most=2**20),
    "lsmdc": annotations("lsmdc", "LSMDC16_annos_training.csv"),
}
