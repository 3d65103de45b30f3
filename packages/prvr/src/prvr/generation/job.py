"""One run of stage 2: epochs of steps on frozen embeddings, a selection after each, the best of each direction kept."""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from prvr.config import config_to_dict
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.generation.config import GenerationConfig
from prvr.generation.evaluation import ranked_counts
from prvr.generation.folder import save_rerankers
from prvr.generation.material import Material
from prvr.generation.result import BestEpoch
from prvr.reading import parse_record
from prvr.stages import CandidateReranker, Direction
from prvr.training import EpochProgress, TrainingError, build_optimizer
from prvr.training.checkpoint import check_state, load_weights, restore_optimizer
from prvr.training.optimizer import BertAdam
from prvr.training.run import RunFolder
from prvr.training.signals import StopRequest, Terminated
from prvr.training.state import TrainerState, derived_seed

__all__ = ["GenerationJob", "rsum", "start_from_identity"]

logger = logging.getLogger(__name__)


def rsum(metrics: RetrievalMetrics) -> float:
    """R@1 + R@5 + R@10, the sum that DiffusionRet reports."""
    return metrics.r1 + metrics.r5 + metrics.r10


@torch.no_grad()
def start_from_identity(reranker: CandidateReranker) -> None:
    """Lets the attention start as the product of query and candidate as the retriever gives them."""
    for linear in (reranker.denoiser.query, reranker.denoiser.key, reranker.denoiser.value):
        linear.weight.copy_(torch.eye(linear.weight.shape[0]))


