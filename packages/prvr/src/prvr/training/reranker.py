"""The training of re-rankers over a frozen retriever, in one direction or both."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from prvr.data import holdout
from prvr.data.dataset import Shard
from prvr.data.packed import PackedSplit
from prvr.evaluation import EvaluationConfig, evaluate
from prvr.evaluation.encode import device_of, encode_split, evaluation_mode
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.evaluation.report import EvaluationReport
from prvr.models.layers import initialise
from prvr.reading import parse_record
from prvr.stages import (
    CandidateReranker,
    DiffusionSettings,
    DiffusionStage,
    Direction,
    EncodedSplit,
    FirstStage,
    Pipeline,
    RerankerInputs,
    ScoreMatrix,
    fingerprint,
    reranker_inputs,
)
from prvr.training.candidates import BatchSource, CandidatePool, PairSource, candidate_pool, counts_by_weight
from prvr.training.card import reranker_card
from prvr.training.checkpoint import check_state, load_weights
from prvr.training.data import Splits
from prvr.training.optimizer import build_optimizer
from prvr.training.processes import sum_over_processes
from prvr.training.reranker_run import RerankerRunConfig, save_rerankers
from prvr.training.run import RunFolder
from prvr.training.signals import StopRequest
from prvr.training.state import derived_seed
from prvr.training.task import Selection
from prvr.training.trainer import RunOptions, train_task

Encode = Callable[..., EncodedSplit]
"""`encode_split`, or a function that remembers its results."""


@dataclass(frozen=True)
class BestEpoch:
    """The selected epoch of one direction.

    Args:
        epoch: from 0; -1 before the first; with `train.average` the last of those whose mean is kept.
        rsum: R@1 + R@5 + R@10 on the split that selects.
        weight: the weight of the probability, with which that was reached.
    """

    epoch: int = -1
    rsum: float = float("-inf")
    weight: float = 0.0


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
    encode: Encode = encode_split,
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
        encode: as `prvr.evaluation.encode_split`; one that remembers saves the work where several re-rankers are
            trained over one retriever.
        options: see [RunOptions][prvr.training.RunOptions]; `device` is by default where the retriever is.

    Raises:
        prvr.training.TrainingError: as `prvr.training.train`.
        prvr.training.Terminated: SIGTERM arrived, and the run is saved.
        ValueError: the retriever's embeddings do not fit `config.reranker`, or there are too few videos.
    """
    known = fingerprint(retriever) if isinstance(retriever, nn.Module) else None
    config = replace(config, reranker=replace(config.reranker, trained_on=known))

    def make_task(accelerator: Accelerator, stop: StopRequest) -> RerankerTask:
        with stop.at_once():
            return RerankerTask(config, accelerator, retriever, splits, encode)

    options["device"] = "cpu" if device_of(retriever, options.get("device")).type == "cpu" else None
    trainer, (plain, reranked) = train_task(config, make_task, output=output, **options)
    assert isinstance(trainer.task, RerankerTask)
    return RerankerResult(trainer.run.path, trainer.epoch, trainer.task.best, tuple(trainer.history), plain, reranked)


