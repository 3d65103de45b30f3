"""Every command that a command prints is run: what follows "Next:", and how to train what was better."""

import ast
import json
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import SMALL, as_options
from golden import Golden
from search_files import TOY, noise_features
from test_cli_convert import WRITERS
from test_cli_rerank import QUICK
from test_teach import library, table

import prvr_search
from prvr.cli import main
from prvr.config import RETRIEVERS
from prvr.corpora.exported import export_features
from prvr.data import open_corpus
from prvr.data.layout import Caption, TextData, write_layout
from prvr.toy import read_toy_scenes
from prvr_search.films import toy_videos
from prvr_search.films.toy_videos import write_short_videos

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = {
    "name": "best-frame",
    "imports": ["own_retriever"],
    "model": {"kind": "best_frame", "video_dim": 0, "query_dim": 0, "hidden": 16, "max_frames": 40},
    "loss": {"contrastive": {"weight": 1.0}, "triplet": 0, "diversity": 0, "info_nce_clips": 0, "info_nce_frames": 0},
    "data": {"collection": "toy-tiny"},
    "train": {"epochs": 1, "batch_size": 30},
    "fit": {key.removeprefix("fit."): value for key, value in SMALL.items() if key.startswith("fit.")},
}
FEW = ["--train.epochs", "1", "--model.hidden", "16", "--model.heads", "2", "--fit.baseline", "never"]
SITES = {"libraries.py": 1, "teach.py": 1, "published/cli.py": 1, "diffusionret/cli.py": 1, "cli/evaluate.py": 1}
SITES |= {"cli/convert.py": 3, "cli/train.py": 1, "toy/cli.py": 1, "papers/cli.py": 1, "benchmarks/cli.py": 2}


