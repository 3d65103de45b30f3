"""The model card of a trained retriever."""

from prvr.config import Config, TokenModelConfig
from prvr.evaluation.metrics import RetrievalMetrics

__all__ = ["model_card"]


def model_card(config: Config, scores: RetrievalMetrics, split: str, epoch: int) -> str:
    """README.md of a checkpoint folder: what the model is, how it was selected, what it scored, how to load it.

    Args:
        config: of the run.
        scores: of the split that selects, text to video.
        split: name of that split.
        epoch: of the checkpoint, from 0.
    """
    values = {"R@1": scores.r1, "R@5": scores.r5, "R@10": scores.r10, "R@100": scores.r100, "SumR": scores.sumr}
    rows = "\n".join(f"| {name} | {value:.1f} |" for name, value in values.items())
    if config.train.protocol == "paper":
        selected = (
            "Protocol `paper`: this epoch is the best one on the split it is reported on, as the published numbers of "
            "this field are; expect less on new videos."
        )
    else:
        where = {"holdout": "training videos set aside", "val": "the corpus's own split `val`"}[config.train.protocol]
        selected = (
            f"Protocol `{config.train.protocol}`: this epoch was chosen on {where}; the reported split was not seen."
        )
    kind = "TokenRetriever" if isinstance(config.model, TokenModelConfig) else "Retriever"
    return f"""---
library_name: prvr
tags:
- partially-relevant-video-retrieval
- text-to-video-retrieval
---

# {config.name}

A retriever of untrimmed videos by sentences that describe a part of them. Trained on `{config.data.collection}`,
{config.model.video_dim}-wide frame features, {config.model.query_dim}-wide word features, seed {config.train.seed}.

{selected}

Epoch {epoch} (from 0) on `{split}`, {scores.queries} queries, text to video, in percent:

| metric | value |
|---|---|
{rows}

```python
from prvr.models import {kind}

retriever = {kind}.from_pretrained("path/to/this/folder")
```

`objective.safetensors` holds the parameters of the losses, which retrieval does not need.
"""
