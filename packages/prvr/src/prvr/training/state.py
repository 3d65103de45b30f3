"""The state of training inside an epoch, and of everything that draws random numbers: what a resumed run needs."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class TrainerState:
    """How far an epoch has come, with the sums of its loss terms.

    Args:
        step: batches of the epoch that are done, skipped ones included.
        skipped: steps that were left out because loss or gradient was not finite.
        rate: learning rate of the last step.
        seconds: spent in the steps so far, also before an interruption.
        processor: seconds of all processor cores in these steps, of this process alone.
        sums: the sums of each loss term over the steps that were not skipped.
    """

    step: int = 0
    skipped: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    processor: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, terms: Mapping[str, float]) -> None:
        """Adds the loss terms of a step to the sums.

        Examples:
            >>> state = TrainerState(step=2)
            >>> state.add({"total": 1.0}); state.add({"total": 2.0})
            >>> state.means()
            {'total': 1.5}
        """
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """The mean of each loss term over the steps that were not skipped; empty if all were."""
        return {name: value / (self.step - self.skipped) for name, value in self.sums.items()}


def random_states(objective: torch.Generator) -> dict[str, Any]:
    """The states of all that draws in a step: torch's global generators (dropout, registers) and the objective's.

    Args:
        objective: the generator of the loss terms; its device is the one trained on.
    """
    device = objective.device
    states: dict[str, Any] = {
        "device": device.type,
        "cpu": torch.get_rng_state(),
        "objective": objective.get_state(),
    }
    if device.type == "cuda":
        states["accelerator"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["accelerator"] = torch.mps.get_rng_state()
    return states


def restore_random_states(states: Mapping[str, Any], objective: torch.Generator) -> bool:
    """Puts back what `random_states` gave, if the run is still on a device of the same kind.

    Returns:
        whether it could be: generators of other devices have other states.
    """
    device = objective.device
    if states["device"] != device.type:
        return False
    torch.set_rng_state(states["cpu"])
    objective.set_state(states["objective"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["accelerator"], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states["accelerator"])
    return True


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) that depends on all parts, for example (run seed, epoch, purpose).

    Examples:
        >>> derived_seed(0, 1, "dropout") == derived_seed(0, 1, "dropout") != derived_seed(0, 2, "dropout")
        True
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