def forget() -> None:
    """As a new process."""
    sys.modules.pop("own_retriever", None)
    RETRIEVERS._entries.pop("best_frame", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a space in its name, and a retriever of somebody's own in it."""
    work = tmp_path / "my work"
    work.mkdir()
    shutil.copy(EXAMPLES / "own_retriever.py", work)
    (work / "own.yaml").write_text(json.dumps(OWN))
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    forget()
    yield work
    forget()


def following(
    words: list[str], capsys: pytest.CaptureFixture[str], *more: str, marker: str = "Next:", code: int = 0
) -> list[str]:
    """Runs a command, and what it says comes next, with further words; returns that command."""
    forget()
    capsys.readouterr()
    assert main(words) == code, capsys.readouterr().err
    lines = capsys.readouterr().out.splitlines()
    command = shlex.split(lines[lines.index(marker) + 1])
    assert command[0] == "prvr"
    forget()
    assert main([*command[1:], *more]) == 0, (command, capsys.readouterr().err)
    return command[1:]


def test_every_place_that_says_what_comes_next_is_tested_here() -> None:
    found = Counter[str]()
    for package in map(Path, (*sys.modules["prvr"].__path__, *prvr_search.__path__)):
        for file in package.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "show_next":
                    found[next((name for name in SITES if file.as_posix().endswith(name)), str(file))] += 1
    assert found == SITES


@pytest.mark.usefixtures("toy_cache")
def test_a_retriever_of_ones_own_below_a_stage_and_in_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--import", "own_retriever"]
    assert following(["train", "--config", "own.yaml", "--output", "runs/own"], capsys)[2:] == own
    forget()
    train = ["train", "--retriever", "runs/own", "--output", "runs/over it", *QUICK, *own]
    assert following(train, capsys) == ["evaluate", "runs/over it", *own]
    assert following(["pipeline", "runs/over it", "--output", "system", *own], capsys)[-2:] == own
    rows = [{"name": "own", "base": "own.yaml"}, {"name": "fitted", "base": "kernel-toy", "keys": SINGLE_FIT}]
    study = {"title": "ours", "sets": ["toy"], "columns": ["sumr"], "imports": ["own_retriever"], "rows": rows}
    (folder / "table.yaml").write_text(json.dumps(study | {"keys": {"data.collection": "toy-tiny"}}))
    assert main(["papers", "plan", "table.yaml"]) == 0
    assert "2 runs, 2 not finished" in capsys.readouterr().out
    following(["papers", "run", "table.yaml", "--output", "study"], capsys)


SINGLE_FIT = {key: value for key, value in SMALL.items() if key.startswith("fit.")}


@pytest.mark.usefixtures("toy_cache")
@pytest.mark.parametrize("own", [True, False])
def test_what_was_better_is_trained_as_it_says(own: bool, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kernel regression, beside a model that has learned nothing, of one's own or of the family."""
    if own:
        words = ["train", "--config", "own.yaml"]
    else:
        (folder / "family.yaml").write_text(json.dumps({"name": "family", "base": "gmmformer-toy"}))
        words = ["train", "--config", "family.yaml", "--data.collection", "toy-tiny", "--train.epochs", "1"]
        words += ["--model.hidden", "2", "--model.heads", "1"]
    fit = as_options(SINGLE_FIT)
    command = [*words, "--optim.lr", "1e-9", *fit]
    fitted = following([*command, "--output", "run"], capsys, *fit, marker="Kernel regression:")
    assert fitted[:3] == ["train", "--preset", "kernel-toy"]
    forget()
    assert main([*command, "--output", "again"]) == 0
    says = "add --model.start kernel" in capsys.readouterr().out
    assert says != own
    if says:
        assert main([*command, "--model.start", "kernel", "--output", "started"]) == 0


def test_from_films_to_a_model_that_searches_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes = write_short_videos(folder / "films", 4, seed=5)
    rows = [f"{sentence.video_id},{sentence.text}" for sentence in scenes.sentences]
    (folder / "CAPTIONS.csv").write_text("\n".join(["video,text", *rows]) + "\n")
    some = {"--val": "0.25", "--test": "0.25"}
    shares = [word for pair in some.items() for word in pair]
    following(["export", "films", "--output", "features", "--encoder", "toy"], capsys, *shares)
    corpus = ["convert", "captions", "CAPTIONS.csv", "--features", "films", "--output", "more", *shares]
    train = following(corpus, capsys, *FEW, "--output", "run")
    assert train[:3] == ["train", "--preset", "hybrid-toy"]
    assert following([*train, *FEW, "--output", "again"], capsys)[:2] == ["search", str(folder / "films")]


def test_a_folder_that_was_taught(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert library(folder / "films", 0.7)
    following(["teach", "films", str(table(folder / "captions.csv"))], capsys)


def test_the_drawn_corpus_as_films(
    folder: Path, toy_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(toy_root / "toy-tiny", folder / "drawn" / "toy-tiny")
    scenes = read_toy_scenes(open_corpus(toy_root, "toy-tiny"))["test"]
    monkeypatch.setattr(
        toy_videos, "read_toy_scenes", lambda corpus: {"test": replace(scenes, videos=scenes.videos[:2])}
    )
    following(["data", "make", "--output", "drawn", "--size", "tiny", "--mp4"], capsys)


def test_features_and_pictures_of_ones_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    for kind, rows, width in (("films", 6, 24), ("words", 3, 20)):
        (folder / kind).mkdir()
        for name in (f"v{number}" for number in range(8)):
            np.save(folder / kind / name, draw.standard_normal((rows, width)).astype(np.float32))
    words = ["convert", "features", "films", "--queries", "words", "--output", "data", "--captions"]
    for name, splits in (("with_val", ["train"] * 6 + ["val", "test"]), ("without", ["train"] * 6 + ["test"] * 2)):
        lines = [f"v{number},something {number},v{number},{split}" for number, split in enumerate(splits)]
        (folder / f"{name}.csv").write_text("\n".join(["video,text,id,split", *lines]) + "\n")
        following([*words, f"{name}.csv"], capsys, *FEW, "--output", f"run of {name}")


def test_a_benchmark_and_a_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "annotations").mkdir()
    WRITERS["msrvtt"](folder / "annotations")
    export_features(noise_features(TOY, [f"video{number}.mp4" for number in range(4)]), folder / "features")
    words = ["convert", "benchmark", "msrvtt", "--annotations", "annotations", "--features", "features"]
    following([*words, "--output", "data"], capsys, *FEW[:2], *FEW[-2:], "--output", "run")
    golden = Golden("gmmformer")
    torch.save({"config": golden.config, "state_dict": golden.state}, folder / "best.ckpt")
    config = golden.load(torch.float32)[0].config
    captions = {"test": [Caption(f"v{n}#enc#0", f"v{n}", "words") for n in range(3)]}
    draw = np.random.default_rng(0)

    def rows(width: int, *names: str) -> list[tuple[str, np.ndarray]]:
        return [(name, draw.standard_normal((5, width)).astype(np.float32)) for name in names]

    videos = rows(config.video_dim, "v0", "v1", "v2")
    queries = rows(config.query_dim, "v0#enc#0", "v1#enc#0", "v2#enc#0")
    WRITERS["uca"](folder / "annotations")
    names = [f"Abuse{number}_x264.mp4" for number in ("001", "043")]
    export_features(noise_features(TOY, [*names, "Normal_Videos_003_x264.mp4"]), folder / "more")
    words = ["convert", "benchmark", "uca", "--annotations", "annotations", "--features", "more", "--output", "data"]
    forget()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "--preset hybrid-toy --data-root data --data.collection uca --train.protocol val" in said
    write_layout(folder / "ROOT" / "tvr", TextData(captions), feature="i3d_resnet", videos=videos, queries=queries)
    following(["convert", "checkpoint", "best.ckpt", "--dataset", "tvr", "--output", "model"], capsys)