class GenerationJob:
    """The parts of a run and how far it has come.

    All draws of a step follow from the seed, the epoch and the step: a run goes on anywhere as if it had not stopped.
    """

    def __init__(
        self,
        config: GenerationConfig,
        run: RunFolder,
        rerankers: dict[Direction, CandidateReranker],
        material: Material,
        progress: EpochProgress,
        stop: StopRequest,
    ) -> None:
        self.config, self.run, self.rerankers, self.material = config, run, rerankers, material
        self.progress, self.stop = progress, stop
        self.networks = nn.ModuleDict(dict(rerankers.items()))
        self.steps = math.ceil(material.rows / config.course.batch_size)
        self.optimizer, self.scheduler = build_optimizer(
            config.optim, self.networks, nn.Module(), self.steps * config.course.epochs
        )
        self.device = next(self.networks.parameters()).device
        self.draws, self.noise = torch.Generator("cpu"), torch.Generator(self.device)
        self.epoch, self.position = 0, TrainerState()
        self.history: list[dict[str, Any]] = []
        self.best: dict[Direction, BestEpoch] = dict.fromkeys(rerankers, BestEpoch())
        self.best_weights: dict[str, dict[str, Tensor]] = {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what `_save` wrote."""
        kinds = {"networks": dict, "position": dict, "best": dict, "best_weights": dict}
        check_state(state, kinds, self.run.state)
        check_state(state["best"], dict.fromkeys(self.rerankers, dict), self.run.state)
        load_weights(self.networks, state["networks"], self.run.state)
        restore_optimizer(self.optimizer, self.scheduler, state, self.run.state)
        self.epoch, self.history = state["epoch"], state["history"]
        self.position = parse_record(TrainerState, state["position"], f"{self.run.state}: position")
        best = state["best"]
        self.best = {one: parse_record(BestEpoch, best[one], f"{self.run.state}: best") for one in self.rerankers}
        self.best_weights = state["best_weights"]
        logger.info("%s: going on at step %d of epoch %d", self.run.path, self.position.step, self.epoch)

    @property
    def _patience_spent(self) -> bool:
        last = max(best.epoch for best in self.best.values())
        return self.epoch - 1 - last > self.config.course.patience

    def run_epochs(self) -> None:
        """Trains to the end."""
        while self.epoch < self.config.course.epochs and not (self.epoch and self._patience_spent):
            self._train_epoch()
            self._finish_epoch()
            self.stop.raise_if_received()

    def selected(self) -> dict[Direction, CandidateReranker]:
        """The best re-ranker of each direction, with the weight that was chosen for it."""
        found: dict[Direction, CandidateReranker] = {}
        for direction, reranker in self.rerankers.items():
            weight = self.best[direction].weight
            best = CandidateReranker(replace(reranker.config, weight=weight), direction).to(self.device)
            best.load_state_dict(self.best_weights[direction])
            found[direction] = best.eval()
        return found

    def _train_epoch(self) -> None:
        course, position = self.config.course, self.position
        order = torch.randperm(
            self.material.rows, generator=self.draws.manual_seed(derived_seed(course.seed, self.epoch, "order"))
        )
        self.networks.train()
        began = time.perf_counter() - position.seconds
        with self.progress(f"epoch {self.epoch + 1}/{course.epochs}", self.steps - position.step) as report:
            for step in range(position.step, self.steps):
                rows = order[step * course.batch_size : (step + 1) * course.batch_size]
                terms = self._step(step, rows)
                position.add(terms)
                position.step, position.seconds = step + 1, time.perf_counter() - began
                report(terms)
                if self.stop.received is not None:
                    self._save()
                    self.stop.raise_if_received()

    def _step(self, step: int, rows: Tensor) -> dict[str, float]:
        """One update of the networks of all directions, which share nothing but the queries."""
        seed = self.config.course.seed
        self.draws.manual_seed(derived_seed(seed, self.epoch, step, "candidates"))
        self.noise.manual_seed(derived_seed(seed, self.epoch, step, "noise"))
        rows, losses = rows.to(self.device), {}
        for direction, reranker in self.rerankers.items():
            sources = self.material.sources[direction]
            source = sources[int(torch.randint(len(sources), (), generator=self.draws))]
            picked = source.pool.draw(len(rows), self.config.candidates.num, self.draws)
            losses[direction] = reranker.loss_of_pairs(source.target(picked), source.pairs(rows, picked), self.noise)
        total = torch.stack(list(losses.values())).sum()
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        terms = {name: float(loss.detach()) for name, loss in (losses | {"total": total}).items()}
        norms = [self._clipped(reranker) for reranker in self.rerankers.values()]
        if not all(math.isfinite(value) for value in (*terms.values(), *norms)):
            raise TrainingError(
                f"{self.run.path}: epoch {self.epoch}, step {step}: loss or gradient is not finite ({terms}): look for "
                f"NaN in the features, or lower optim.lr={self.config.optim.lr}"
            )
        self.position.rate = self._rate
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return terms

    def _clipped(self, reranker: CandidateReranker) -> float:
        most = math.inf if self.scheduler is None else self.config.optim.max_grad_norm  # BertAdam clips by itself
        return float(nn.utils.clip_grad_norm_(reranker.parameters(), most))

    @property
    def _rate(self) -> float:
        if isinstance(self.optimizer, BertAdam):
            return self.optimizer.scheduled_lr()
        return self.optimizer.param_groups[0]["lr"]

    def _finish_epoch(self) -> None:
        trained = time.perf_counter()
        chosen: dict[Direction, BestEpoch]
        try:
            with self.stop.at_once():
                chosen = {direction: self._select(direction) for direction in self.rerankers}
        except (KeyboardInterrupt, Terminated):
            self._save()  # the epoch's training is not lost
            raise
        better: list[Direction] = [d for d, best in chosen.items() if best.rsum > self.best[d].rsum]
        for direction in better:
            self.best[direction] = chosen[direction]
            state = self.rerankers[direction].state_dict()
            self.best_weights[direction] = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
        losses, total = self.position.means(), sum(best.rsum for best in chosen.values())
        self.history.append(
            {
                "epoch": self.epoch,
                "loss": losses,
                "lr": self.position.rate,
                "rsum": total,
                "selection": {direction: asdict(best) for direction, best in chosen.items()},
                "seconds": {"train": self.position.seconds, "evaluate": time.perf_counter() - trained},
            }
        )
        if better:
            save_rerankers(self.run.best, self.selected())
        logger.info("epoch %d: loss %.4f, Rsum %.1f", self.epoch, losses["total"], total)
        self.epoch, self.position = self.epoch + 1, TrainerState()
        self._save()

    def _select(self, direction: Direction) -> BestEpoch:
        """The best weight of this epoch's network on the split that selects."""
        reranker, course = self.rerankers[direction].eval(), self.config.course
        weights = course.weights or (reranker.config.weight,)
        if reranker.config.combine == "alone":
            weights = (1.0,)  # no other gives another order
        counts = ranked_counts(
            self.material.selection,
            direction,
            reranker,
            self.material.inputs,
            weights,
            seed=course.seed,
            block=course.eval_queries,
        )
        found = [rsum(RetrievalMetrics.from_ranks(count.cpu().ranks("worst"))) for count in counts]
        best = max(range(len(weights)), key=found.__getitem__)
        return BestEpoch(self.epoch, found[best], weights[best])

    def _save(self) -> None:
        state = {
            "config": config_to_dict(self.config),
            "networks": self.networks.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "epoch": self.epoch,
            "position": asdict(self.position),
            "history": self.history,
            "best": {direction: asdict(best) for direction, best in self.best.items()},
            "best_weights": self.best_weights,
        }
        if self.position.step:
            self.run.save_state(state)
        else:
            self.run.save_epoch(state, self.history, self.config.name)
