"""Pictures of trained runs and curves: the numbers behind them; and what is refused."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from training_runs import StraightRuns

import lorentz
from prvr.config import load_config
from prvr.data import PackedSplit
from prvr.errors import InputError, TrainingError
from prvr.evaluation import encode_split, find_moments, ranked_rows
from prvr.evaluation.moments import ExampleQuery, Hit
from prvr.models import build_retriever
from prvr.plot import PlotInput, draw, sweep_figure
from prvr.plot.embeddings import frame_spaces, moments_of_frames
from prvr.plot.examples import examples_figure, pictures_of
from prvr.plot.hyperbolic import entailment_of, lifted
from prvr.systems import System, open_system
from prvr.types import VideoEmbedding, query_vectors
from prvr_search.films.toy_videos import write_videos


@pytest.fixture(scope="module")
def system(straight_runs: StraightRuns) -> System:
    """With registers and the entailment loss."""
    return open_system(straight_runs["bert_adam"].output)


@pytest.fixture(scope="module")
def packed(system: System) -> Iterator[PackedSplit]:
    with closing(system.open_split("test")) as split:
        yield split


@pytest.fixture(scope="module")
def given(system: System) -> PlotInput:
    return PlotInput(system, system.config, "test", torch.device("cpu"))


class TestFrames:
    def test_spaces_are_those_before_and_after_training(self, given: PlotInput, packed: PackedSplit) -> None:
        spaces = frame_spaces(given, packed, 2)
        assert list(spaces) == ["input features", "untrained weights", "trained"]
        clips, frames = packed.video(2)
        first = given.system.pipeline.first
        with torch.no_grad():
            trained = first.encode_video(clips[None], frames[None], torch.ones(1, len(frames), dtype=torch.bool)).frames
        assert np.array_equal(spaces["input features"], frames.numpy())
        assert np.allclose(spaces["trained"], trained[0].numpy(), atol=1e-6)
        assert not np.allclose(spaces["untrained weights"], spaces["trained"], atol=0.1)

    def test_a_frame_belongs_to_every_moment_around_it(self, packed: PackedSplit) -> None:
        for video in range(len(packed)):
            inside, moments = moments_of_frames(packed, video, 40)
            for frame, around in enumerate(inside.T):
                time = (frame + 0.5) / 40 * packed.durations[video]
                assert around.tolist() == [start <= time < end for start, end in moments]

    def test_the_picture_has_a_panel_for_each_space_and_a_colour_for_each_moment(
        self, given: PlotInput, packed: PackedSplit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A moment within another, which has the same middle and hides it in no frame."""
        windows, queries = packed.windows.copy(), packed.queries_of(1)
        windows[:, queries[:2]] = (2.0, 14.0), (6.0, 9.0)
        monkeypatch.delitem(packed.__dict__, "windows")
        monkeypatch.setattr(PackedSplit, "windows", windows)
        figure = draw("frames", given.system, settings={"video": 1})
        inside, moments = moments_of_frames(packed, 1, packed.frame_counts[1])
        sizes = [int((~inside.any(0)).sum()), *inside.sum(1).tolist()]
        outer, inner = moments.index((2.0, 14.0)), moments.index((6.0, 9.0))
        both = inside[inner][inside[outer]]
        for axes in figure.axes:
            assert [len(np.asarray(points.get_offsets())) for points in axes.collections] == sizes
            large, small = (axes.collections[1 + number] for number in (outer, inner))
            assert large.get_zorder() < small.get_zorder()
            assert large.get_sizes()[both].min() > small.get_sizes().max()
        assert named(figure) == ["no moment", *(f"{start:.0f}–{end:.0f} s" for start, end in moments)]


class TestHyperbolic:
    def test_points_are_those_of_the_loss(self, given: PlotInput, packed: PackedSplit) -> None:
        term, _ = entailment_of(given)
        encoded = encode_split(given.system.pipeline, packed, seed=given.config.train.seed)
        text, video = query_vectors(encoded.text), VideoEmbedding.cat(encoded.videos)
        with torch.no_grad():
            groups, inside = lifted(term, packed, encoded)
            scales = torch.sigmoid(term.text_scale), torch.sigmoid(term.video_scale)
            lengths = {  # the exponential map at the origin keeps lengths
                "texts": scales[0] * text.norm(dim=-1),
                "videos": scales[1] * term.pool(video).norm(dim=-1),
                "clips": scales[1] * video.clips.flatten(0, 1).norm(dim=-1),
                "frames": scales[1] * video.frames[video.frame_mask].norm(dim=-1),
            }
            for name, expected in lengths.items():
                assert torch.allclose(lorentz.dist0(groups[name], term.c), expected, atol=1e-4), name
            own = term.lift_video(term.pool(video))[packed.query_to_video]
            angle = lorentz.exterior_angle(own, term.lift_text(text), term.c)
            aperture = lorentz.half_aperture(own, term.c, min_radius=given.config.loss["entailment"].min_radius)
        assert inside == pytest.approx(float((angle <= aperture).double().mean()))

    def test_what_has_no_such_space_is_refused_by_name(self, given: PlotInput, tmp_path: Path) -> None:
        shipped = open_system("toy-world")
        with pytest.raises(TrainingError, match=r"objective\.safetensors: no such file\. A run of `prvr train` has it"):
            entailment_of(PlotInput(shipped, shipped.config, "test", torch.device("cpu")))
        config = load_config("kernel-toy", {"model.video_dim": 8, "model.query_dim": 8})
        build_retriever(config.model).save_pretrained(tmp_path)
        with pytest.raises(InputError, match=r"first stage has none\. Name a run with model\.branches both"):
            entailment_of(PlotInput(open_system(tmp_path), config, "test", torch.device("cpu")))


