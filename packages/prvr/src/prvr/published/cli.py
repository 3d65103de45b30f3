"""`prvr convert checkpoint`: checkpoints of the authors' code as model folders."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from prvr.cli.console import show_next
from prvr.cli.convert import group


@group.command
def checkpoint(
    file: Path,
    /,
    *,
    dataset: Literal["tvr", "activitynet", "charades", "msrvtt", "lsmdc", "msvd", "didemo"],
    output: Annotated[Path, Parameter(metavar="DIR")],
) -> None:
    """Convert a checkpoint of the authors' code.

    Convert a checkpoint of MS-SL, DL-DKD, GMMFormer, GMMFormer v2, RAL, MSC-PRVR, HLFormer, DreamPRVR or Holmes, as the
    authors' code saves it, into a folder that `Retriever.from_pretrained` and `prvr evaluate` read; a checkpoint of
    DiffusionRet into a pipeline of its two stages.

    Args:
        file: the checkpoint, for example best.ckpt
        dataset: the data set that it was trained on
        output: the folder to write, new or empty
    """
    from prvr.published.checkpoint_files import convert_checkpoint

    converted = convert_checkpoint(file, dataset, output)
    parts = {"": converted.retriever}
    parts |= {f" of the {direction} re-ranker": reranker for direction, reranker in converted.rerankers.items()}
    counts = ", ".join(f"{sum(p.numel() for p in part.parameters()):,} parameters{of}" for of, part in parts.items())
    data = "the public features of that data set"
    if converted.system == "DiffusionRet":
        data = f"{converted.config.data.collection}, the pictures of its videos (`prvr export --encoder pixels:CLIP`)"
    print(f"{output}: {converted.system}, {counts}, configuration {converted.source}.\nROOT holds {data}.")
    show_next("prvr", "evaluate", output, "--data-root", "ROOT")
