"""A picture of a system by the name of its kind: what `prvr plot` and `prvr papers` call."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure

from prvr.config import Config, validated
from prvr.data import PackedSplit
from prvr.errors import InputError
from prvr.evaluation.encode import encode_split, evaluation_mode
from prvr.plot.plots import PLOTS
from prvr.published.diffusionret.stage import DiffusionStage
from prvr.stages import EncodedSplit, Pipeline
from prvr.systems import System


@dataclass(frozen=True)
class PlotInput:
    """What a picture is drawn of.

    Args:
        system: a retriever or a pipeline, as `prvr.systems.open_system` opens it.
        config: says where and how the data are read.
        split: `train`, `val` or `test`.
        device: where to compute.
    """

    system: System
    config: Config
    split: str
    device: torch.device

    def opened(self) -> PackedSplit:
        """The split, closed at the end of a `with` block."""
        return self.system.open_split(self.split, self.config)

    @contextmanager
    def encoded(
        self, config: Config | None = None, split: str | None = None
    ) -> Iterator[tuple[PackedSplit, EncodedSplit]]:
        """A split and its embeddings, with the models of the system in evaluation mode and without gradients.

        Args:
            config: another configuration of the data.
            split: another split.

        Raises:
            DataError: the data are missing or damaged.
        """
        pipeline, seed = self.system.pipeline, self.config.train.seed
        with self.system.open_split(split or self.split, config or self.config) as packed:
            encoded = encode_split(pipeline, packed, device=self.device, seed=seed)
            with evaluation_mode(pipeline, self.device, seed):
                yield packed, encoded

    def diffusion(self) -> tuple[DiffusionStage, Pipeline]:
        """The first stage of the system that re-ranks by diffusion, and the pipeline of what stands before it.

        Raises:
            InputError: there is none that ranks videos for a text.
        """
        stages = self.system.pipeline.stages
        for number, stage in enumerate(stages):
            if isinstance(stage, DiffusionStage) and "t2v" in stage.rerankers:
                return stage, Pipeline(self.system.pipeline.first, stages[:number])
        raise InputError(
            f"{self.system.folder}: no re-ranker of direction t2v in it. Name a run of `prvr train --retriever RUN`, "
            "or add one: --stage diffusion:RERANKER"
        )


def draw(
    name: str,
    system: System,
    config: Config | None = None,
    split: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    device: torch.device | str = "cpu",
) -> Figure:
    """Draw a plot of a system.

    Args:
        name: one of `PLOTS`.
        system: as `prvr.systems.open_system` opens it.
        config: says where and how the data are read; default: that of the run that trained the first stage.
        split: default: the one that the configuration reports.
        settings: fields of the settings of the plot; default: none.
        device: where to compute.

    Raises:
        InputError: an unknown plot, a system that has not what the plot shows, or no configuration.
        prvr.ConfigError: a setting that cannot be used.
        DataError: the data are missing or damaged.

    Examples:
        >>> from prvr.systems import open_system
        >>> draw("attention", open_system("runs/reranker-1"), settings={"video": 3})  # doctest: +SKIP
        <Figure size 1000x350 with 2 Axes>
    """
    entry = PLOTS[name]
    config = config or system.config
    if config is None:
        raise InputError(f"{system.folder}: no config.yaml says which data this model reads: give a configuration")
    options = validated(entry.settings, settings or {}, f"plot {name}")
    return entry.part(PlotInput(system, config, split or config.data.eval_split, torch.device(device)), options)


def number_of(name: str, what: str, names: tuple[str, ...], *others: tuple[str, ...]) -> int:
    """The position of an id, or the number itself.

    Args:
        name: an id, or a number from 0.
        what: "query" or "video", for the message.
        names: the ids.
        others: alternative ids, in the order of `names`.

    Raises:
        InputError: there is no such id or number.

    Examples:
        >>> number_of("b", "query", ("a", "b")), number_of("0", "query", ("a", "b"))
        (1, 0)
    """
    for ids in (names, *others):
        if name in ids:
            return ids.index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    raise InputError(f"{what} {name}: expected an id such as {names[0]}, or a number from 0 to {len(names) - 1}")
