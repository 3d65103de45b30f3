"""The share of each loss term in the gradient of a retriever, at the start and after training, and use of registers.

    python benchmarks/gradient_shares.py [--presets hlformer-toy best-toy] [--epochs 5] [--seeds 0 1 2]

The norm of a term's gradient, its weight included, over all parameters of the retriever, on one training batch; as a
share of the sum of these norms. A dead term has a share near 0. With registers also the change of the blocks' output,
relative to its length, with another video's registers and with the mean of a video's registers in the place of each, as
`prvr evaluate` reports it.
"""

import tempfile
from pathlib import Path
from statistics import mean

import torch
from accelerate import Accelerator

import prvr
from _harness import Spread, environment, option, parse_options, show
from prvr.config import Config
from prvr.models import AnyRetriever, build_retriever
from prvr.objective import Objective
from prvr.training import open_splits, train
from prvr.training.splits import training_batches


def shares_of(config: Config, retriever: AnyRetriever, objective: Objective, hard: bool) -> dict[str, float]:
    """By term, on the first batch of the training split."""
    torch.manual_seed(0)
    batch = next(iter(training_batches(config, open_splits(config).train, Accelerator(cpu=True))))
    terms = objective(retriever.train()(batch), batch, negatives="hard" if hard else "random")
    norms = {}
    for name, term in terms.items():
        if name != "total":
            gradients = torch.autograd.grad(term, list(retriever.parameters()), retain_graph=True, allow_unused=True)
            norms[name] = sum(float(g.square().sum()) for g in gradients if g is not None) ** 0.5
    return {name: norm / sum(norms.values()) for name, norm in norms.items()}


def main() -> None:
    options = parse_options(
        __doc__,
        presets=["hlformer-toy", "hybrid-toy", "best-toy"],
        collection=option("toy-demo", "the drawn corpus"),
        epochs=5,
        seeds=[0],
    )
    print(environment())
    for preset in options.presets:
        shares: dict[str, list[float]] = {}
        uses: list[str] = []
        for seed in options.seeds:
            keys = {"data.collection": options.collection, "train.epochs": options.epochs, "train.seed": seed}
            config = prvr.load_config(preset, keys | {"train.hard_negatives_from": 2})
            torch.manual_seed(seed)
            retriever = build_retriever(config.model)
            objective = Objective(config.loss, config.model, retriever.registers)
            before = shares_of(config, retriever, objective, hard=False)
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder, "run")
                result = train(config, output=run, retriever=retriever, objective=objective)
            after = shares_of(config, retriever, objective, hard=True)
            for name in after:
                shares.setdefault(name, []).extend((before.get(name, 0.0), after[name]))
            changes = [(b.other_registers, b.mean_register) for b in result.report.blocks if b.other_registers]
            if changes:
                uses.append(", ".join(f"{mean(column):.4f}" for column in zip(*changes, strict=True)))
        rows = [[name, Spread.of(values[::2]), Spread.of(values[1::2])] for name, values in shares.items()]
        title = f"{preset}: share of the gradient, {options.epochs} epochs, seeds {options.seeds}"
        note = f"another video's registers, the mean register: {'; '.join(uses)}" if uses else None
        show(title, ["term", "at the start", "after training"], rows, note=note)


if __name__ == "__main__":
    main()
