"""Training steps as CUDA graphs: the host starts one graph where it would start thousands of kernels.

A graph repeats, on the same memory, what was started while it was captured: forward and backward pass, clipping, the
optimiser and bounds. So whatever differs between steps is a tensor that the host fills before: the batch, of a bucket
of shapes; learning rates; and the seeds of generators, which torch reads anew in every replay.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from prvr.errors import TrainingError
from prvr.training.optimizer import DeviceRates, Rule
from prvr.types import tensors_of, with_tensors

if TYPE_CHECKING:
    from prvr.training.task import Gradients, TrainingStep

logger = logging.getLogger(__name__)

MOST = 8
"""Buckets of shapes that have a graph; batches of further shapes are computed eagerly."""
T = TypeVar("T")


class Recorder:
    """Captures what functions start on the current GPU; graphs share their memory, since they run one after another."""

    def __init__(self) -> None:
        self.stream, self.graphs = torch.cuda.Stream(), list[torch.cuda.CUDAGraph]()

    def eager(self, function: Callable[[], T]) -> T:
        """Calls a function where it may be captured later: not on the default stream."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = function()
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
        if self.graphs:
            torch.cuda.synchronize()
        self.graphs.clear()


class Graphs:
    """The graphs of a run, one for each bucket of shapes.

    The first step of a bucket is computed eagerly, which makes what is made once, such as the moments of the optimiser.
    The second is captured, then it and the following ones are replayed, with the same numbers. With
    `train.on_nonfinite: skip` the update has a graph of its own, so that it can be left out.

    Args:
        step: whose two halves are captured.
        recorder: captures them.
    """

    def __init__(self, step: "TrainingStep", recorder: Recorder) -> None:
        self.step, self.recorder, self.rates = step, recorder, DeviceRates(step.optimizer)
        self.most, self.full, self.options, self.buckets = MOST, False, None, dict[Any, Bucket]()

    def __call__(
        self, batch: Any, epoch: int, number: int, generator: torch.Generator | None
    ) -> "tuple[Callable[[], Gradients], Callable[[Gradients], None]]":
        """The two halves of a step, as `TrainingStep` has them."""
        options, fixed = self.step.task.fixed(batch, epoch)
        if options != self.options:
            self._forget()
            self.options = options
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors_of(fixed).items())
        key, arguments = (*shapes, fixed.counts), (epoch, number, generator)
        bucket = self.buckets.get(key)
        if bucket is not None and self.rates.fit(bucket.rules):
            try:
                return bucket.halves(fixed, *arguments)
            except RuntimeError as error:
                if self.step.config.train.cuda_graph == "on":
                    raise TrainingError(f"train.cuda_graph='on': a step could not be captured: {error}") from error
                logger.warning("train.cuda_graph: steps are not captured, since one could not be: %s", error)
                self._forget()
                self.most, self.full = 0, True

        def update(grads: "Gradients") -> None:
            rules = self.rates.rules()
            self.rates.set(rules)
            self.recorder.eager(partial(self.update, grads))
            if key in self.buckets or len(self.buckets) < self.most:
                self.buckets[key] = Bucket(self, rules)
            elif not self.full:
                logger.info("train.cuda_graph: batches have more than %d shapes, further ones are eager", self.most)
                self.full = True

        return partial(self.recorder.eager, partial(self.step.compute, (fixed, None), *arguments)), update

    def update(self, grads: "Gradients") -> None:
        """The second half of a step, by rates that were set before."""
        with self.rates.read():
            self.step.update(grads)

    def _forget(self) -> None:
        self.buckets.clear()
        self.recorder.forget()


class Bucket:
    """The graph of a bucket of shapes, or the two of a step whose update may be left out.

    Args:
        graphs: all of them.
        rules: what a step updates alike.
    """

    def __init__(self, graphs: Graphs, rules: list[Rule]) -> None:
        self.graphs, self.rules = graphs, rules
        self.replays: list[Callable[[], None]] = []

    def halves(
        self, batch: Any, epoch: int, number: int, generator: torch.Generator | None
    ) -> "tuple[Callable[[], Gradients], Callable[[Gradients], None]]":
        """As `Graphs` returns them, for a batch of these shapes."""
        if not self.replays:
            self._capture(batch, epoch, number, generator)
        for name, tensor in tensors_of(batch).items():
            self.tensors[name].copy_(tensor)
        return self._compute, self._update

    def _capture(self, batch: Any, *arguments: Any) -> None:
        graphs = self.graphs
        self.tensors = {name: tensor.clone() for name, tensor in tensors_of(batch).items()}
        fixed = (with_tensors(batch, self.tensors), None)

        def compute() -> None:
            self.grads = graphs.step.compute(fixed, *arguments)

        def update() -> None:
            graphs.update(self.grads)

        def whole() -> None:
            compute()
            update()

        parts = [whole] if graphs.step.lag else [compute, update]
        self.replays = [graphs.recorder.capture(part, arguments[-1]) for part in parts]

    def _compute(self) -> "Gradients":
        if len(self.replays) == 1:
            self.graphs.rates.set(self.rules)
        self.replays[0]()
        return replace(self.grads, norms=self.grads.norms.clone())  # read when the next step has been queued

    def _update(self, grads: "Gradients") -> None:
        if len(self.replays) > 1:
            self.graphs.rates.set(self.rules)
            self.replays[1]()
