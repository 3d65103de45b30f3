"""`prvr teach`: captions of some videos correct the encoder of a folder; search uses them only if that is better."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from commands import cells, explained
from search_files import TOY, make_features, make_library

from prvr.cli import main
from prvr.data.sampling import growing_means
from prvr.encoders import open_featurizer
from prvr_search import Library, open_model
from prvr_search.store.proof import read_proven, write_proven
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


def fitted(captions: Sequence[tuple[np.ndarray, np.ndarray]], penalty: float) -> np.ndarray:
    """W^T of ridge regression towards the identity, of the rows and the sentence of each caption, row by row."""
    dim = len(captions[0][1])
    squares, products = np.zeros((2, dim, dim))
    for rows, sentence in captions:
        shares = np.exp(rows @ sentence / 0.05)
        for row, share in zip(rows, shares / shares.sum(), strict=True):
            squares += share * np.outer(row, row)
            products += share * np.outer(row, sentence)
    strength = penalty * np.trace(squares) / dim
    return np.linalg.solve(squares + strength * np.eye(dim), products + strength * np.eye(dim))


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


def test_map_and_table_are_those_of_a_plain_loop_that_leaves_each_video_out(
    turned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one penalty there is nothing to choose, and each of five videos is a group. Two have the same caption."""
    monkeypatch.setattr("prvr_search.vectors.teaching._PENALTIES", (1.0,))
    own, texts = [0, 1, 2, 3, 4, 4], [*SENTENCES[:4], SENTENCES[0], "a star"]
    spans, times = (
        [slice(4, 16)] * 3 + [slice(None), slice(5, 8), slice(19, 20)],
        [",2,8"] * 3 + ["", ",2.6,3.9", ",9.8,10"],
    )
    lines = [f"v{video:02},{text}{time}" for video, text, time in zip(own, texts, times, strict=True)]
    (path := tmp_path / "captions.csv").write_text("\n".join(["video,text,start,end", *lines]) + "\n")
    with Library(turned, encoder="toy", device="cpu") as opened:
        comparison, taught = opened.teach(path), opened.taught()
        features = opened.features()
        rows = [features.read(video)[:, : TOY.joint_dim].astype(float) for video in features.video_ids]
        sentences = open_model("zero-shot", TOY).encode_texts(texts).astype(float)
    assert taught is not None
    units = [some / np.linalg.norm(some, axis=1, keepdims=True) for some in rows]
    pairs = [(units[video][span], y) for video, span, y in zip(own, spans, sentences, strict=True)]
    assert np.allclose(taught.matrix, fitted(pairs, 1.0), atol=1e-4)
    zero_shot, after = [], []
    for caption, (video, y) in enumerate(zip(own, sentences, strict=True)):
        others = [pair for pair, other in zip(pairs, own, strict=True) if other != video]
        for ranks, matrix in ((zero_shot, np.eye(TOY.joint_dim)), (after, fitted(others, 1.0))):
            mapped = [growing_means(some) @ matrix for some in rows]
            scores = np.array([(some @ y / np.linalg.norm(some, axis=1)).max() for some in mapped])
            scores[[other for other in (0, 4) if texts[caption] == SENTENCES[0] and other != video]] = -np.inf
            ranks.append(1 + (scores > scores[video]).sum())
    assert (comparison.zero_shot.mnr, comparison.taught.mnr) == (np.mean(zero_shot), np.mean(after))


