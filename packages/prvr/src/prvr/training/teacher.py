"""A system that teaches: its scores of the training split, which `loss.distillation` learns from."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from prvr.config import TrainConfig, load_config
from prvr.data.pack import PackSettings, repack
from prvr.data.packed import PackedSplit
from prvr.errors import InputError
from prvr.evaluation.encode import device_of, encode_split, evaluation_mode
from prvr.evaluation.rank import ranked_rows
from prvr.models import load_pretrained
from prvr.models.pretrained import model_files, shipped_model
from prvr.stages import Pipeline

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Teacher:
    """A trained system whose scores another one learns from.

    A stage over the best candidates alone keeps them ahead of the others by a constant (`prvr.stages.merge_top_k`),
    which a softmax takes for a large difference: a stage that teaches should have `top_k=all`.

    Args:
        pipeline: gives the scores; a retriever alone is one without stages.
        keep_last_frame: how its frames are sampled: `data.keep_last_frame` of the run that trained its first stage.
        name: for messages.
    """

    pipeline: Pipeline
    keep_last_frame: bool = True
    name: str = "the teacher"

    @classmethod
    def open(cls, name: str) -> "Teacher":
        """The system that a name stands for.

        Args:
            name: a run of `prvr train`, a folder of save_pretrained, a model that ships with prvr, or a folder that
                `prvr pipeline` has saved, which holds stages as well.

        Raises:
            DataError: there is no such model, or it is damaged.
        """
        folder = shipped_model(name) or Path(name).expanduser()
        if Pipeline.is_folder(folder):
            pipeline, file = Pipeline.from_pretrained(folder), folder / "config.yaml"
        else:
            weights, file = model_files(folder)
            pipeline = Pipeline(load_pretrained(weights).eval())
        known = file is not None and file.is_file()
        return cls(pipeline, load_config(str(file)).data.keep_last_frame if known else True, name)

    def scores(
        self, split: PackedSplit, train: TrainConfig, *, device: torch.device | str | None = None
    ) -> Float[Tensor, "q v"]:
        """Its scores, after all stages, of every query of a split with every video.

        Args:
            split: what is learned from; its videos are sampled anew as the teacher reads them.
            train: the seed, and how much is encoded at a time.
            device: where to compute; default: where the parameters of the teacher are. Modes and the random state are
                as before afterwards.

        Returns:
            `(q, v)` float16 on the host: 2 bytes for each pair, 3 GB for TVR.

        Raises:
            DataError: the features have another width than the teacher reads, or the corpus of the split is not known.
            InputError: a score is not finite.
        """
        first = self.pipeline.first
        where, model = device_of(first, device), first.config  # pyright: ignore[reportAttributeAccessIssue]
        logger.info("%s teaches: it scores %d queries with %d videos", self.name, len(split.query_ids), len(split))
        settings = PackSettings.of(model, self.keep_last_frame)
        sampled = repack(split, settings, feature_dim=model.video_dim, query_dim=model.query_dim)
        encoded = encode_split(
            self.pipeline,
            sampled,
            device=where,
            video_batch=train.eval_videos,
            query_batch=train.eval_queries,
            seed=train.seed,
        )
        found = torch.empty(len(split.query_ids), len(split), dtype=torch.float16)
        with evaluation_mode(self.pipeline, where, train.seed):
            for rows, some in ranked_rows(self.pipeline, encoded, "t2v", train.eval_queries):
                found[rows] = some.to("cpu", torch.float16)
                finite = found[rows].isfinite().all(1)
                if not bool(finite.all()):
                    query = split.query_ids[rows.start + int(finite.int().argmin())]
                    raise InputError(
                        f"{self.name}: its scores of query {query!r} are not finite, or above 65504. Look for NaN in "
                        "its weights and in the features, or let another system teach."
                    )
        return found
