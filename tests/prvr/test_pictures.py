"""Pictures of the re-ranker and of scores: what the figures show, not their pixels; and `prvr plot`."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import explained
from diffusionret import reranking
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle
from retrievers import MeanPooling
from runs_of_retrievers import write_run

from prvr.cli import main
from prvr.data import DataError, PackedSplit, open_corpus, pack
from prvr.evaluation import ranked_rows
from prvr.evaluation.encode import encode_split
from prvr.plot import draw, save_figure
from prvr.plot.figures import RIGHT, WRONG, brief
from prvr.plot.reranker import (
    AttentionMap,
    Trajectory,
    attention_figure,
    attention_of,
    trajectory_figure,
    trajectory_of,
)
from prvr.plot.scores import PairScores, pair_scores, scores_figure
from prvr.stages import (
    CandidateReranker,
    Pipeline,
    RerankerConfig,
    ScoreMatrix,
    fingerprint,
    reranker_inputs,
)
from prvr.systems import System, open_system
from prvr.training import save_rerankers


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


def make(**options: object) -> CandidateReranker:
    torch.manual_seed(0)
    config = RerankerConfig(**{"width": 8, "steps": 10, "candidates": 6, **options})  # pyright: ignore[reportArgumentType]
    return CandidateReranker(config, "t2v").eval()


class TestTrajectory:
    def test_it_ends_where_reranking_does(self, scores: ScoreMatrix, split: PackedSplit) -> None:
        reranker, row = make(), 3
        inputs = reranker_inputs(scores.encoded, reranker.config)
        found = trajectory_of(reranker, scores, split, row, seed=5)
        assert found.values.shape == (11, 6)
        assert found.levels == tuple(range(10, -1, -1))
        with torch.no_grad():
            before = torch.cat([scores.rows("t2v", rows) for rows in scores.blocks("t2v", 7)])
        added = reranker.rerank(before, inputs.text, inputs.frames, inputs.mask, seed=5) - before
        chosen = before[row].topk(6).indices
        assert np.allclose(found.values[-1], added[row, chosen].numpy(), atol=1e-5)
        assert found.candidates == tuple(split.video_ids[i] for i in chosen.tolist())
        right = scores.positives("t2v", slice(row, row + 1))[0, chosen]
        assert found.right.tolist() == right.tolist()

    def test_fewer_steps_have_fewer_levels(self, scores: ScoreMatrix, split: PackedSplit) -> None:
        reranker = make(steps=50)
        found = trajectory_of(reranker, scores, split, 0, num_steps=5, top_k=4)
        assert found.levels == (50, 40, 30, 20, 10, 0)
        assert found.values.shape == (6, 4)
        assert np.isclose(found.values[-1].sum(), 1, atol=1e-5)  # x_0 is a distribution
        torch.manual_seed(99)  # the global state does not count
        again = trajectory_of(reranker, scores, split, 0, num_steps=5, top_k=4)
        assert np.array_equal(found.values, again.values)

    def test_what_it_refuses(self, scores: ScoreMatrix, split: PackedSplit) -> None:
        control = make(process="one_step")
        with pytest.raises(ValueError, match="no trajectory"):
            trajectory_of(control, scores, split, 0)
        with pytest.raises(ValueError, match="top_k: got 21, expected 1 to 20"):
            trajectory_of(make(), scores, split, 0, top_k=21)

    def test_the_figure_has_bars_of_some_levels_and_says_the_place(self) -> None:
        values = np.array([[0.1, 0.5, 0.3], [0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0, 0, 1.0]])
        right = np.array([False, False, True])
        figure = trajectory_figure(Trajectory(values, (30, 20, 10, 0), right, ("a", "b", "c"), "a $dog"), panels=3)
        assert [axes.get_title() for axes in figure.axes] == ["$x_{30}$", "$x_{10}$", "$x_{0}$"]
        for axes, step in zip(figure.axes, (0, 2, 3), strict=True):
            heights = [patch.get_height() for patch in axes.patches if isinstance(patch, Rectangle)]
            assert heights == values[step].tolist()
            colours = [patch.get_facecolor() for patch in axes.patches]
            assert colours == [to_rgba(WRONG), to_rgba(WRONG), to_rgba(RIGHT)]
        assert "place 3 by the scores, place 1 by" in (figure.get_suptitle() or "")
        none = Trajectory(np.eye(2), (1, 0), np.zeros(2, bool), ("a", "b"), "q")
        assert "none of these 2 candidates is right" in (trajectory_figure(none).get_suptitle() or "")


class TestScores:
    def test_all_right_pairs_and_a_sample_of_the_wrong(self, scores: ScoreMatrix, split: PackedSplit) -> None:
        with torch.no_grad():
            matrix = torch.cat([scores.rows("t2v", rows) for rows in scores.blocks("t2v", 100)])
        right = torch.from_numpy(split.relevant_matrix)
        found = pair_scores(scores.retriever, split, scores.encoded, block=9)
        assert np.allclose(np.sort(found.positive), matrix[right].sort().values.numpy())
        assert np.allclose(np.sort(found.negative), matrix[~right].sort().values.numpy())
        some = pair_scores(scores.retriever, split, scores.encoded, most=500, block=9)
        assert len(some.positive) == int(right.sum())
        assert 300 < len(some.negative) < 700
        assert np.isin(some.negative, found.negative).all()

    def test_with_a_reranker_only_candidates_move_and_each_by_its_probability(
        self, scores: ScoreMatrix, split: PackedSplit
    ) -> None:
        reranker = make()
        systems = scores.retriever, reranking(scores.retriever, {"t2v": reranker})
        alone, moved = (pair_scores(system, split, scores.encoded) for system in systems)
        everything = [np.concatenate([part.positive, part.negative]) for part in (alone, moved)]
        assert len(everything[0]) == len(everything[1])
        added = everything[1].sum() - everything[0].sum()  # every row's probabilities have sum 1
        assert added == pytest.approx(reranker.config.weight * scores.shape("t2v")[0], rel=1e-4)
        assert (np.sort(everything[1]) >= np.sort(everything[0]) - 1e-6).all()

    @given(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=8),
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=8),
    )
    def test_auc_and_overlap_agree_with_a_loop(self, positive: list[float], negative: list[float]) -> None:
        wins = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
        pairs, edges = PairScores(np.array(positive), np.array(negative)), np.array([0.0, 0.5, 1.0])
        assert pairs.auc == pytest.approx(sum(wins) / len(wins))
        low = [np.mean(np.array(values) < 0.5) for values in (positive, negative)]
        assert pairs.overlap(edges) == pytest.approx(min(low) + 1 - max(low))

    def test_the_figure_has_a_panel_for_each_domain_over_one_range(self) -> None:
        near = PairScores(np.array([0.2, 0.9]), np.array([-0.5, 0.0, 0.1]))
        far = PairScores(np.array([1.5]), np.array([-1.0, 0.3]))
        figure = scores_figure({"a": near, "a -> b": far}, bins=10)
        assert [axes.get_title().split("\n")[0] for axes in figure.axes] == ["a", "a -> b"]
        for axes in figure.axes:
            assert axes.get_xlim() == pytest.approx((-1.0, 1.5))
            heights = [[patch.get_height() for patch in container] for container in axes.containers]
            assert [len(bars) for bars in heights] == [10, 10]
            assert [sum(bars) for bars in heights] == pytest.approx([100, 100])


class TestAttention:
    def test_it_is_that_of_the_encoder(self, scores: ScoreMatrix, split: PackedSplit) -> None:
        reranker = make(attention_temperature=0.5)
        inputs, video = reranker_inputs(scores.encoded, reranker.config), 2
        found = attention_of(reranker, scores.encoded, split, video)
        asked = split.queries_of(video)
        frames = inputs.frames[video][inputs.mask[video]]
        expected = (inputs.text[torch.from_numpy(asked)] @ frames.T / 0.5).softmax(-1)
        assert np.allclose(found.weights, expected.numpy(), atol=1e-6)
        assert found.texts == tuple(split.captions[q] for q in asked)
        assert found.duration == split.durations[video]
        start, end = split.moments.start[asked[0]], split.moments.end[asked[0]]
        assert found.moments[0] == (start, end)

    def test_the_figure_shows_the_weights_and_frames_the_moments(self) -> None:
        weights = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
        figure = attention_figure(AttentionMap(weights, ("x", "y"), "v", 12.0, ((2.0, 5.0), None)))
        axes = figure.axes[0]
        assert np.asarray(axes.images[0].get_array()).tolist() == weights.tolist()
        assert tuple(axes.images[0].get_extent()) == (0, 12.0, 1.5, -0.5)
        (box,) = axes.patches
        assert isinstance(box, Rectangle)
        assert (box.get_x(), box.get_width(), round(box.get_y(), 6)) == (2.0, 3.0, -0.45)
        assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]
        assert axes.get_xlabel() == "seconds"
        axes = attention_figure(AttentionMap(np.ones((1, 4)) / 4, ("x",), "v")).axes[0]  # without times
        assert (axes.get_xlabel(), axes.get_xlim()) == ("frame", (0, 4))


class TestFiles:
    def test_a_file_is_written_whole(self, tmp_path: Path) -> None:
        figure = scores_figure({"a": PairScores(np.array([1.0]), np.array([0.0]))})
        path = save_figure(figure, tmp_path / "new" / "a.png")
        assert path.read_bytes().startswith(b"\x89PNG")
        assert [p.name for p in path.parent.iterdir()] == ["a.png"]
        with pytest.raises(DataError, match=r"ends in \.png"):
            save_figure(figure, tmp_path / "a.pdf")

    def test_a_text_is_no_formula(self) -> None:
        assert brief("costs $5 and $6") == r"costs \$5 and \$6"
        assert len(brief("word " * 50, 30)) <= 30


class TestCommand:
    @pytest.fixture
    def runs(self, toy_root: Path, tmp_path: Path) -> tuple[Path, Path]:
        """A retriever and re-rankers over it, neither of them trained."""
        run, retriever = write_run(tmp_path / "run", toy_root, "toy-tiny")
        config = RerankerConfig(width=16, steps=5, candidates=8, trained_on=fingerprint(retriever))
        save_rerankers(tmp_path / "reranker" / "best", {"t2v": CandidateReranker(config, "t2v")})
        return run, tmp_path / "reranker"

    @pytest.mark.parametrize("name", ["trajectory", "attention", "scores"])
    def test_a_picture_is_written(
        self, name: str, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run, reranker = map(str, runs)
        out = tmp_path / f"{name}.png"
        assert (
            main(["plot", name, run, "--stage", f"diffusion:{reranker}", "--output", str(out), "--device", "cpu"]) == 0
        )
        assert out.read_bytes().startswith(b"\x89PNG")
        assert str(out) in capsys.readouterr().out

    def test_mistakes_are_explained(self, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
        run, reranker = map(str, runs)
        start = ["plot", "trajectory", run, "--device", "cpu"]
        assert 'must have extension "png"' in explained([*start, "--output", "a.jpg"], capsys)
        assert "no re-ranker of direction t2v" in explained(start, capsys)
        start += ["--stage", f"diffusion:{reranker}"]
        assert "query nobody: expected an id" in explained([*start, "--query", "nobody"], capsys)
        assert "panels: Input should be greater than or equal to 2" in explained([*start, "--panels", "1"], capsys)

    def test_a_reranker_of_another_retriever(
        self, runs: tuple[Path, Path], toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other, _ = write_run(tmp_path / "other", toy_root, "toy-tiny", seed=1)
        said = explained(["plot", "attention", str(other), "--stage", f"diffusion:{runs[1]}"], capsys)
        assert "was trained on the embeddings of" in said


class TestDraw:
    @pytest.fixture
    def system(self, toy_root: Path, tmp_path: Path) -> System:
        """A retriever with a stage of QB-Norm and re-rankers over it, none of them trained."""
        run, retriever = write_run(tmp_path / "run", toy_root, "toy-tiny")
        trained = {"width": 16, "steps": 5, "candidates": 8, "trained_on": fingerprint(retriever)}
        reranker = CandidateReranker(RerankerConfig(**trained), "t2v")  # pyright: ignore[reportArgumentType]
        save_rerankers(tmp_path / "reranker" / "best", {"t2v": reranker})
        stages = [{"kind": "qb_norm"}, {"kind": "diffusion", "run": str(tmp_path / "reranker"), "num_steps": 3}]
        return open_system(run, stages)

    def test_the_trajectory_is_that_of_the_pipeline(self, system: System) -> None:
        """The bars of x_0 are what the last stage adds to the scores after all stages before it."""
        figure = draw("trajectory", system, settings={"query": 4})
        bars = [patch.get_height() for patch in figure.axes[-1].patches if isinstance(patch, Rectangle)]
        pipeline, config = system.pipeline, system.config
        assert config is not None
        with closing(system.open_split(config.data.eval_split)) as packed:
            encoded = encode_split(pipeline, packed)
            with torch.no_grad():
                before, after = (
                    torch.cat([scores for _, scores in ranked_rows(part, encoded, "t2v")])[4]
                    for part in (Pipeline(pipeline.first, pipeline.stages[:1]), pipeline)
                )
        chosen = before.topk(8).indices
        assert np.allclose(bars, (after - before)[chosen], atol=1e-4)
        assert [axes.get_title() for axes in figure.axes] == ["$x_{5}$", "$x_{3}$", "$x_{2}$", "$x_{0}$"]

    def test_what_is_asked_wrongly(self, system: System) -> None:
        with pytest.raises(ValueError, match="unknown plot 'score'; did you mean scores"):
            draw("score", system)
        with pytest.raises(ValueError, match="plot scores: unknown key 'bin'; did you mean bins"):
            draw("scores", system, settings={"bin": 3})
        with pytest.raises(ValueError, match="give a configuration"):
            draw("scores", replace(system, config_file=None))
