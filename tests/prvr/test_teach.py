"""`prvr teach`: captions of some videos correct the encoder of a folder; search uses them only if that is better."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from commands import cells, explained
from search_files import TOY, make_features, make_library

from prvr.cli import main
from prvr.data.hashes import signed
from prvr.data.sampling import growing_means
from prvr.encoders import open_featurizer
from prvr_search import Library
from prvr_search.vectors.taught import read_taught, taught_file

COLOURS, SHAPES = ("red", "green", "blue", "yellow", "white", "pink"), ("circle", "square", "star", "moon")
SENTENCES = [f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES]
OTHER = "a red moon"


def vectors(sentences: Sequence[str]) -> np.ndarray:
    text = open_featurizer("toy")
    return np.stack([text.sentence(sentence) for sentence in sentences])


def library(folder: Path, turn: float) -> Path:
    """A video of 10 s for each sentence, shown from 2 to 8 s; `turn` is the share of the next colour in its frames."""
    right, noise = vectors(SENTENCES), np.random.default_rng(1)
    wrong = np.roll(right, len(SHAPES), axis=0)
    shown = (1 - turn) * right + turn * wrong
    videos = {}
    for number, row in enumerate(shown):
        rows = 0.05 * noise.standard_normal((20, TOY.dim))
        rows[4:16, : TOY.joint_dim] += row
        videos[f"v{number:02}.mp4"] = rows.astype(np.float32)
    return make_library(folder, make_features(videos))


def table(path: Path, videos: Sequence[int] = range(len(SENTENCES)), times: str = ",2,8") -> Path:
    lines = [f"v{video:02},{SENTENCES[video]}{times}" for video in videos]
    path.write_text("\n".join(["video,text,start,end", *lines]) + "\n")
    return path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def turned(tmp_path: Path) -> Path:
    """Videos whose frames are mostly those of other sentences."""
    return library(tmp_path / "films", 0.7)


def fitted(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    """Ridge towards the identity on centred rows, and below it an offset that leaves the mean row where it is.

    The penalty is in mean variances of the rows.
    """
    mean, some = x.mean(0), x - x.mean(0)
    spread = some.T @ some
    strength = penalty * np.trace(spread) / len(mean)
    change = np.linalg.solve(spread + strength * np.eye(len(mean)), some.T @ (y - y.mean(0) - some))
    return np.concatenate([np.eye(len(mean)) + change, -mean[None] @ change])


def ranking(folder: Path, sentence: str = OTHER, model: str | None = None) -> list[tuple[str, float]]:
    with Library(folder, encoder="toy", device="cpu", model=model) as opened:
        return [(hit.video_id, hit.score) for hit in opened.search(sentence, k=30).hits]


def test_search_uses_what_is_shown_to_be_better_until_it_is_forgotten(
    turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = table(tmp_path / "captions.csv", [n for n in range(len(SENTENCES)) if SENTENCES[n] != OTHER])
    before, right = ranking(turned), f"v{SENTENCES.index(OTHER):02}.mp4"
    assert before[0][0] != right
    assert main(["teach", str(turned), str(captions)]) == 0
    out = capsys.readouterr().out
    assert "23 captions of 23 videos, each ranked among 24 videos" in cells(out)
    assert "Taught is better than zero-shot" in out
    after = ranking(turned)
    assert after[0][0] == right
    assert ranking(turned, model="zero-shot") == before
    assert ranking(turned, model="taught") == after
    assert main(["library", str(turned)]) == 0
    assert "search uses them" in cells(capsys.readouterr().out)
    assert main(["teach", str(turned), "--forget"]) == 0
    assert ranking(turned) == before
    assert "nothing was taught with toy" in explained(["search", str(turned), OTHER, "--model", "taught"], capsys)
    assert main(["teach", str(turned), "--forget"]) == 0


def test_the_table_is_that_of_a_plain_loop_that_leaves_each_video_out(turned: Path, tmp_path: Path) -> None:
    """With one penalty there is nothing to choose: maps without a video, and real searches, give the same ranks."""
    captions = table(tmp_path / "captions.csv", range(8))
    with Library(turned, encoder="toy", device="cpu") as opened:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("prvr_search.vectors.teaching._PENALTIES", (10.0,))
            comparison = opened.teach(captions)
        zero_shot = [[hit.video_id for hit in opened.search(text, k=30).hits] for text in SENTENCES[:8]]
        features = opened.features()
        rows = [features.read(video)[:, : TOY.joint_dim].astype(float) for video in features.video_ids]
    own = [f"v{number:02}.mp4" for number in range(8)]
    assert comparison.zero_shot.mnr == np.mean([1 + ids.index(v) for ids, v in zip(zero_shot, own, strict=True)])
    y, ranks = vectors(SENTENCES[:8]).astype(float), []
    x = np.stack([growing_means(some)[4:16].mean(0) for some in rows[:8]])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    for number in range(8):
        matrix = fitted(np.delete(x, number, 0), np.delete(y, number, 0), 10.0)
        scores = []
        for some in rows:
            mapped = growing_means(some) @ matrix[:-1] + matrix[-1]
            scores.append((mapped @ y[number] / np.linalg.norm(mapped, axis=1)).max())
        ranks.append(1 + sum(score > scores[number] for score in scores))
    assert comparison.taught.mnr == np.mean(ranks)


def test_what_is_not_shown_to_be_better_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = library(tmp_path / "films", 0.0)
    before = ranking(folder)
    assert main(["teach", str(folder), str(table(tmp_path / "captions.csv"))]) == 0
    assert "not significantly better than zero-shot: searches stay zero-shot" in cells(capsys.readouterr().out)
    assert ranking(folder) == before
    assert ranking(folder, model="taught") != before


def test_the_penalty_is_that_of_captions_that_the_map_does_not_know(tmp_path: Path) -> None:
    """Captions of other videos teach nothing: large penalties are best, though small ones learn them by heart."""
    folder, captions = library(tmp_path / "films", 0.0), tmp_path / "captions.csv"
    others = np.random.default_rng(0).permutation(len(SENTENCES))
    lines = [f"v{video:02},{SENTENCES[other]}" for video, other in enumerate(others)]
    captions.write_text("\n".join(["video,text", *lines]) + "\n")
    with Library(folder, encoder="toy", device="cpu") as opened:
        opened.teach(captions)
        taught = read_taught(opened.storage, opened.folder, TOY)
    assert np.abs(taught.matrix[:-1] - np.eye(TOY.joint_dim)).max() < 0.05  # 0.14 by heart


def test_tables_that_cannot_be_used_change_nothing(
    turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "captions.csv"
    path.write_text("video,text,start,end\nv01,a red star,,\nv99,a moon,,\nv02,a moon,20,30\n")
    assert "2 problems. Line 3: no video fits 'v99'" in explained(["teach", str(turned), str(path)], capsys)
    path.write_text("video,text\nv01,a red star\n")
    assert "captions of 1 video. Expected captions of several" in explained(["teach", str(turned), str(path)], capsys)
    assert "Expected either a table of captions or --forget" in explained(["teach", str(turned)], capsys)
    with Library(turned, encoder="toy") as opened:
        assert opened.taught() is None


@pytest.mark.parametrize("content", ["edited", "folder", "map"])
def test_a_file_that_is_not_ours_is_not_used_and_not_replaced(
    content: str, turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, captions = ranking(turned), table(tmp_path / "captions.csv")
    with Library(turned, encoder="toy", device="cpu") as opened:
        opened.teach(captions)
        path = taught_file(opened.storage, opened.folder, TOY)
    values = json.loads(path.read_text())
    del values["sha256"]
    if content == "edited":
        path.write_text(path.read_text().replace('"taught": ', '"taught": 1'))
    else:
        path.write_text(signed(values | {"folder": {"folder": "/elsewhere"}, "map": {"map": "AAAA"}}[content]))
    capsys.readouterr()
    assert main(["search", str(turned), OTHER, "--paths"]) == 0
    out, err = capsys.readouterr()
    assert [Path(line).name for line in out.splitlines()] == [video for video, _ in before][:10]
    assert err.startswith(str(path))
    for command in (["teach", str(turned), str(captions)], ["teach", str(turned), "--forget"]):
        assert str(path) in explained(command, capsys)
        assert path.exists()


def test_a_map_is_of_one_folder_and_new_videos_are_searched_with_it(turned: Path, tmp_path: Path) -> None:
    with Library(turned, encoder="toy", device="cpu") as opened:
        assert opened.teach(table(tmp_path / "captions.csv")).is_better
        hits = opened.search(OTHER).hits  # the same library, without opening it again
        assert hits[0].video_id == f"v{SENTENCES.index(OTHER):02}.mp4"
    make_library(turned, make_features({"new.mp4": np.random.default_rng(5).random((8, 512), np.float32)}))
    assert "new.mp4" in dict(ranking(turned))
    assert dict(ranking(turned))[hits[0].video_id] == pytest.approx(hits[0].score, abs=1e-6)
    other = library(tmp_path / "others", 0.7)
    assert ranking(other) == ranking(other, model="zero-shot")