class RerankerTask:
    """Re-rankers of one direction or both, trained on frozen embeddings; a `prvr.training.task.Task`.

    All draws of a step are made for the whole batch, from the seed, the epoch and the step; each process then takes its
    shard of the rows. So a run can be resumed anywhere, and does not depend on the number of processes.

    Args:
        config: the configuration of the run.
        accelerator: device, precision and processes.
        retriever: frozen.
        splits: the splits of the retriever.
        encode: see `train_reranker`.

    Raises:
        ValueError: another width than the re-rankers', embeddings that the retriever has not, or too few videos.
    """

    def __init__(
        self,
        config: RerankerRunConfig,
        accelerator: Accelerator,
        retriever: FirstStage,
        splits: Splits,
        encode: Encode = encode_split,
    ) -> None:
        self.config, self.accelerator, self.device = config, accelerator, accelerator.device
        self.retriever, self.splits, self.encode = retriever, splits, encode
        torch.manual_seed(derived_seed(config.train.seed, "weights"))
        self.rerankers: dict[Direction, CandidateReranker] = {}
        for direction in config.directions:
            self.rerankers[direction] = CandidateReranker(config.network, direction).to(self.device)
            if config.train.start == "identity":
                _start_from_identity(self.rerankers[direction])
            elif config.train.start == "normal":
                initialise(*(part for part in self.rerankers[direction].modules() if isinstance(part, nn.Linear)))
        self.networks = (nn.ModuleDict(dict(self.rerankers.items())),)
        train, self.selection_split = learning_splits(config, splits)
        self.query_ids = train.query_ids
        self.sources = self._pair_sources(train)
        encoded = encode(retriever, self.selection_split, device=self.device, seed=config.train.seed)
        self.selection = ScoreMatrix(retriever, encoded, self.selection_split.relevant)
        self.selection_inputs: RerankerInputs = reranker_inputs(encoded, config.network)
        self.draws, self.noise = torch.Generator("cpu"), torch.Generator(self.device)
        self.shard = Shard(accelerator.process_index, accelerator.num_processes)
        self.best: dict[Direction, BestEpoch] = dict.fromkeys(self.rerankers, BestEpoch())
        self.best_weights: dict[str, dict[str, Tensor]] = {}

    def _pair_sources(self, train: PackedSplit) -> dict[Direction, tuple[PairSource | BatchSource, ...]]:
        """For each direction one source of queries and candidates from each encoding of the training split."""
        config, seed = self.config, self.config.train.seed
        if config.candidates.dropout_views:
            seeds = [derived_seed(seed, "view", view) for view in range(config.candidates.dropout_views)]
            encodings = [
                encode_split(self.retriever, train, device=self.device, seed=one, dropout=True) for one in seeds
            ]
        else:
            encodings = [self.encode(self.retriever, train, device=self.device, seed=seed)]
        inputs = [reranker_inputs(encoded, config.network) for encoded in encodings]
        size = config.candidates.pool
        if size == "batch":
            owner = torch.from_numpy(train.query_to_video)
            return {
                direction: tuple(BatchSource(reranker, some, owner) for some in inputs)
                for direction, reranker in self.rerankers.items()
            }
        with evaluation_mode(self.retriever, self.device, seed):
            scores = [ScoreMatrix(self.retriever, encoded, train.relevant) for encoded in encodings]
            pools = {
                direction: [candidate_pool(some, train, direction, size) for some in scores]
                for direction in self.rerankers
            }
        cache = config.train.cache_mib // (len(encodings) * len(self.rerankers))
        return {
            direction: tuple(
                PairSource(reranker, some, _outside_inference_mode(pool), cache)
                for some, pool in zip(inputs, pools[direction], strict=True)
            )
            for direction, reranker in self.rerankers.items()
        }

    @property
    def best_epoch(self) -> int:
        """The last epoch in which a direction got better."""
        return max(best.epoch for best in self.best.values())

    def __len__(self) -> int:
        """Steps of an epoch."""
        return math.ceil(len(self.query_ids) / self.config.train.batch_size)

    def optimizer(self, total_steps: int) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
        """The configured optimiser."""
        return build_optimizer(self.config.optim, self.networks[0], nn.Module(), total_steps)

    def clip_groups(self, optimizer: torch.optim.Optimizer) -> list[list[nn.Parameter]]:
        """One group for each direction: they share nothing but the queries."""
        return [list(reranker.parameters()) for reranker in self.rerankers.values()]

    def batches(self, epoch: int, first_step: int) -> Iterator[Tensor]:
        """Numbers of the training queries of each step, of all processes together."""
        self.draws.manual_seed(derived_seed(self.config.train.seed, epoch, "order"))
        order = torch.randperm(len(self.query_ids), generator=self.draws)
        return iter(order.split(self.config.train.batch_size)[first_step:])

    def describe(self, batch: Tensor) -> str:
        """The queries of a batch, for messages."""
        return f"Queries of this batch: {', '.join(self.query_ids[row] for row in batch.tolist())}"

    def backward(self, batch: Tensor, epoch: int, step: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Adds the gradients of the networks of all directions, and returns the loss of each."""
        seed, size = self.config.train.seed, len(batch)
        self.draws.manual_seed(derived_seed(seed, epoch, step, "candidates"))
        self.noise.manual_seed(derived_seed(seed, epoch, step, "noise"))
        own = self.shard.of(size)
        rows, losses = batch[own].to(self.device), dict[str, Tensor]()
        for direction, reranker in self.rerankers.items():
            sources = self.sources[direction]
            source = sources[int(torch.randint(len(sources), (), generator=self.draws))]
            picked = source.draw(batch, self.config.candidates.num, self.draws)
            noise, timesteps = self._draw_noise(picked.shape, own)
            if not len(rows):  # a last batch with fewer rows than processes
                losses[direction] = torch.stack([p.sum() for p in reranker.parameters()]).sum() * 0.0
                continue
            picked = picked[own]
            with self.accelerator.autocast():
                pairs = source.pairs(rows, picked)
                loss = reranker.loss_of_pairs(source.target(picked), pairs, noise, timesteps)
            losses[direction] = loss * (len(rows) / size)
        losses["total"] = torch.stack(list(losses.values())).sum()
        self.accelerator.backward(losses["total"])
        terms = {name: loss.detach() for name, loss in losses.items()}
        sum_over_processes([*terms.values(), *(p.grad for p in self.networks[0].parameters() if p.grad is not None)])
        return terms

    def _draw_noise(self, shape: torch.Size, own: slice) -> tuple[Tensor | None, Tensor | None]:
        """Noise and timesteps of the own rows of a batch; the control process without diffusion has none."""
        network = self.config.network
        if network.process != "diffusion":
            return None, None
        timesteps = torch.randint(network.steps, shape[:1], generator=self.noise, device=self.device)
        return torch.randn(shape, generator=self.noise, device=self.device)[own], timesteps[own]

    def select(self, epoch: int) -> Selection:
        """Rsum of each direction with the best of the weights, on the split that selects."""
        chosen = {direction: asdict(self._select(epoch, direction)) for direction in self.rerankers}
        return Selection("Rsum", sum(best["rsum"] for best in chosen.values()), chosen)

    def _select(self, epoch: int, direction: Direction) -> BestEpoch:
        reranker, train = self.rerankers[direction].eval(), self.config.train
        weights = train.weights or (reranker.config.weight,)
        if reranker.config.combine == "alone":
            weights = (1.0,)  # no other weight gives another order
        counts = counts_by_weight(
            self.selection,
            direction,
            reranker,
            self.selection_inputs,
            weights,
            seed=train.seed,
            block=train.eval_queries,
        )
        found = [rsum(RetrievalMetrics.from_ranks(count.cpu().ranks("worst"))) for count in counts]
        best = max(range(len(weights)), key=found.__getitem__)
        return BestEpoch(epoch, found[best], weights[best])

    def keep(self, epoch: int, selection: Selection, folder: Path | None) -> None:
        """Keeps the weights of each direction that got better, or the mean of epochs, and saves those of all."""
        better = False
        for direction in self.rerankers:
            found = BestEpoch(**selection.metrics[direction])
            if found.rsum <= self.best[direction].rsum and not self.config.train.average:
                continue
            better, self.best[direction] = True, found
            state = self.rerankers[direction].state_dict()
            self.best_weights[direction] = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
        if better and folder is not None:
            scores = {direction: asdict(best) for direction, best in self.best.items()}
            save_rerankers(folder, self.selected(), reranker_card(self.config, scores, self.selection_split.name))

    def selected(self) -> dict[Direction, CandidateReranker]:
        """The best re-ranker of each direction, with the weight that was chosen for it."""
        found: dict[Direction, CandidateReranker] = {}
        for direction, reranker in self.rerankers.items():
            config = replace(reranker.config, weight=self.best[direction].weight)
            found[direction] = CandidateReranker(config, direction).to(self.device).eval()
            found[direction].load_state_dict(self.best_weights[direction])
        return found

    def state_dict(self) -> dict[str, Any]:
        """Weights of the networks, and the best weights of each direction."""
        return {
            "networks": self.networks[0].state_dict(),
            "best": {direction: asdict(best) for direction, best in self.best.items()},
            "best_weights": self.best_weights,
        }

    def load_state_dict(self, state: Mapping[str, Any], source: Path) -> None:
        """Restores what `state_dict` returned."""
        check_state(state, {"networks": dict, "best": dict, "best_weights": dict}, source)
        check_state(state["best"], dict.fromkeys(self.rerankers, dict), source)
        load_weights(self.networks[0], state["networks"], source)
        best = state["best"]
        self.best = {direction: parse_record(BestEpoch, best[direction], f"{source}: best") for direction in self.best}
        self.best_weights = state["best_weights"]

    def evaluate(self, run: RunFolder, stop: StopRequest) -> tuple[EvaluationReport, EvaluationReport]:
        """The reported split without and with the selected re-rankers; what a finished run has written is read."""
        alone, seed = run.path / "evaluation_retriever.json", self.config.train.seed
        if alone.exists() and run.evaluation.exists():
            return EvaluationReport.from_json(alone), EvaluationReport.from_json(run.evaluation)
        report, device = self.splits.report, self.device
        config = EvaluationConfig(seed=seed, query_batch=self.config.train.eval_queries)
        pipeline = Pipeline(self.retriever, [DiffusionStage(self.selected(), DiffusionSettings(seed=seed))])
        with stop.at_once():
            encoded = self.encode(self.retriever, report, device=device, seed=seed)
            plain = evaluate(self.retriever, report, config, encoded=encoded, device=device)
            reranked = evaluate(pipeline, report, config, encoded=encoded, device=device)
        plain.to_json(alone)
        run.save_report(reranked)
        return plain, reranked


def rsum(metrics: RetrievalMetrics) -> float:
    """R@1 + R@5 + R@10, the sum that DiffusionRet reports."""
    return metrics.r1 + metrics.r5 + metrics.r10


def learning_splits(config: RerankerRunConfig, splits: Splits) -> tuple[PackedSplit, PackedSplit]:
    """The split that re-rankers are trained on and the one that selects; the reported split is neither.

    Where the retriever was selected on the reported split (protocol "paper"), a tenth of the training videos selects.

    Args:
        config: the configuration of the run.
        splits: the splits of the retriever.
    """
    train, selection = splits.train, splits.selection
    if selection is splits.report:
        train, selection = holdout(train, 0.1)
    return (train, selection) if config.candidates.learn_from == "train" else holdout(selection, 0.5)


@torch.no_grad()
def _start_from_identity(reranker: CandidateReranker) -> None:
    """Makes the attention start as the product of query and candidate as the retriever gives them."""
    for linear in (reranker.denoiser.query, reranker.denoiser.key, reranker.denoiser.value):
        linear.weight.copy_(torch.eye(linear.weight.shape[0]))


def _outside_inference_mode(pool: CandidatePool) -> CandidatePool:
    """A copy whose tensors can take part in training."""
    return replace(pool, asking=pool.asking.clone(), columns=pool.columns.clone())
