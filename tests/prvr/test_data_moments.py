"""Public annotations that are added to a corpus: moments, in every form in which they are published."""

import json
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from pathlib import Path

import pytest
from commands import cells, explained

from prvr.cli import main
from prvr.corpora.ground_truth import convert_moments
from prvr.data import MomentTimes
from prvr.data.corpus import open_texts
from prvr.data.layout import read_moments

SAID = {
    "train": [("v_a", "A man's dog runs.", 1.0, 4.5, 20.0), ("v_a", "it  stops", 4.5, 9.0, 20.0)],
    "test": [("v_b", "a cat sleeps", 0.0, 30.5, 31.0), ("v_c", "A CAT sleeps!", 7.0, 8.0, 9.0)],
}
Said = Sequence[tuple[str, str, float, float, float]]


def write_texts(root: Path, captions: Mapping[str, Sequence[tuple[str, str]]]) -> Path:
    folder = root / "films"
    (folder / "TextData").mkdir(parents=True)
    for split, some in captions.items():
        lines = [f"{video}#enc#{number} {text}\n" for number, (video, text) in enumerate(some)]
        (folder / "TextData" / f"films{split}.caption.txt").write_text("".join(lines))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Its captions in lower case and without punctuation, as published ones often are."""
    plain = {
        split: [(video, text.replace("'", " ").strip(".!").lower()) for video, text, *_ in some]
        for split, some in SAID.items()
    }
    return write_texts(tmp_path / "data", plain)


def tvr(folder: Path, said: Said) -> list[Path]:
    keys = ("vid_name", "desc", "ts", "duration", "type", "desc_id")
    rows = [dict(zip(keys, (v, text, [start, end], long, "vt", 9), strict=True)) for v, text, start, end, long in said]
    (folder / "tvr.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return [folder / "tvr.jsonl"]


def lighthouse(folder: Path, said: Said) -> list[Path]:
    rows = [
        {"qid": n, "query": f" {text}", "duration": long, "vid": video, "relevant_windows": [[start, end]]}
        for n, (video, text, start, end, long) in enumerate(said)
    ]
    (folder / "release.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return [folder / "release.jsonl"]


def activitynet(folder: Path, said: Said) -> list[Path]:
    videos: dict[str, dict] = {}
    for video, text, start, end, long in said:
        row = videos.setdefault(video, {"duration": long, "timestamps": [], "sentences": []})
        row["timestamps"].append([end, start])  # some published ones are swapped
        row["sentences"].append(text)
    (folder / "train.json").write_text(json.dumps(videos, indent=2))
    return [folder / "train.json"]


def charades(folder: Path, said: Said) -> list[Path]:
    lines = [f"{video.removeprefix('v_')} {start} {end}##{text}" for video, text, start, end, _ in said]
    (folder / "sta.txt").write_text("\r\n".join(lines) + "\r\n")
    lengths = {video.removeprefix("v_"): long for video, *_, long in said}
    rows = [f'{video},"a, b",{long}' for video, long in lengths.items()]
    (folder / "Charades_v1.csv").write_text("\n".join(["id,scene,length", *rows]))
    return [folder / "sta.txt", folder / "Charades_v1.csv"]


FORMS = [tvr, lighthouse, activitynet, charades]


@pytest.mark.parametrize("form", FORMS)
def test_every_published_form(form: Callable[[Path, Said], list[Path]], corpus: Path, tmp_path: Path) -> None:
    report = convert_moments(corpus, form(tmp_path, [one for some in SAID.values() for one in some]))
    assert read_moments(report.path) == {
        f"{video}#enc#{number}": MomentTimes(start, end, long)
        for some in SAID.values()
        for number, (video, _, start, end, long) in enumerate(some)
    }
    assert report.counts["captions"] == report.counts["with a moment"] == {"test": 2, "train": 2}
    assert not report.notes
    assert open_texts(corpus).split("test").moments["v_c#enc#1"] == MomentTimes(7.0, 8.0, 9.0)


def test_what_has_no_moment_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = [("a", "she sings", 0.0, 1.0, 9.0), ("a", "She sings.", 5.0, 6.0, 9.5), ("a", "he sits", 2.0, 3.0, 9.0)]
    said += [("b", "she sings", 1.0, 2.0, 4.0), ("b", "she sings", 1.0, 2.0, 4.0)]  # said twice of one moment
    captions = [("a", "she sings"), ("a", "he sits"), ("a", "he sings"), ("b", "she sings"), ("c", "she sings")]
    folder = write_texts(tmp_path, {"test": captions, "train": [("b", "a dog")]})
    files = lighthouse(tmp_path, said)
    assert main(["convert", "moments", str(folder), str(files[0])]) == 0
    said_of = cells(capsys.readouterr().out)
    assert "test 5 2 1 1 1" in said_of
    assert "train 1 0 0 1 0" in said_of
    assert "several moments: a#enc#0" in said_of
    assert "other sentence: a#enc#2, b#enc#0" in said_of
    assert "video in no file: c#enc#4" in said_of
    found = read_moments(folder / "TextData" / "films_moments.jsonl")
    starts = {caption: moment.start for caption, moment in found.items() if not isnan(moment.start)}
    assert starts == {"a#enc#1": 2.0, "b#enc#3": 1.0}
    assert found.keys() == starts.keys() | {"a#enc#0", "a#enc#2", "b#enc#0"}
    assert found["a#enc#0"].duration == 9.5


def test_what_cannot_be_read_is_explained(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*files: Path) -> str:
        return explained(["convert", "moments", str(corpus), *map(str, files)], capsys)

    sta, _ = charades(tmp_path, SAID["test"])
    assert "2 videos have moments and no length" in said(sta)
    (tmp_path / "hidden.jsonl").write_text('\n{"desc": "a cat sleeps", "desc_id": 1}\n{"desc": "b", "desc_id": 2}\n')
    assert "hidden.jsonl, line 2: got {'desc'" in said(tmp_path / "hidden.jsonl")
    assert "none of its 4 captions" in said(*tvr(tmp_path, [("z", "a cat sleeps", 0.0, 1.0, 2.0)]))
    assert not (corpus / "TextData" / "films_moments.jsonl").exists()
    assert convert_moments(corpus, tvr(tmp_path, SAID["test"])).path.exists()
    assert "already exists" in said(tmp_path / "tvr.jsonl")
