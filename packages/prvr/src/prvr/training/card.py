"""The model card of a trained retriever: README.md of a checkpoint folder."""

from prvr.config import Config, ModelConfig
from prvr.evaluation.metrics import RetrievalMetrics
from prvr.models.pretrained import CARD_HEAD


def retriever_card(config: Config, scores: RetrievalMetrics, split: str, epoch: int) -> str:
    """The card of a retriever: what the model is, how it was selected, what it scored, how to load it.

    Args:
        config: the configuration of the run, with that of the retriever.
        scores: the scores of the split that selects, text to video.
        split: name of that split.
        epoch: the epoch of the checkpoint, from 0; -1 = before the first.
    """
    train, values = config.train, [scores.r1, scores.r5, scores.r10, scores.r100, scores.sumr]
    where = {
        "paper": "the reported split, as the published numbers of this field are; expect less on new videos",
        "holdout": "training videos set aside; the reported split was not seen",
        "val": "the corpus's own split `val`; the reported split was not seen",
    }[train.protocol]
    path = config.model.path if isinstance(config.model, ModelConfig) and config.model.start == "kernel" else None
    chosen = f"Epoch {epoch} (from 0) was chosen on {where} (protocol `{train.protocol}`)."
    if epoch < 0:
        chosen = f"{'Without any training' if path is None else 'Fitted in closed form'}: the initial model."
    elif train.average:
        chosen = f"No epoch was chosen: this is {train.kept_text(epoch)} (from 0), `train.average`."
    if path is not None:
        chosen += f"\n\nKernel path: {path.text}."
    return f"""{CARD_HEAD}# {config.name}

A retriever of untrimmed videos by sentences that describe a part of them. Trained on `{config.data.collection}`,
{config.model.video_dim}-wide frame features, {config.model.query_dim}-wide word features, seed {config.train.seed}.

{chosen}

Scores on `{split}`, {scores.queries} queries, text to video, in percent:

| R@1 | R@5 | R@10 | R@100 | SumR |
| --- | --- | --- | --- | --- |
| {" | ".join(f"{value:.1f}" for value in values)} |

```python
from prvr.models import load_pretrained

retriever = load_pretrained("path/to/this/folder")
```

`objective.safetensors` holds the parameters of the losses, which retrieval does not need.
"""
