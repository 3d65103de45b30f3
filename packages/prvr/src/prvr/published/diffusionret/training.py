"""The training of re-rankers over a frozen retriever, in one direction or both."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from prvr.data import PackedSplit, holdout
from prvr.data.loader import Shard
from prvr.data.on_device import sent
from prvr.evaluation import EvaluationConfig, EvaluationReport, encode_split, evaluate
from prvr.evaluation.encode import device_of, evaluation_mode
from prvr.evaluation.metrics import RankCounts
from prvr.evaluation.rank import count_rows
from prvr.models.layers import initialise
from prvr.published.diffusionret import (
    CandidateReranker,
    DiffusionSettings,
    DiffusionStage,
    RerankerRunConfig,
    fingerprint,
    reranker_inputs,
)
from prvr.published.diffusionret.candidates import Candidates, hard_candidates
from prvr.published.diffusionret.run_config import reranker_card
from prvr.stages import Direction, FirstStage, Pipeline, ScoreMatrix, best_columns, merge_top_k
from prvr.training import RunOptions, Splits, Trainer, build_optimizer
from prvr.training.checkpoint import Score, derived_seed, replace_folder
from prvr.training.processes import sum_over_processes
from prvr.training.record import keep_record
from prvr.training.run_folder import Run, open_run
from prvr.training.task import Selection


@dataclass(frozen=True)
class BestEpoch:
    """The selected epoch of one direction.

    Args:
        epoch: from 0; -1 before the first. With `train.average`, the last of those whose mean is kept.
        rsum: R@1 + R@5 + R@10 on the split that selects.
        weight: the weight of the probability, with which that was reached.
    """

    epoch: int
    rsum: float
    weight: float


@dataclass(frozen=True)
class RerankerResult:
    """The result of training re-rankers.

    Args:
        output: the run folder.
        epochs: completed.
        best: the selected epoch of each direction.
        history: the lines of `metrics.jsonl`.
        retriever: the retriever alone, on the reported split.
        reranked: with the selected re-rankers, as in `evaluation.json`.
    """

    output: Path
    epochs: int
    best: Mapping[Direction, BestEpoch]
    history: tuple[Mapping[str, Any], ...]
    retriever: EvaluationReport
    reranked: EvaluationReport


def train_reranker(
    config: RerankerRunConfig,
    retriever: FirstStage,
    splits: Splits,
    *,
    output: Path | str,
    **options: Unpack[RunOptions],
) -> RerankerResult:
    """Trains re-rankers on the embeddings of a frozen retriever, keeps the best of each direction, evaluates both.

    The retriever is not changed. Its embeddings of the training and the selecting split are computed once, by each
    process. The epoch and the weight of the probability are chosen on the split that selects, never on the reported
    one. Seeds, signals and several processes are as in `prvr.training.train`.

    Args:
        config: the configuration of the run; `reranker.trained_on` is filled in.
        retriever: any that has one vector per query and several per video.
        splits: the splits of the retriever.
        output: the run folder, new or empty: that of any run, with a re-ranker of each direction in `best/` and
            evaluation_retriever.json.
        options: see [RunOptions][prvr.training.RunOptions]; `device` is by default where the retriever is.

    Raises:
        prvr.training.TrainingError: as `prvr.training.train`.
        prvr.training.Terminated: SIGTERM arrived, and the run is saved.
        ValueError: the retriever's embeddings do not fit `config.reranker`, or there are too few videos.
    """
    name = fingerprint(retriever) if isinstance(retriever, nn.Module) else None
    config = replace(config, reranker=replace(config.reranker, trained_on=name))
    options["device"] = "cpu" if device_of(retriever, options.get("device")).type == "cpu" else None
    with open_run(config, output, **options) as run:
        keep_record(run, config.train.precision, None)
        with run.stop.at_once():  # nothing is trained yet
            task = RerankerTask(config, run.accelerator, retriever, splits)
        steps = math.ceil(len(task.query_ids) / config.train.batch_size)
        networks = nn.ModuleList(task.networks.values())
        optimizer, scheduler = build_optimizer(config.optim, networks, nn.Module(), max(1, steps * config.train.epochs))
        trainer = Trainer(config, task, run, optimizer, scheduler, steps)
        plain, reranked = trainer.train(lambda: task.evaluate(splits.report, run))
    best: dict[Direction, BestEpoch] = {name: BestEpoch(**trainer.best[name].details) for name in task.networks}
    return RerankerResult(run.folder.path, trainer.epoch, best, tuple(trainer.history), plain, reranked)


class RerankerTask:
    """Re-rankers of one direction or both, trained on frozen embeddings; a `prvr.training.Task`.

    All draws of a step are made for the whole batch, from the seed, the epoch and the step; each process then takes its
    shard of the rows. So a run can be resumed anywhere, and does not depend on the number of processes.

    Args:
        config: the configuration of the run.
        accelerator: device, precision and processes.
        retriever: frozen.
        splits: the splits of the retriever.

    Raises:
        ValueError: another width than the re-rankers', embeddings that the retriever has not, or too few videos.
    """

    def __init__(
        self, config: RerankerRunConfig, accelerator: Accelerator, retriever: FirstStage, splits: Splits
    ) -> None:
        self.config, self.accelerator, self.device, self.retriever = config, accelerator, accelerator.device, retriever
        torch.manual_seed(derived_seed(config.train.seed, "weights"))
        self.networks: dict[Direction, CandidateReranker] = {}
        for direction in config.directions:
            self.networks[direction] = CandidateReranker(config.network, direction).to(self.device)
            _start(self.networks[direction], config.train.start)
        train, self.selection_split = learning_splits(splits)
        self.query_ids = train.query_ids
        scores = self._matrix(train)
        self.inputs = reranker_inputs(scores.encoded, config.network)
        owner, size = torch.from_numpy(train.query_to_video), config.candidates.pool
        with evaluation_mode(retriever, self.device, config.train.seed):
            self.candidates = {
                name: Candidates(name, owner) if size == "batch" else hard_candidates(scores, train, name, size)
                for name in self.networks
            }
        self.selection = self._matrix(self.selection_split)
        self.selection_inputs = reranker_inputs(self.selection.encoded, config.network)
        self.draws, self.noise = torch.Generator("cpu"), torch.Generator(self.device)
        self.shard = Shard(accelerator.process_index, accelerator.num_processes)

    def _matrix(self, split: PackedSplit) -> ScoreMatrix:
        """The scores of the retriever, with its embeddings."""
        encoded = encode_split(self.retriever, split, device=self.device, seed=self.config.train.seed)
        return ScoreMatrix(self.retriever, encoded, split.relevant)

    def batches(self, epoch: int, first_step: int) -> Iterator[tuple[Tensor, str]]:
        """Indices of the training queries of each step, of all processes together."""
        self.draws.manual_seed(derived_seed(self.config.train.seed, epoch, "order"))
        order = torch.randperm(len(self.query_ids), generator=self.draws)
        for rows in order.split(self.config.train.batch_size)[first_step:]:
            yield rows, f"Queries of this batch: {', '.join(self.query_ids[row] for row in rows.tolist())}"

    def backward(self, batch: Tensor, epoch: int, step: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Adds the gradients of the networks of all directions, and returns the loss of each."""
        seed, size, network = self.config.train.seed, len(batch), self.config.network
        self.draws.manual_seed(derived_seed(seed, epoch, step, "candidates"))
        self.noise.manual_seed(derived_seed(seed, epoch, step, "noise"))
        own = self.shard.of(size)
        share = (own.stop - own.start) / size
        if not share:  # a last batch with fewer rows than processes
            own = slice(1)
        losses = dict[str, Tensor]()
        for direction, reranker in self.networks.items():
            candidates = self.candidates[direction]
            columns = candidates.draw(batch, self.config.candidates.num, self.draws)
            asks = candidates.asks[batch[own]]
            # The control process without diffusion reads neither.
            timesteps = torch.randint(network.steps, (size,), generator=self.noise, device=self.device)[own]
            noise = torch.randn(columns.shape, generator=self.noise, device=self.device)[own]
            with self.accelerator.autocast():
                pairs = reranker.pairs(self.inputs, *(sent(x, self.device) for x in (asks, columns[own])))
                right = torch.arange(columns.shape[1], device=self.device).expand(len(asks), -1) == 0
                loss = reranker.loss_of_pairs(right, pairs, noise=noise, timesteps=timesteps)
            losses[direction] = loss * share
        losses["total"] = torch.stack(list(losses.values())).sum()
        self.accelerator.backward(losses["total"])
        terms = {name: loss.detach() for name, loss in losses.items()}
        gradients = [p.grad for network in self.networks.values() for p in network.parameters() if p.grad is not None]
        sum_over_processes([*terms.values(), *gradients])
        return terms

    @torch.no_grad()
    def select(self, epoch: int) -> Selection:
        """Rsum of each direction with the best of the weights, on the split that selects."""
        scores, network, train = dict[str, Score](), self.config.network, self.config.train
        weights = train.weights or (network.weight,)
        if network.combine == "alone":
            weights = (1.0,)  # no other weight gives another order
        matrix = self.selection
        for direction, reranker in self.networks.items():
            counts: dict[float, list[RankCounts]] = {weight: [] for weight in weights}  # of each block
            for rows in matrix.blocks(direction, train.eval_queries):
                whole = matrix.rows(direction, rows)
                columns = best_columns(whole, min(network.candidates, whole.shape[1]))
                likely = reranker.eval().probabilities(self.selection_inputs, rows, columns, seed=train.seed)
                best = whole.gather(1, columns)
                for weight, parts in counts.items():  # candidates are denoised once
                    reranked = merge_top_k(whole, columns, reranker.combined(best, likely, weight))
                    parts.append(count_rows(matrix, direction, rows, reranked))
            sums = {weight: RankCounts.cat(parts).metrics().rsum for weight, parts in counts.items()}
            weight = max(sums, key=sums.__getitem__)  # of equal ones the first
            scores[direction] = Score(epoch, sums[weight], asdict(BestEpoch(epoch, sums[weight], weight)))
        return Selection("Rsum", scores, {direction: score.details for direction, score in scores.items()})

    def save(self, folder: Path, best: Mapping[str, Score], improved: Collection[str]) -> None:
        """Saves the directions that got better, each with the weight that was chosen for it."""
        details = {direction: best[direction].details for direction in self.networks}
        rerankers: dict[Direction, CandidateReranker] = {}
        for direction, reranker in self.networks.items():
            if direction in improved:
                config = replace(reranker.config, weight=details[direction]["weight"])
                rerankers[direction] = CandidateReranker(config, direction)
                rerankers[direction].load_state_dict(reranker.state_dict())
            else:
                rerankers[direction] = CandidateReranker.from_pretrained(folder / direction)
        save_rerankers(folder, rerankers, reranker_card(self.config, details, self.selection_split.name))

    def evaluate(self, split: PackedSplit, run: Run) -> tuple[EvaluationReport, EvaluationReport]:
        """The reported split without and with the best re-rankers; what a finished run has written is read."""
        alone, seed = run.folder.path / "evaluation_retriever.json", self.config.train.seed
        if alone.exists() and run.folder.evaluation.exists():
            return EvaluationReport.from_json(alone), EvaluationReport.from_json(run.folder.evaluation)
        stage = DiffusionStage.load(DiffusionSettings(seed=seed), run.folder.best, None)
        config = EvaluationConfig(seed=seed, query_batch=self.config.train.eval_queries)
        with run.stop.at_once():
            encoded = self._matrix(split).encoded
            systems = self.retriever, Pipeline(self.retriever, [stage])
            plain, reranked = (evaluate(each, split, config, encoded=encoded, device=self.device) for each in systems)
        plain.to_json(alone)
        run.folder.save_report(reranked)
        return plain, reranked


