"""Pictures of the re-ranker and of scores: what the figures show, not their pixels; and `prvr plot`."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import explained
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle
from retrievers import MeanPooling
from runs_of_retrievers import write_run

from prvr.cli import main
from prvr.data import PackedSplit, open_corpus, pack
from prvr.evaluation import encode_split, ranked_rows
from prvr.plot import draw, save_figure
from prvr.plot.figures import RIGHT, WRONG, brief, new_figure
from prvr.plot.scores import auc, overlap, pair_scores
from prvr.published.diffusionret.candidate_reranker import CandidateReranker, reranker_inputs
from prvr.published.diffusionret.run_config import RerankerConfig
from prvr.published.diffusionret.stage import fingerprint
from prvr.published.diffusionret.training import save_rerankers
from prvr.stages import Pipeline, ScoreMatrix
from prvr.systems import System, open_system


@pytest.fixture(scope="module")
def split(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedSplit]:
    corpus = open_corpus(toy_root, "toy-tiny")
    with pack(corpus, "test", cache_dir=tmp_path_factory.mktemp("packed")) as packed:
        yield packed


@pytest.fixture(scope="module")
def scores(split: PackedSplit) -> ScoreMatrix:
    torch.manual_seed(0)
    model = MeanPooling(512, 48).eval()
    return ScoreMatrix(model, encode_split(model, split), split.relevant)


class TestScores:
    def test_all_right_pairs_and_a_sample_of_the_wrong(self, scores: ScoreMatrix, split: PackedSplit) -> None:
        with torch.no_grad():
            matrix = torch.cat([scores.rows("t2v", rows) for rows in scores.blocks("t2v", 100)])
        relevant, pipeline = torch.from_numpy(split.relevant_matrix), Pipeline(scores.retriever)
        right, wrong = pair_scores(pipeline, split, scores.encoded)
        assert np.allclose(np.sort(right), matrix[relevant].sort().values.numpy())
        assert np.allclose(np.sort(wrong), matrix[~relevant].sort().values.numpy())
        all_right, some = pair_scores(pipeline, split, scores.encoded, most=500)
        assert np.array_equal(all_right, right)
        assert 300 < len(some) < 700
        assert np.isin(some, wrong).all()

    @given(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=8),
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=8),
    )
    def test_auc_and_overlap_agree_with_a_loop(self, right: list[float], wrong: list[float]) -> None:
        wins = [(r > w) + 0.5 * (r == w) for r in right for w in wrong]
        assert auc(np.array(right), np.array(wrong)) == pytest.approx(sum(wins) / len(wins))
        low = [np.mean(np.array(values) < 0.5) for values in (right, wrong)]
        shared = overlap(np.array(right), np.array(wrong), np.array([0.0, 0.5, 1.0]))
        assert shared == pytest.approx(min(low) + 1 - max(low))


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = save_figure(new_figure(1.0, 1.0), tmp_path / "new" / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in path.parent.iterdir()] == ["a.png"]
    assert brief("costs $5 and $6") == r"costs \$5 and \$6"  # a text is no formula


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    for kind in ("png", "pdf", "svg"):
        files = list[bytes]()
        for name in "ab":
            figure = new_figure(2.0, 2.0)
            figure.subplots().plot([0, 1])
            files.append(save_figure(figure, tmp_path / f"{name}.{kind}").read_bytes())
        assert files[0] == files[1], kind


def test_the_command(toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a retriever and re-rankers over it, neither of them trained."""
    run, retriever = write_run(tmp_path / "run", toy_root, "toy-tiny")
    config = RerankerConfig(width=16, steps=5, candidates=8, trained_on=fingerprint(retriever))
    save_rerankers(tmp_path / "reranker" / "best", {"t2v": CandidateReranker(config, "t2v")})
    stage = ["--stage", f"diffusion:{tmp_path / 'reranker'}", "--device", "cpu"]
    for name in ("trajectory", "attention", "scores"):
        out = tmp_path / f"{name}.png"
        assert main(["plot", name, str(run), *stage, "--output", str(out)]) == 0
        assert out.read_bytes().startswith(b"\x89PNG")
        assert str(out) in capsys.readouterr().out
    start = ["plot", "trajectory", str(run)]
    assert "supported extensions" in explained([*start, "--output", "a.jpg"], capsys)
    assert "no re-ranker of direction t2v" in explained(start, capsys)
    assert "panels: Input should be" in explained([*start, *stage, "--panels", "1"], capsys)


