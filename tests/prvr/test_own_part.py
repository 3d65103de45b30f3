"""The page of own parts, followed in an empty folder: every file and every command of it."""

import itertools
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
import yaml
from commands import explained
from search_files import TOY, make_features, make_index, some_videos
from torch import nn
from training_runs import RUNS, interrupt, same_end

from prvr.cli import app, main
from prvr.cli.options import import_parts
from prvr.config import (
    BLOCKS,
    CLIPS,
    LOSSES,
    QUERIES,
    RETRIEVERS,
    STREAMS,
    ConfigError,
    OptimConfig,
    load_config,
)
from prvr.data import DataError, open_corpus
from prvr.errors import InputError
from prvr.models import OwnRetriever, Retriever, build_retriever, load_pretrained
from prvr.papers import read_table
from prvr.stages import STAGES, Pipeline
from prvr.toy.toy_corpus import corpus_key, write_corpus
from prvr.training import RetrievalTask
from prvr.training.optimizer import parameter_groups
from prvr_search import open_model

PAGE = (Path(__file__).parents[2] / "docs" / "own-part.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[1:] for line in re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)[0].splitlines() if line
]
FIT = RUNS["kernel"]["fit"]
PARTS = ((LOSSES, "centring"), (BLOCKS, "running_mean"), (CLIPS, "neighbours"), (STAGES, "mean_frame"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def forget() -> None:
    """As a new process."""
    sys.modules.pop("myparts", None)
    for registry, name in PARTS:
        registry._entries.pop(name, None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the files of the page."""
    (tmp_path / "myparts.py").write_text("\n\n".join(blocks("python")), encoding="utf-8")
    mine, table = blocks("yaml")
    mine = mine.replace("model:", f"fit: {json.dumps(FIT)}\nmodel:\n  hidden: 16")
    (tmp_path / "mine.yaml").write_text(mine, encoding="utf-8")
    (tmp_path / "ablation.yaml").write_text(table.replace("seeds: [0, 1]", "seeds: [0]"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()


@pytest.mark.usefixtures("toy_cache")
def test_every_command_of_the_page_does_its_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for words in COMMANDS:
        forget()
        if "--import" in words:  # a file that does not import them itself
            alone = [word for word in words if word not in ("--import", "myparts")]
            assert re.search("uses parts of myparts|--import MODULE|of your own", explained(alone, capsys))
        assert main([*words, "-q"]) == 0, words
        printed.append(capsys.readouterr().out)
    table = next(text for text in printed if "tabular" in text)
    assert all(f"\n{row} & " in table for row in ("base", "loss", "block", "clips", "block and stage"))
    assert "1. mean_frame" in printed[2]
    forget()
    for read, source in (
        (lambda: load_pretrained(folder / "run" / "best"), "config.json"),
        (lambda: Pipeline.from_pretrained(folder / "system"), "pipeline.json"),
        (lambda: load_config(folder / "mine.yaml"), "mine.yaml"),  # Python imports by itself
        (lambda: read_table(folder / "ablation.yaml"), "ablation.yaml"),
    ):
        with pytest.raises(ConfigError, match=rf"{source}: uses parts of myparts, .*add --import myparts"):
            read()
    assert "myparts" not in sys.modules


def test_a_file_that_is_no_configuration_and_no_table_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "films").mkdir()
    (tmp_path / "marked.py").write_text("open('ran', 'w')\n")
    for name in ("x.yaml", "config.yaml"):
        (tmp_path / name).write_text("imports: [marked]\nname: x\nbase: gmmformer-toy\n")
    for command in (
        "search films --file x.yaml",
        "evaluate x.yaml",
        "train --preset gmmformer-toy --output x.yaml --print-config",
        "train --config config.yaml --print-config",
        "papers show hlformer-table-2 --output x.yaml",
    ):
        main(shlex.split(command))
        assert not (tmp_path / "ran").exists(), command
        assert "marked" not in sys.modules


def test_only_the_named_module_comes_from_the_working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it imports itself; no library that is not installed, whoever asks for it meanwhile."""
    (folder / "site").mkdir()  # where libraries are installed may lie below
    (folder / "site" / "wanting.py").write_text("try:\n    import no_such_library\nexcept ImportError:\n    pass\n")
    monkeypatch.syspath_prepend(folder / "site")
    (folder / "beside.py").write_text("open('beside', 'w')\n")
    (folder / "no_such_library.py").write_text("open('library', 'w')\n")
    text = (folder / "myparts.py").read_text(encoding="utf-8")
    text += "\nimport beside\nimport wanting\nfrom prvr.errors import MissingExtraError, require\n"
    text += "try:\n    require('no_such_library', 'x', 'It')\nexcept MissingExtraError:\n    open('absent', 'w')\n"
    (folder / "myparts.py").write_text(text, encoding="utf-8")
    assert main(["train", "--print-config", "--config=mine.yaml"]) == 0
    assert {path.name for path in folder.iterdir()} >= {"beside", "absent"}
    assert not (folder / "library").exists()
    for name in ("beside", "wanting"):
        sys.modules.pop(name)


def test_an_installed_package_may_name_its_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    about = folder / "parts-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: parts\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[prvr.parts]\nshort = myparts\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    text = (folder / "mine.yaml").read_text(encoding="utf-8").replace("[myparts]", "[short]")
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    assert main(["train", "--config", "mine.yaml", "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["imports"] == ["short", "myparts"]


EXAMPLES = Path(__file__).parents[2] / "examples"
SUBTITLES = {"feature": "subtitles", "max_rows": 4, "fusion": "where_it_agrees"}
ALONE = {"contrastive": 1, "triplet": 0, "diversity": 0, "info_nce_clips": 0, "info_nce_frames": 0}
MODELS = {
    "own_query_encoder": (QUERIES, "bert", {"query_encoder": {"kind": "bert", "layers": 1}}, {}),
    "own_stream": (STREAMS, "where_it_agrees", {"stream": SUBTITLES}, {}),
    "own_retriever": (RETRIEVERS, "best_frame", {"kind": "best_frame", "dropout": 0.2}, ALONE),
    "own_moments": (RETRIEVERS, "words", {"kind": "words"}, ALONE | {"boundaries": 0.1}),
}


@pytest.fixture
def example(request: pytest.FixtureRequest, toy_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty folder with an example as a module, a corpus, and a configuration that names the part."""
    module = request.param
    registry, name, model, loss = MODELS[module]

    def forget_it() -> None:
        sys.modules.pop(module, None)
        registry._entries.pop(name, None)
        LOSSES._entries.pop("boundaries", None)

    corpus = shutil.copytree(write_corpus(toy_cache / corpus_key(), "tiny").folder, tmp_path / "data" / "toy-tiny")
    shutil.copy(EXAMPLES / f"{module}.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    forget_it()
    prepare = {"own_query_encoder": "write_tokens", "own_stream": "draw_subtitles"}.get(module)
    if prepare is not None:
        runpy.run_path(str(EXAMPLES / f"{module}.py"))[prepare](open_corpus(corpus.parent, corpus.name))
    forget_it()
    config = {
        "name": "own",
        "imports": [module],
        "model": {"video_dim": 0, "query_dim": 0, "hidden": 16} | model,
        "loss": loss,
        "fit": FIT,
    }
    config |= {"data": {"collection": "toy-tiny", "root": "data", "captions_per_video": 1, "feature": "frames"}}
    config |= {"train": {"epochs": 2, "batch_size": 30, "checkpoint_every": 1}, "optim": {"backbone_lr": 0.002}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    yield module, forget_it
    forget_it()


@pytest.mark.parametrize("example", MODELS, indirect=True)
def test_a_model_of_ones_own_is_trained_resumed_evaluated_saved_and_compared(
    example, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, forget_it = example
    run = ["train", "--config", "own.yaml", "--output"]
    assert main([*run, "straight", "-q"]) == 0
    select = RetrievalTask.select
    monkeypatch.setattr(RetrievalTask, "select", lambda task, n: interrupt() if n else select(task, n))
    assert main([*run, "broken", "-q"]) == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    rows = [{"name": str(size), "keys": {"train.epochs": 1, SETTINGS[module]: size}} for size in (1, 2)]
    table = {"title": "own", "imports": [module], "base": "own.yaml", "columns": ["sumr"], "sets": ["toy"]}
    (tmp_path / "table.yaml").write_text(yaml.safe_dump({**table, "seeds": [0], "rows": rows}), encoding="utf-8")
    commands = (
        "train --resume --output broken",
        "evaluate straight",
        "pipeline straight --stage qb_norm --output system",
        "evaluate system",
        "papers run table.yaml --output study --data-root data",
        "papers plan table.yaml --output study --data-root data --measure",
    )
    for command in commands:
        forget_it()
        if "table" not in command:
            assert re.search(f"uses parts of {module}", explained(shlex.split(command), capsys))
        assert main([*shlex.split(command), *([] if "table" in command else ["--import", module]), "-q"]) == 0, command
    uncounted = module in ("own_query_encoder", "own_moments")  # whose operations torch cannot count
    assert ("?" in capsys.readouterr().out) == uncounted
    assert same_end(tmp_path / "straight", tmp_path / "broken")
    if module == "own_retriever":
        for kind in (Retriever, OwnRetriever):
            with pytest.raises(InputError, match=r"a model of kind 'best_frame', no .*prvr\.models\.load_pretrained"):
                kind.from_pretrained(tmp_path / "straight" / "best")
    assert len(list((tmp_path / "study" / "results").glob("*.json"))) == 2


WORDS = "embeddings.word_embeddings.weight"
SETTINGS = {
    "own_query_encoder": "model.query_encoder.layers",
    "own_retriever": "model.hidden",
    "own_stream": "model.stream.max_rows",
    "own_moments": "model.hidden",
}


@pytest.mark.parametrize("example", ["own_moments"], indirect=True)
def test_moments_of_ones_own_are_judged_drawn_and_searched(
    example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--config", "own.yaml", "--output", "run", "-q"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--import", "own_moments", "-q"]) == 0
    printed = capsys.readouterr().out
    assert "beside answers that read no query" in printed
    assert printed.count("below 70%") == 1  # as all of them are
    assert main(["plot", "examples", "run", "--output", "examples.png", "--import", "own_moments", "-q"]) == 0
    model = load_pretrained(tmp_path / "run" / "best")
    assert [*model.moment_heads] == ["boundaries"]
    with make_index(tmp_path / "index", tmp_path / "run", make_features(some_videos([30, 24, 300]))) as index:
        for hit in index.search("a red square rises", 3, moments=4).hits:
            spans = sorted((moment.start, moment.end) for moment in hit.moments)
            assert (hit.start, hit.end) == (hit.moments[0].start, hit.moments[0].end)
            assert all(0 <= start < end <= hit.video.duration + 1e-6 for start, end in spans)
            assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.parametrize("example", ["own_retriever"], indirect=True)
def test_a_row_of_a_study_may_have_a_retriever_of_ones_own(example, tmp_path: Path) -> None:
    rows = [{"name": "theirs"}, {"name": "mine", "base": "own.yaml", "keys": {"model.hidden": 8}}]
    keys = {"data.collection": "toy-tiny", "model.hidden": 16, "train.epochs": 1}
    table = {
        "title": "own",
        "imports": ["own_retriever"],
        "base": "gmmformer-toy",
        "columns": ["sumr"],
        "sets": ["toy"],
    }
    (tmp_path / "table.yaml").write_text(yaml.safe_dump({**table, "seeds": [0], "keys": keys, "rows": rows}), "utf-8")
    assert main(["papers", "run", "table.yaml", "--output", "study", "--data-root", "data", "-q"]) == 0
    kinds = {type(load_config(path).model).__name__ for path in (tmp_path / "study").rglob("config.yaml")}
    assert kinds == {"ModelConfig", "BestFrameConfig"}


@pytest.mark.parametrize("example", ["own_stream"], indirect=True)
def test_a_run_is_not_resumed_on_another_stream_and_not_searched(
    example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--config", "own.yaml", "--output", "run", "--train.epochs", "1", "-q"]) == 0
    assert main(["plot", "frames", "run", "--output", "frames.png", "--import", "own_stream", "-q"]) == 0
    with pytest.raises(DataError, match=r"reads the stream 'subtitles' beside frames, which no library"):
        open_model(tmp_path / "run", TOY)
    with h5py.File("data/toy-tiny/FeatureData/subtitles/feature.hdf5", "a") as file:
        rows = next(iter(file.values()))
        rows[...] = -rows[...]
    resumed = ["train", "--resume", "--output", "run", "--import", "own_stream", "-q"]
    capsys.readouterr()
    assert main(resumed) == 2
    assert "begun on other features" in capsys.readouterr().err
    (tmp_path / "data" / "toy-tiny" / "FeatureData" / "subtitles").rename("elsewhere")
    assert "Under FeatureData: ['frames']. Set data.feature" in explained(
        ["train", "--config", "own.yaml", "--output", "new"], capsys
    )


def test_only_a_file_that_the_command_names_imports(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.yaml").write_text((folder / "mine.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "child.yaml").write_text("name: child\nbase: mine.yaml\n", encoding="utf-8")
    for name in ("config.yaml", "child.yaml"):  # what a run holds; what another file names
        error = explained(["train", "--config", name, "--print-config"], capsys)
        assert f"{name}: uses parts of myparts, which is not imported" in error
        assert "myparts" not in sys.modules
    assert main(["train", "--config=mine.yaml", "--print-config"]) == 0


def test_an_error_of_a_part_is_not_reported_as_one_of_prvr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'from prvr.cli import app\n@app.command\ndef broken():\n    {}["absent"]\n'
    (tmp_path / "brokenpart.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    try:
        assert main(["broken", "--import", "brokenpart"]) == 1
        printed = capsys.readouterr().err
        assert "KeyError: 'absent'" in printed
        assert printed.endswith("prvr: error: brokenpart failed, see the lines above.\n")
        monkeypatch.setattr("prvr.cli.import_parts", lambda names: {}["own"])
        assert main(["broken", "--import", "brokenpart"]) == 1
        assert "this is a bug in prvr" in capsys.readouterr().err
    finally:
        sys.modules.pop("brokenpart", None)
        if "broken" in app:
            del app["broken"]


def test_a_pretrained_part_has_a_learning_rate_of_its_own_and_its_weights_are_not_needed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertConfig, BertModel  # a second, of every process that collects the tests

    monkeypatch.syspath_prepend(EXAMPLES)
    import_parts(["own_query_encoder"])
    sizes = BertConfig(vocab_size=1000, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    pretrained = BertModel(sizes, add_pooling_layer=False)
    pretrained.save_pretrained(tmp_path / "bert")
    changes = {"kind": "bert", "pretrained": str(tmp_path / "bert")}
    config = load_config("gmmformer-toy", {"model.query_dim": 1, "model.query_encoder": changes}).model
    retriever: Any = build_retriever(config)
    try:
        assert torch.equal(retriever.backbone.state_dict()[WORDS], pretrained.state_dict()[WORDS])
        groups = parameter_groups(retriever, nn.Module(), OptimConfig(backbone_lr=1e-5), retriever.backbone)
        slow = {id(p) for group in groups if group.get("lr") == 1e-5 for p in group["params"]}
        assert slow == {id(p) for p in retriever.backbone.parameters()}
        shutil.rmtree(tmp_path / "bert")
        retriever.save_pretrained(tmp_path / "saved")
        assert load_pretrained(tmp_path / "saved").config == config
        with pytest.raises(ConfigError, match=r"did you mean model\.query_encoder\.layers"):
            load_config("gmmformer-toy", {"model.query_encoder": {"kind": "bert", "layer": 1}})
    finally:
        QUERIES._entries.pop("bert")
        sys.modules.pop("own_query_encoder")