def save_rerankers(folder: Path, rerankers: Mapping[Direction, CandidateReranker], card: str | None = None) -> None:
    """Replaces `folder` by one with a re-ranker of each direction, whole or not at all.

    Args:
        folder: usually `best/` of a run.
        rerankers: by direction.
        card: the text of README.md; None = none.

    Raises:
        prvr.training.TrainingError: it cannot be written.
    """

    def write(temporary: Path) -> None:
        if card is not None:
            (temporary / "README.md").write_text(card, encoding="utf-8", newline="\n")
        DiffusionStage(rerankers).save(temporary)

    replace_folder(folder, write)


def learning_splits(splits: Splits) -> tuple[PackedSplit, PackedSplit]:
    """The split that re-rankers are trained on and the one that selects; the reported split is neither.

    Where the retriever was selected on the reported split (protocol "paper"), a tenth of the training videos selects.
    """
    if splits.selection is splits.report:
        return holdout(splits.train, 0.1)
    return splits.train, splits.selection


def _start(reranker: CandidateReranker, start: str) -> None:
    """Sets the first weights as `train.start` says; "random" leaves them as they were drawn."""
    if start == "identity":  # the attention starts as the product of query and candidate as the retriever gives them
        for linear in (reranker.denoiser.query, reranker.denoiser.key, reranker.denoiser.value):
            nn.init.eye_(linear.weight)
    elif start == "normal":
        initialise(*(part for part in reranker.modules() if isinstance(part, nn.Linear)))
