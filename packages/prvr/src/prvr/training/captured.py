"""Training steps as CUDA graphs: the host starts a graph where it would start thousands of kernels.

A graph repeats, on the same memory, what was started while it was captured. So whatever differs between steps is a
tensor that the host fills before: the batch, of a bucket of shapes; learning rates; and the seeds of generators, which
torch reads anew in every replay.
"""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from prvr.training.optimizer import BertAdam
from prvr.types import tensors_of, with_tensors

logger = logging.getLogger(__name__)

MOST = 8
"""Buckets of shapes that have graphs; batches of further shapes are computed eagerly."""
T = TypeVar("T")
Halves = tuple[Callable[[], Any], Callable[[Any], None]]
"""What computes the gradients of a step and returns its `StepMetrics`, and what takes these and updates."""


class Recorder:
    """Captures what functions start on the current GPU; graphs share their memory, since they run one after another."""

    def __init__(self) -> None:
        self.stream, self.graphs = torch.cuda.Stream(), list[torch.cuda.CUDAGraph]()

    def eager(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function where it may be captured later: not on the default stream."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = function(*arguments)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def capture(self, function: Callable[[], None], generator: torch.Generator | None) -> Callable[[], None]:
        """Captures a function, without running it; returns what replays it."""
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        gc.collect()  # a graph of autograd in a cycle would be freed during the capture
        pool = self.graphs[0].pool() if self.graphs else None
        # Of this thread alone: another one may read batches ahead into page-locked memory.
        with torch.cuda.graph(graph, pool, self.stream, capture_error_mode="thread_local"):
            function()
        self.graphs.append(graph)
        return graph.replay

    def forget(self) -> None:
        """Frees all graphs."""
        torch.cuda.synchronize()
        self.graphs.clear()


class Graphs:
    """The graphs of a run, two for each bucket of shapes: of the gradients, and of the update, which may be left out.

    The first step of a bucket is computed eagerly, which makes what is made once, such as the moments of the optimiser.
    The second is captured; it and those that follow are replayed, with the numbers that they have eagerly.

    Args:
        step: the `TrainingStep` whose two halves are captured.
        recorder: captures them.
    """

    def __init__(self, step: Any, recorder: Recorder) -> None:
        self.step, self.recorder, self.most = step, recorder, MOST
        self.options, self.buckets = None, dict[Any, Bucket]()

    def __call__(self, batch: Any, *place: Any) -> Halves:
        """The two halves of a step, as `TrainingStep` has them; `place` is epoch, step and generator."""
        task: Any = self.step.task
        options, fixed = task.fixed(batch, place[0])
        if options != self.options:
            self._forget()
            self.options = options
        key = (fixed.counts, *((name, tensor.shape, tensor.dtype) for name, tensor in tensors_of(fixed).items()))
        bucket = self.buckets.setdefault(key, Bucket(self.step, self.recorder))
        if len(self.buckets) > self.most:
            self.buckets.popitem()
        if bucket.fits():
            try:
                return bucket.replayed(fixed, *place)
            except RuntimeError as error:
                logger.warning("train.cuda_graph: steps are not captured, since one could not be: %s", error)
                self.most = 0
                self._forget()
        return bucket.eager(fixed, *place)

    def _forget(self) -> None:
        self.buckets.clear()
        self.recorder.forget()


class Bucket:
    """The graphs of a bucket of shapes."""

    rules: Mapping[Any, Sequence[Any]]
    rates: Sequence[Tensor] = ()
    replays: Sequence[Callable[[], None]] = ()
    metrics: Any

    def __init__(self, step: Any, recorder: Recorder) -> None:
        self.step, self.recorder, self.optimizer = step, recorder, step.optimizer

    def fits(self) -> bool:
        """Whether a step was taken, and tensors that it updated alike have taken equally many since."""
        states = self.optimizer.state
        return bool(self.rates) and all(len({states[p]["step"] for p in own}) == 1 for own in self.rules.values())

    def eager(self, batch: Any, *place: Any) -> Halves:
        """The halves of a step that is computed at once, as it would be replayed."""

        def update(metrics: Any) -> None:
            self.replays = ()
            self.rules = self.optimizer.rules() if isinstance(self.optimizer, BertAdam) else {}
            self.rates = [torch.full((), rate, device=metrics.norms.device) for rate in self._count()]
            self.recorder.eager(self._update, metrics)

        return partial(self.recorder.eager, self.step.compute, (batch, None), *place), update

    def replayed(self, batch: Any, *place: Any) -> Halves:
        """The halves of a step that is captured at first."""
        tensors = tensors_of(batch)
        if not self.replays:
            self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
            fixed = (with_tensors(batch, self.tensors), None)

            def compute() -> None:
                self.metrics = self.step.compute(fixed, *place)

            halves = (compute, lambda: self._update(self.metrics))
            self.replays = [self.recorder.capture(half, place[-1]) for half in halves]
        for name, tensor in tensors.items():
            self.tensors[name].copy_(tensor)

        def gradients() -> Any:
            self.replays[0]()
            return replace(self.metrics, norms=self.metrics.norms.clone())  # read after the next step is queued

        def update(metrics: Any) -> None:
            for rate, number in zip(self.rates, self._count(), strict=True):
                rate.fill_(number)
            self.replays[1]()

        return gradients, update

    def _count(self) -> list[float]:
        """Counts the next step on the host; returns its learning rates."""
        counted = [self.optimizer.count(number, params) for (number, _), params in self.rules.items()]
        return counted or [group["lr"] for group in self.optimizer.param_groups]

    def _update(self, metrics: Any) -> None:
        """The second half of a step, by the rates as they stand."""
        groups = self.optimizer.param_groups
        numbers, self.optimizer.rates = [group["lr"] for group in groups], self.rates
        for group, rate in zip(groups, self.rates, strict=False):
            group["lr"] = rate
        try:
            self.step.update(metrics)
        finally:
            self.optimizer.rates = None
            for group, number in zip(groups, numbers, strict=True):
                group["lr"] = number