class TestDraw:
    @pytest.fixture
    def open_with(self, toy_root: Path, tmp_path: Path) -> Callable[..., System]:
        """A retriever with a stage of QB-Norm and re-rankers over it, none of them trained."""

        def open_with(**options: Any) -> System:
            run, retriever = write_run(tmp_path / "run", toy_root, "toy-tiny")
            config = RerankerConfig(width=16, steps=5, candidates=8, trained_on=fingerprint(retriever), **options)
            torch.manual_seed(0)
            save_rerankers(tmp_path / "reranker" / "best", {"t2v": CandidateReranker(config, "t2v")})
            steps = {} if options else {"num_steps": 3}
            stages = [{"kind": "qb_norm"}, {"kind": "diffusion", "run": str(tmp_path / "reranker"), **steps}]
            return open_system(run, stages)

        return open_with

    @pytest.fixture
    def system(self, open_with: Callable[..., System]) -> System:
        return open_with()

    def test_the_trajectory_is_that_of_the_pipeline(self, system: System) -> None:
        """The bars of x_0 are what the last stage adds to the scores after all stages before it."""
        figure = draw("trajectory", system, settings={"query": 4})
        pipeline, config = system.pipeline, system.config
        assert config is not None
        with closing(system.open_split(config.data.eval_split)) as packed:
            relevant = packed.relevant[4]
            encoded = encode_split(pipeline, packed)
            with torch.no_grad():
                before, after = (
                    torch.cat([scores for _, scores in ranked_rows(part, encoded, "t2v")])[4]
                    for part in (Pipeline(pipeline.first, pipeline.stages[:1]), pipeline)
                )
        chosen = before.topk(8).indices
        assert np.allclose(heights_of(figure.axes[-1]), (after - before)[chosen], atol=1e-4)
        colours = [to_rgba(RIGHT if video in relevant else WRONG) for video in chosen.tolist()]
        for axes in figure.axes:
            assert [patch.get_facecolor() for patch in axes.patches] == colours
        assert [axes.get_title() for axes in figure.axes] == ["$x_{5}$", "$x_{3}$", "$x_{2}$", "$x_{0}$"]

    def test_attention_is_that_of_the_encoder_and_moments_are_framed(
        self, open_with: Callable[..., System], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        system = open_with(attention_temperature=0.5)
        (axes, _) = draw("attention", system, settings={"video": 2}).axes
        config = system.pipeline.stages[1].rerankers["t2v"].config  # pyright: ignore[reportAttributeAccessIssue]
        with closing(system.open_split("test")) as packed:
            inputs, queries = reranker_inputs(encode_split(system.pipeline, packed), config), packed.queries_of(2)
            frames = inputs.frames[2][inputs.mask[2]]
            expected = (inputs.text[torch.from_numpy(queries)] @ frames.T / 0.5).softmax(-1)
            assert np.allclose(np.asarray(axes.images[0].get_array()), expected.detach().numpy(), atol=1e-6)
            assert tuple(axes.images[0].get_extent()) == (0, packed.durations[2], len(queries) - 0.5, -0.5)
            spans = [(box.get_x(), box.get_x() + box.get_width()) for box in axes.patches if isinstance(box, Rectangle)]
            times = [(packed.moments.start[query], packed.moments.end[query]) for query in queries]
            assert np.allclose(spans, times)
        assert axes.get_xlabel() == "seconds"
        monkeypatch.setattr(PackedSplit, "durations", np.full(len(packed), np.nan))
        (axes, _) = draw("attention", system, settings={"video": 2}).axes
        assert (axes.get_xlabel(), len(axes.patches)) == ("frame", 0)

    def test_scores_have_a_panel_for_each_part_over_one_range(self, system: System) -> None:
        figure = draw("scores", system, settings={"bins": 10})
        titles = [axes.get_title().split("\n")[0] for axes in figure.axes]
        assert titles == [f"toy-tiny, {part}" for part in ("first stage", "1. qb_norm", "2. diffusion")]
        assert len({axes.get_xlim() for axes in figure.axes}) == 1
        for axes in figure.axes:
            heights = [[patch.get_height() for patch in container] for container in axes.containers]
            assert [len(bars) for bars in heights] == [10, 10]
            assert [sum(bars) for bars in heights] == pytest.approx([100, 100])

    def test_what_is_asked_wrongly(self, open_with: Callable[..., System], system: System) -> None:
        for name, asked, settings, problem in (
            ("score", system, {}, "did you mean scores"),
            ("trajectory", system, {"candidates": 21}, "got 21, expected 1 to 20"),
            ("scores", replace(system, config_file=None), {}, "give a configuration"),
            ("trajectory", open_with(process="one_step"), {}, "no trajectory"),  # the control has none
        ):
            with pytest.raises(ValueError, match=problem):
                draw(name, asked, settings=settings)


def heights_of(axes: Axes) -> list[float]:
    return [patch.get_height() for patch in axes.patches if isinstance(patch, Rectangle)]
