"""The model card of trained re-rankers: README.md of their folder."""

from collections.abc import Mapping
from typing import Any

from prvr.models.pretrained import CARD_HEAD
from prvr.published.diffusionret.run_config import RerankerRunConfig


def reranker_card(config: RerankerRunConfig, best: Mapping[str, Mapping[str, Any]], split: str) -> str:
    """The card of the re-rankers of a run: what they re-rank, how they were selected, what they scored, how to load.

    Args:
        config: the configuration of the run.
        best: epoch, Rsum and weight of each direction.
        split: name of the split that selects.
    """
    chosen = "The epoch (from 0) and the weight of the probability were"
    if config.train.average:
        last = max(score["epoch"] for score in best.values())
        chosen = f"No epoch was chosen: this is {config.train.kept_text(last)} (from 0). The weight was"
    rows = [
        f"| {name} | {score['epoch']} | {score['weight']:g} | {score['rsum']:.1f} |" for name, score in best.items()
    ]
    return f"""{CARD_HEAD}# {config.name}

Re-rankers of the candidates that the retriever {config.reranker.trained_on or "(unknown)"} finds, trained on the
embeddings of that retriever alone; strategy `{config.strategy}`, {config.network.width} wide, seed {config.train.seed}.

{chosen} chosen on `{split}`. Rsum is R@1 + R@5 + R@10, in percent:

| direction | epoch | weight | Rsum |
| --- | --- | --- | --- |
{chr(10).join(rows)}

```python
from prvr.published.diffusionret import load_rerankers

rerankers = load_rerankers("path/to/this/folder")
```
"""
