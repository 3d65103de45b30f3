"""The mean of the weights at the ends of the last epochs of a run: what is kept with `train.average`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from prvr.training.checkpoint import check_state, load_weights
from prvr.training.task import RunConfig


class WeightAverage:
    """The running mean of weights over epochs (Izmailov et al., 2018, "Averaging weights leads to wider optima").

    After the n-th of its epochs it is m_n = m_{n-1} + (w_n - m_{n-1}) / n, in the type of the weights, so that a saved
    run holds one copy more, however many epochs are averaged. Buffers of whole numbers are those of the last epoch.
    `torch.optim.swa_utils.AveragedModel` averages these as well, and needs a copy of the networks.

    A mean has a meaning because every parameter of a retriever, a re-ranker or a loss is a free number or one kept in
    an interval: none is a point of hyperbolic space. Curvatures, scales and temperatures are averaged as they are
    trained, by their logarithm or logit, and so stay within their bounds.

    Args:
        config: the configuration of the run, which says which epochs are averaged.
        networks: the modules that are trained.
    """

    def __init__(self, config: RunConfig, networks: Sequence[nn.Module]) -> None:
        self.train, self.networks = config.train, nn.ModuleList(networks)
        self.mean: dict[str, Any] = {}
        """Of the epochs up to now; empty before the first that is averaged."""

    def restore(self, state: Mapping[str, Any], source: Path) -> None:
        """Takes over the mean of a saved state.

        Raises:
            TrainingError: it holds none, but its run averages.
        """
        if self.train.average:
            check_state(state, {"average": dict}, source)
            self.mean = state["average"]

    def of(self, epoch: int) -> dict[str, Any]:
        """The mean over the epochs that are averaged up to the end of `epoch`, whose weights the networks hold.

        Empty where the run averages nothing.
        """
        if not self.train.average:
            return {}
        share = 1 / len(self.train.kept_epochs(epoch))
        return {
            name: self.mean[name].to(now).lerp(now, share)
            if share < 1 and now.is_floating_point()
            else now.detach().clone()
            for name, now in self.networks.state_dict().items()
        }

    @contextmanager
    def applied(self, mean: Mapping[str, Tensor]) -> Iterator[None]:
        """The networks with the mean as their weights, for the length of the `with` statement; as they are if empty."""
        if not mean:
            yield
            return
        trained = {name: tensor.detach().clone() for name, tensor in self.networks.state_dict().items()}
        load_weights(self.networks, mean, "the mean of the weights")
        try:
            yield
        finally:
            self.networks.load_state_dict(trained)