class TestRegisters:
    def test_a_panel_for_some_steps_all_in_one_plane(self, given: PlotInput, straight_runs: StraightRuns) -> None:
        plain = open_system(straight_runs["plain"].output)
        with pytest.raises(ValueError, match="generates no registers by diffusion"):
            draw("registers", plain)
        assert str(draw("hyperbolic", plain).get_suptitle()).startswith("without the entailment loss")
        inputs = PlotInput(plain, plain.config, "test", torch.device("cpu"))
        first, second = (entailment_of(inputs)[0].state_dict() for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)
        figure = draw("registers", given.system, settings={"videos": 6, "panels": 3})
        assert [axes.get_title().split("\n")[0] for axes in figure.axes] == ["$r_{3}$, the start", "$r_{1}$", "$r_{0}$"]
        every, *shown = (np.asarray(points.get_offsets()) for points in figure.axes[2].collections)
        assert np.array_equal(np.stack(shown, 1), every.reshape(4, 6, 2, 2)[3])


class TestExamples:
    def test_hits_are_those_after_all_stages(self, system: System, packed: PackedSplit) -> None:
        staged = open_system(system.folder, [{"kind": "qb_norm", "beta": 40.0}])
        encoded = encode_split(staged.pipeline, packed)
        with torch.no_grad():
            rows = torch.cat([scores for _, scores in ranked_rows(staged.pipeline, encoded, "t2v")])
        best = rows[5].topk(4)
        (example,) = find_moments(staged.pipeline, packed, [5], 4)
        assert [hit.video_id for hit in example.hits] == [packed.video_ids[video] for video in best.indices]
        assert [hit.score for hit in example.hits] == pytest.approx(best.values.tolist(), abs=1e-5)
        figure = draw("examples", staged, settings={"query": packed.query_ids[5], "top": 4})
        labels = [text.get_text() for axes in figure.axes for text in axes.texts if "\n" in text.get_text()]
        for place, (text, hit) in enumerate(zip(labels, example.hits, strict=True), 1):
            assert text.startswith(f"{place}. {'✓ ' * (hit.video_id in example.relevant)}{hit.video_id}")

    def test_a_hit_without_times_says_so(self) -> None:
        example = ExampleQuery("q", "a $dog", (Hit("v", 0.1, None, None),), "v", None, None, frozenset({"v"}))
        figure = examples_figure([example], {"v": 9.0})
        assert figure.subfigs[0].get_suptitle().startswith("“a \\$dog”\na right video has rank 1")
        assert "times unknown" in [text.get_text() for axes in figure.axes for text in axes.texts]

    def test_pictures_are_drawn_or_read_from_films(self, packed: PackedSplit, tmp_path: Path) -> None:
        pytest.importorskip("av")
        corpus, video_id = packed.source.corpus, packed.video_ids[0]
        drawn = pictures_of(corpus, "test")
        films = pictures_of(corpus, "test", write_videos(corpus, [video_id], tmp_path / "films"))
        own, read = (source(video_id, 2.0, 8.0).astype(float) for source in (drawn, films))
        assert (own.shape, read.shape) == ((6, 64, 64, 3), (6, 160, 160, 3))
        near = np.linspace(0, 159, 64).round().astype(int)  # a film of the same scene, larger and compressed
        assert np.abs(own[2] - read[2][near][:, near]).mean() < np.abs(own[2] - np.roll(own[2], 16, 1)).mean()
        with pytest.raises(ValueError, match="no file is named"):
            films("nobody", 0.0, 1.0)


def named(figure: Figure) -> list[str]:
    """The entries of the legend."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_lines_are_means_and_bands_are_seeds() -> None:
    curve = [(2.0, [10.0, 14.0], 9.0), (4.0, [11.0], None), (8.0, [13.0, 15.0, 17.0], 16.0)]
    figure = sweep_figure({"a": curve}, xlabel="blocks", ylabel="SumR", chance=8.0)
    (axes,) = figure.axes
    line, published, reference = axes.lines
    assert np.asarray(line.get_xydata()).tolist() == [[2, 12], [4, 11], [8, 15]]
    assert np.asarray(published.get_xydata())[[0, 2]].tolist() == [[2, 9], [8, 16]]
    assert np.asarray(reference.get_ydata()).tolist() == [8, 8]
    (band,) = (part for part in axes.collections if isinstance(part, PolyCollection))
    corners = {tuple(row) for row in np.asarray(band.get_paths()[0].vertices).tolist()}
    assert {(2, 10), (2, 14), (4, 11), (8, 13), (8, 17)} <= corners
    assert axes.get_title(loc="left") == "band: lowest to highest of 3 seeds; hollow: published"
    assert named(figure) == ["a", "chance 8.0"]