def test_an_infinite_penalty_is_zero_shot_and_the_order_of_captions_does_not_matter(
    turned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Library(turned, encoder="toy", device="cpu") as opened:
        first = opened.teach(table(tmp_path / "captions.csv", range(12))), opened.taught()
        assert (opened.teach(table(tmp_path / "captions.csv", range(11, -1, -1))), opened.taught()) == first
        assert first[0].taught != first[0].zero_shot
        monkeypatch.setattr("prvr_search.vectors.teaching._PENALTIES", (1e12,))
        comparison = opened.teach(tmp_path / "captions.csv")
    assert comparison.taught == comparison.zero_shot


def test_all_captions_are_fitted_to_and_few_are_compared(
    turned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prvr_search.vectors.teaching._PENALTIES", (1.0,))
    lines = [
        f"v{video:02},{text}" for video in range(12) for text in (SENTENCES[video], "a star", "a moon", "a circle")
    ]
    (path := tmp_path / "captions.csv").write_text("\n".join(["video,text", *lines]) + "\n")
    with Library(turned, encoder="toy", device="cpu") as opened:
        whole, all_of_them = opened.teach(path), opened.taught()
        for name, most in (("VIDEOS", 8), ("CAPTIONS", 16), ("ROWS", 80), ("AT_ONCE", 3)):
            monkeypatch.setattr(f"prvr_search.vectors.teaching._{name}", most)
        some, again = opened.teach(path), opened.taught()
    assert (whole.captions, whole.gallery) == (48, 24)
    assert (some.captions, some.gallery, some.rows) == (16, 8, 10)
    assert all_of_them is not None
    assert again is not None
    assert np.allclose(again.matrix, all_of_them.matrix, atol=1e-5)


def test_an_open_library_follows_what_another_process_teaches_and_forgets(turned: Path, tmp_path: Path) -> None:
    captions, right = table(tmp_path / "captions.csv"), f"v{SENTENCES.index(OTHER):02}.mp4"
    with Library(turned, encoder="toy", device="cpu") as opened:
        before = [hit.video_id for hit in opened.search(OTHER).hits]
        assert before[0] != right
        index = opened.index
        assert opened.index is index  # which a page compares
        assert main(["teach", str(turned), str(captions)]) == 0
        assert opened.index is not index
        assert opened.index.search(OTHER).hits[0].video_id == right
        assert opened.search(OTHER).hits[0].video_id == right
        index = opened.index
        assert main(["teach", str(turned), "--forget"]) == 0
        assert opened.index is not index
        assert [hit.video_id for hit in opened.search(OTHER).hits] == before


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
    others = np.random.default_rng(7).permutation(len(SENTENCES))
    lines = [f"v{video:02},{SENTENCES[other]}" for video, other in enumerate(others)]
    captions.write_text("\n".join(["video,text", *lines]) + "\n")
    with Library(folder, encoder="toy", device="cpu") as opened:
        opened.teach(captions)
        taught = read_taught(taught_file(opened.store.folders.file(opened.folder), TOY), TOY)
    assert taught is not None
    assert np.abs(taught.matrix - np.eye(TOY.joint_dim)).max() < 0.05  # 0.5 by heart


def test_tables_that_cannot_be_used_change_nothing(
    turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "captions.csv"
    path.write_text("video,text,start,end\nv01,a red star,,\nv99,a moon,,\nv02,a moon,20,30\n")
    assert "2 problems. Line 3: no video fits 'v99'" in explained(["teach", str(turned), str(path)], capsys)
    path.write_text("video,text\nv01,a red star\n")
    assert "captions of 1 of the videos. Expected captions of 3 or more" in explained(
        ["teach", str(turned), str(path)], capsys
    )
    assert "Expected either a table of captions or --forget" in explained(["teach", str(turned)], capsys)
    with Library(turned, encoder="toy") as opened:
        assert opened.taught() is None


@pytest.mark.parametrize("content", ["edited", "encoder", "map"])
def test_a_file_that_cannot_be_used_is_not_used_and_mended_by_teaching(
    content: str, turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, captions = ranking(turned), table(tmp_path / "captions.csv")
    with Library(turned, encoder="toy", device="cpu") as opened:
        opened.teach(captions)
        path = taught_file(opened.store.folders.file(opened.folder), TOY)
    after, values = ranking(turned), json.loads(bytes(read_proven(path)[0]))
    assert after != before
    if content == "edited":
        path.write_bytes(path.read_bytes().replace(b'"taught": ', b'"taught": 1'))
    else:
        change = {"encoder": {"encoder": "0" * 16}, "map": {"map": "AAAA"}}[content]
        write_proven(path, [json.dumps(values | change).encode()])
    capsys.readouterr()
    assert main(["search", str(turned), OTHER, "--paths"]) == 0
    out, err = capsys.readouterr()
    assert [Path(line).name for line in out.splitlines()] == [video for video, _ in before][:10]
    assert err.startswith(str(path))
    assert main(["teach", str(turned), str(captions)]) == 0
    assert ranking(turned) == after
    path.write_text("{}")
    assert main(["teach", str(turned), "--forget"]) == 0
    assert ranking(turned) == before


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
