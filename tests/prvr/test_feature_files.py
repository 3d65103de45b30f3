"""Features computed elsewhere, a file for each video and each caption, become a corpus that trains."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import explained

from prvr.cli import main
from prvr.corpora.corpus_encoders import corpus_encoders
from prvr.corpora.feature_files import convert_features, list_features, read_features
from prvr.data import DataError, MomentTimes, open_corpus, pack
from prvr.encoders import open_featurizer
from prvr.evaluation import EvaluationReport

VIDEOS, SPLITS = 12, ["train"] * 7 + ["val"] * 2 + ["test"] * 3
WRITERS = {
    "npy": lambda path, x: np.save(path, x),
    "npz": lambda path, x: np.savez(path, anything=x),
    "pt": lambda path, x: torch.save(torch.from_numpy(x).to(torch.bfloat16 if x.shape[1] == 6 else None), path),
    "pth": lambda path, x: torch.save({"features": torch.from_numpy(x)}, path),
}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Twelve videos of width 24 in folders, two captions of width 6 for each, in all kinds of files, and a table."""
    generator, rows = np.random.default_rng(0), []
    for number in range(VIDEOS):
        name, suffix = f"day {number % 2}/v.{number}", list(WRITERS)[number % 4]
        (folder := tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        matrix = generator.normal(size=(10 + number, 24)).astype([np.float32, np.float64, np.float16][number % 3])
        WRITERS[suffix](Path(f"{folder}.{suffix}"), matrix)
        for caption in range(2):
            query, suffix = f"q{number}-{caption}", list(WRITERS)[caption]
            (tmp_path / "queries").mkdir(exist_ok=True)
            words = generator.normal(size=(3 + caption, 6)).astype(np.float32)
            WRITERS[suffix](tmp_path / "queries" / f"{query}.{suffix}", words[0] if number == 3 else words)
            rows.append({"id": query, "video": name, "text": f"sentence {number} {caption}", "split": SPLITS[number]})
            rows[-1] |= {"start": 1, "end": 2 + caption} if caption else {}
    (tmp_path / "mine.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def command(made: Path, *options: str) -> list[str]:
    files = {"--captions": "mine.jsonl", "--queries": "queries", "--output": "data"}
    folders = [word for option, name in files.items() for word in (option, str(made / name))]
    return ["convert", "features", str(made / "videos"), *folders, *options, "-q"]


def test_the_command_makes_a_corpus_that_trains(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(made, "--rate", "2")) == 0
    out = capsys.readouterr().out
    corpus = open_corpus(made / "data", "mine")
    assert corpus.dims() == (24, 6)
    assert {split: len(corpus.split(split).captions) for split in corpus.splits} == {"train": 14, "val": 4, "test": 6}
    assert corpus_encoders(corpus) is None
    test = corpus.split("test")
    assert [caption.text for caption in test.captions][:2] == ["sentence 9 0", "sentence 9 1"]
    with corpus.open_features() as videos, corpus.open_queries() as queries:
        for number, video in enumerate(test.video_ids, 9):
            name, suffix = f"videos/day {number % 2}/v.{number}", list(WRITERS)[number % 4]
            assert np.array_equal(videos.read(video), read_features(made / f"{name}.{suffix}"))
        words = queries.read(test.captions[1].id)
        assert np.array_equal(words, read_features(made / "queries" / "q9-1.npz"))
        (own,) = (c for c in corpus.split("train").captions if c.text == "sentence 3 0")
        assert queries.read(own.id).shape == (1, 6)  # one row of numbers
    moment = test.moments[test.captions[1].id]
    assert (moment.start, moment.end, moment.duration) == (1.0, 3.0, 9.5)
    next_command = out.split("prvr train ")[1].split()
    assert next_command[next_command.index("--model.video_dim") + 1] == "24"
    small = ["--model.hidden", "16", "--model.heads", "2", "--model.lorentz_dim", "15", "--train.epochs", "1"]
    run = ["--output", str(made / "run"), "--device", "cpu", "-q", "--data.cache_dir", str(made / "cache")]
    assert main(["train", *next_command, *small, *run]) == 0
    report = EvaluationReport.from_json(made / "run" / "evaluation.json")
    assert (report.text_to_video.queries, report.moments[0].queries) == (6, 3)


def test_own_ids_are_given_back_and_name_one_query_with_several_moments(made: Path) -> None:
    with (made / "mine.jsonl").open("a") as file:
        for start, end in ((4, 6.5), (1, 3), (7, 8)):  # the second line says again what is there
            row = {"id": "q9-1", "video": "day 1/v.9", "text": "sentence 9 1", "split": "test"}
            file.write(json.dumps(row | {"start": start, "end": end}) + "\n")
    assert main(command(made, "--rate", "2")) == 0
    corpus = open_corpus(made / "data", "mine")
    test = corpus.split("test")
    own = {test.own_ids[caption.id]: caption for caption in test.captions}
    assert list(own) == [f"q{number}-{caption}" for number in (9, 10, 11) for caption in (0, 1)]
    assert test.moments[own["q9-1"].id] == MomentTimes(1.0, 3.0, 9.5, ((4.0, 6.5), (7.0, 8.0)))
    labels = [{"query_id": "q10-0", "gt_video_ids": ["day 0/v.10", own["q11-0"].video_id]}]
    (made / "labels.json").write_text(json.dumps(labels))
    assert main(["convert", "labels", str(corpus.folder), str(made / "labels.json")]) == 0
    assert corpus.dense_labels() == {own["q10-0"].id: {own[name].video_id: 1 for name in ("q10-0", "q11-0")}}
    sizes = ["--model.video_dim", "24", "--model.query_dim", "6", "--model.hidden", "16", "--model.heads", "2"]
    sizes += ["--model.lorentz_dim", "15", "--train.epochs", "0", "--device", "cpu", "--data.cache_dir"]
    data = ["--data.root", str(made / "data"), "--data.collection", "mine", "--output", str(made / "run"), "-q"]
    assert main(["train", "--preset", "hybrid-clip", *sizes, str(made / "cache"), *data]) == 0
    assert main(["evaluate", str(made / "run"), "--run-file", str(made / "run.txt"), "-q"]) == 0
    for query in ("q10-0", own["q10-0"].id):
        picture = ["--query", query, "--output", str(made / f"{query}.svg"), "-q"]
        assert main(["plot", "examples", str(made / "run"), *picture]) == 0
    assert list(dict.fromkeys(line.split()[0] for line in (made / "run.txt").read_text().splitlines())) == list(own)
    with pack(corpus, "test", cache_dir=made / "cache") as split:
        assert split.windows[:, 1].tolist() == [[1, 3], [4, 6.5], [7, 8]]


def test_a_column_says_how_long_videos_are_and_a_name_with_an_ending_is_explained(made: Path) -> None:
    videos = list_features(made / "videos")
    table = "video,text,start,end,duration\n"
    for name, rows in videos.rows.items():
        table += f"{name},it ends {name},{rows - 2},{rows + 0.5},{rows + 0.5}\n{name},no time {name},,,\n"
    (made / "long.csv").write_text(table)
    for rate, corpus in ((None, "without"), (1.0, "with")):  # rows alone say half a second less
        convert_features(made / "videos", made / "long.csv", open_featurizer("toy"), made / corpus / "long", rate=rate)
        train = open_corpus(made / corpus, "long").split("train")
        for caption in train.captions:
            moment = train.moments[caption.id]
            assert moment.duration % 1 == 0.5
            assert np.isnan(moment.end) if "no time" in caption.text else moment.end == moment.duration
    (made / "long.csv").write_text(table.replace("day 0/v.0,it", "day 0/v.0.avi,it"))
    with pytest.raises(DataError, match=r"no video fits 'day 0/v.0.avi', but 'day 0/v.0' does. Leave out the ending"):
        convert_features(made / "videos", made / "long.csv", open_featurizer("toy"), made / "no" / "long")


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def write_bad(folder: Path) -> dict[str, str]:
    """Files that cannot be used, each with what is said of it."""
    harm, good = Malicious(folder / "harm"), np.ones((2, 24), np.float32)
    np.save(folder / "objects.npy", np.array([harm], object), allow_pickle=True)
    torch.save({"features": harm}, folder / "objects.pt")
    (folder / "pickle.pt").write_bytes(pickle.dumps(harm))
    np.save(folder / "narrow.npy", good[:, :3])
    np.save(folder / "cube.npy", np.stack([good, good]))
    np.save(folder / "text.npy", np.array(["a"]))
    np.save(folder / "nan.npy", np.where(np.arange(2)[:, None], np.nan, good))
    np.savez(folder / "two.npz", a=good, b=good)
    return {
        "objects.npy": "cannot be read",
        "objects.pt": "cannot be read",
        "pickle.pt": "cannot be read",
        "narrow.npy": "got width 3, expected 24 as in",
        "cube.npy": r"got shape \(2, 2, 24\), expected a matrix",
        "text.npy": "got <U1",
        "nan.npy": "NaN or infinity in row 1",
        "two.npz": r"got 2 arrays, \['a', 'b'\]; expected one",
    }


def test_bad_files_are_named_all_at_once_and_run_nothing(made: Path) -> None:
    (bad := made / "videos" / "zz").mkdir()
    problems = write_bad(bad)
    with pytest.raises(DataError, match=rf"^{len(problems)} of {VIDEOS + len(problems)} files\.") as error:
        convert_features(made / "videos", made / "mine.jsonl", made / "queries", made / "data" / "mine", rate=2.0)
    for name, problem in problems.items():
        assert re.match(problem, str(error.value).split(f"{bad / name}: ")[1]), name
    assert not (bad / "harm").exists()
    assert not (made / "data").exists()


def test_what_the_command_refuses(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has times, but nothing says how long the video is" in explained(command(made), capsys)
    np.save(made / "videos" / "day 0" / "v.1.npy", np.ones((2, 24), np.float32))
    np.savez(made / "videos" / "day 0" / "v.1.npz", np.ones((2, 24), np.float32))
    assert "v.1.npy has the same name" in explained(command(made, "--rate", "2"), capsys)
    (made / "videos" / "day 0" / "v.1.npz").unlink()
    (made / "queries" / "q4-0.npy").unlink()
    assert "Line 9: no file q4-0.npy, .npz or .pt in" in explained(command(made, "--rate", "2"), capsys)
    lines = (made / "mine.jsonl").read_text().splitlines()
    changes = {
        "no split, though other lines have one": (0, {"split": ""}),
        "no id, so it is unknown which file": (1, {"id": None}),
    }
    np.save(made / "queries" / "q4-0.npy", np.ones((2, 6), np.float32))
    for message, (place, change) in changes.items():
        changed = [*lines]
        changed[place] = json.dumps(json.loads(lines[place]) | change)
        (made / "mine.jsonl").write_text("\n".join(changed))
        said = explained(command(made, "--rate", "2"), capsys)
        assert f"Line {place + 1}: {message}" in said
    assert not (made / "data" / "mine").exists()
