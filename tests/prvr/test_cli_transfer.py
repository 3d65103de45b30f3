"""Out of domain: `prvr evaluate RUN --transfer`, the features that fit, and the toy world in another light."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from benchmark_files import WRITERS
from commands import explained
from runs_of_retrievers import write_run
from search_files import TOY, noise_features

from prvr.cli import main
from prvr.corpora.corpus_encoders import CorpusEncoders
from prvr.encoders import Identity, open_featurizer
from prvr.evaluation import EvaluationReport
from prvr.papers.benchmarks import BENCHMARKS
from prvr.papers.benchmarks.conversion import convert_benchmark
from prvr.toy.rendering import LOOKS, with_look

ENCODERS = CorpusEncoders(TOY.encoder, open_featurizer("toy").identity, 2.0, 512, 48, 256)


def corpus(root: Path, name: str, encoders: CorpusEncoders | None = ENCODERS) -> Path:
    """A benchmark as a corpus that says it is of these encoders."""
    (annotations := root / f"{name}-annotations").mkdir(parents=True, exist_ok=True)
    WRITERS[name](annotations)
    ids = [video.id for videos in BENCHMARKS[name].part.read(annotations).splits.values() for video in videos]
    store, text = noise_features(TOY, ids), open_featurizer("toy")
    folder = convert_benchmark(name, annotations, store, text, root / "data" / name).path
    about = json.loads((folder / "corpus.json").read_text())
    about.pop("encoders")
    named = {} if encoders is None else {"encoders": asdict(encoders)}
    (folder / "corpus.json").write_text(json.dumps(about | named))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> tuple[str, Path]:
    """An untrained run on MSR-VTT."""
    folder = corpus(tmp_path, "msrvtt")
    return str(write_run(tmp_path / "run", folder.parent, "msrvtt")[0]), tmp_path


def test_source_and_targets_stand_in_one_table(source: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run, root = source
    targets = [corpus(root, "msvd"), corpus(root, "didemo"), corpus(root / "more", "msvd")]
    capsys.readouterr()
    assert main(["evaluate", run, "--transfer", *map(str, targets), "--device", "cpu"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for line in ("source msrvtt test", "target data/msvd test", "target didemo test"):
        assert line in out
    files = sorted(path.name for path in Path(run).glob("evaluation*.json"))
    assert files == ["evaluation_on_data-msvd_test.json", "evaluation_on_didemo_test.json"]


def test_one_other_corpus_has_its_own_file(source: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run, root = source
    other = corpus(root, "msvd")
    (other / "FeatureData" / "frames").rename(other / "FeatureData" / "clip")
    command = ["evaluate", run, "--data-root", str(other.parent), "--collection", "msvd", "--device", "cpu"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "Rsum" in out  # a benchmark has the table of its papers
    assert "R@100" not in out.split("Rsum")[0]
    assert "video to text: among sets of captions" in " ".join(out.split())
    report = EvaluationReport.from_json(Path(run) / "evaluation_msvd.json")
    assert report.video_to_sets.queries == 1
    assert main([*command, "--table", "prvr", "--split", "val"]) == 0
    assert "R@100" in capsys.readouterr().out
    assert (Path(run) / "evaluation_msvd_val.json").is_file()
    twice = ["evaluate", run, "--device", "cpu", "--transfer", str(other), str(other)]
    assert "the same corpus twice" in explained(twice, capsys)


def test_features_of_another_encoder_are_refused(source: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    run, root = source
    changes = {"frames": Identity("clip", "abc", "p"), "text": Identity("bert", "abc", "at most 5 words")}
    for number, (part, other) in enumerate(changes.items()):
        folder = corpus(root / str(number), "msvd", replace(ENCODERS, **{part: other}))
        words = ["evaluate", run, "--device", "cpu"]
        for place in (["--transfer", str(folder)], ["--data-root", str(folder.parent), "--collection", "msvd"]):
            assert f"encoded by {other.name} (weights abc" in explained([*words, *place], capsys)


def test_a_source_that_is_gone_and_features_of_an_unknown_encoder_are_told(
    source: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, root = source
    target = corpus(root / "more", "lsmdc", None)
    (root / "data" / "msrvtt").rename(root / "gone")
    assert main(["evaluate", run, "--transfer", str(target), "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "source msrvtt test - - -" in " ".join(out.split())
    assert "does not exist, so the source is not evaluated" in err
    assert "are unknown. Only widths are compared" in err


def test_day_changes_nothing_and_others_keep_the_order_of_brightness() -> None:
    frames = np.arange(256, dtype=np.uint8)[None, :, None, None].repeat(3, 3)
    for look in LOOKS:
        found = with_look(frames, look)
        assert np.array_equal(found, frames) == (look == "day")
        assert (np.diff(found[0, :, 0].astype(int), axis=0) >= 0).all()
        assert found.dtype == np.uint8
    assert with_look(frames, "dusk").mean() < 0.6 * frames.mean()
    assert with_look(frames, "haze").std() < 0.5 * frames.std()
