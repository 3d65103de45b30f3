"""prvr demo: what it prints is what was found, in an order that a newcomer can follow."""

import io
import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import SMALL

from prvr.cli import main
from prvr.data import open_corpus, pack
from prvr.data.hashes import hash_file
from prvr.evaluation import report_from_scores
from prvr.evaluation.zero_shot import zero_shot_scores
from prvr.plot import examples
from prvr_search import Library
from prvr_search.cli import demo
from prvr_search.films.toy_videos import write_short_videos
from prvr_search.store.features import encoder_key


@pytest.fixture(scope="module")
def quick(toy_cache: Path) -> Iterator[None]:
    """A demo of seconds, --quick as it is but for the size of the model."""
    with pytest.MonkeyPatch.context() as patch:
        changes = {key: value for key, value in SMALL.items() if key not in ("model.blocks", "model.lorentz_dim")}
        changes |= {"data.collection": "toy-tiny", "data.cache_dir": str(toy_cache)}
        for key, value in changes.items():
            patch.setitem(demo._QUICK, key, value)
        patch.setattr(demo, "_VIDEOS", 4)
        patch.setattr(demo, "_FIRST_VIDEOS", 2)
        yield


@pytest.fixture(scope="module")
def shown(quick: None, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """What a demo said, what it drew, and its run."""
    folder, out, err = tmp_path_factory.mktemp("demo"), io.StringIO(), io.StringIO()
    drawn, draw = [], examples.examples_figure
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        (folder / "runs" / "demo").mkdir(parents=True)  # somebody's: another name is taken
        patch.setattr(examples, "examples_figure", lambda some, *more: (drawn.extend(some), draw(some, *more))[1])
        assert main(["demo", "--quick"]) == 0
    assert not any((folder / "runs" / "demo").iterdir())
    run = folder / "runs" / "demo-1"
    return SimpleNamespace(out=out.getvalue(), err=err.getvalue(), drawn=drawn, folder=folder, run=run)


def test_a_demo_waits_for_another_one_that_encodes_the_same_videos(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    write_short_videos(tmp_path / "videos", demo._FIRST_VIDEOS, demo._FIRST_SEED)
    with Library(tmp_path / "videos", model="toy-world") as library, ExitStack() as other:
        library.prepare()
        assert library.spec is not None
        for video in (tmp_path / "videos").glob("*.mp4"):
            assert other.enter_context(library.store.claimed(encoder_key(library.spec), hash_file(video)))
        monkeypatch.setattr(time, "sleep", lambda seconds: other.close())
        demo._search_first(tmp_path / "demo")
    assert "by chance, for" in capsys.readouterr().out


def numbers(out: str, row: str) -> list[float]:
    """The numbers of the first line that starts with a name."""
    line = next(line for line in out.splitlines() if line.strip().startswith(row))
    return [float(number) for number in re.findall(r"[\d.]+", line.strip().removeprefix(row))]


def test_it_searches_before_it_trains(
    shown: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shown.folder)
    before, _, _ = shown.out.partition("Training a new model")
    hits = re.findall(r"^\d +(film-\d\.mp4) +[\d.]+ +\d:\d\d-\d:\d\d", before, flags=re.MULTILINE)
    assert sorted(hits) == ["film-1.mp4", "film-2.mp4"]
    ((told, own),) = re.findall(r"^(Right|Wrong): the sentence was written for (film-\d\.mp4)", before, flags=re.M)
    assert (told == "Right") == (own == hits[0])
    ((first, chance),) = re.findall(r"comes first for (\d+)\s+of them; by chance, for\s+(\d+)", before)
    assert 5 <= int(chance) <= int(first) <= 10

    page = (shown.run.with_name("demo-1-first") / "results.html").read_text()
    assert page.count("<img ") == 2 + 9
    command = shlex.split(before.strip().splitlines()[-1])
    assert main([*command[1:], "--no-update"]) == 0
    assert "2 of 2 videos" in capsys.readouterr().out


def test_it_shows_what_was_found(shown: SimpleNamespace, toy_root: Path, toy_cache: Path) -> None:
    out, drawn = shown.out.partition("Training a new model")[2], shown.drawn
    assert "epoch 1: loss" in shown.err
    parts = ["corpus:", "chance", "zero-shot", "this model", "unseen word", "examples", "nothing about natural video"]
    places = [out.index(part) for part in parts]
    assert places == sorted(places)
    found = json.loads((shown.run / "evaluation.json").read_text())
    own = found["text_to_video"]
    corpus = open_corpus(toy_root, "toy-tiny")
    with pack(corpus, "test", cache_dir=toy_cache / "packed") as split:
        untrained = report_from_scores(zero_shot_scores(corpus, "test"), split).text_to_video
        captions = dict(zip(split.captions, zip(split.query_to_video, *split.moments, strict=True), strict=True))
        ids = split.video_ids
    for row, metrics in (("zero-shot (joint encoder, no training)", vars(untrained)), ("this model", own)):
        expected = [metrics[key] for key in ("r1", "r5", "r10", "r100", "sumr")]
        assert numbers(out, row) == pytest.approx(expected, abs=0.06)
    assert len(drawn) == sum(line.split()[:1] == ["true"] for line in out.splitlines()) == 3
    first = re.findall(r" 1 +(test\d{4}) +([\d.]+) - ([\d.]+) s .* (yes|no)", out)  # of each table of hits
    best = [(example.hits[0], example.correct) for example in drawn]
    assert first == [(h.video_id, f"{h.start:.1f}", f"{h.end:.1f}", "yes" if right else "no") for h, right in best]
    for example in drawn:
        video, start, end, _ = captions[example.caption]
        assert (example.video_id, example.start, example.end) == (ids[video], start, end)
    assert (shown.run / "moments.png").is_file()
