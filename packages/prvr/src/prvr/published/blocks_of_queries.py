"""Queries in blocks by their videos, as the losses of several papers read them."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def queries_of_videos(
    query_to_video: Int[Tensor, " q"], videos: int, most: int | None = None
) -> tuple[Int[Tensor, "v m"], Bool[Tensor, "v m"]]:
    """Indices of the queries of each video, padded, and which of these entries count.

    Args:
        query_to_video: the video of each query, in any order.
        videos: how many there are.
        most: the most queries of any video m; None = it is counted, for which the host waits for a GPU.

    Examples:
        >>> queries, mask = queries_of_videos(torch.tensor([1, 0, 1]), 2)
        >>> queries.masked_fill(~mask, -1).tolist()
        [[1, -1], [0, 2]]
    """
    counts = (query_to_video == torch.arange(videos, device=query_to_video.device)[:, None]).sum(1)
    places = torch.arange(int(counts.max()) if most is None else most, device=counts.device)
    order, mask = query_to_video.argsort(stable=True), places < counts[:, None]
    return order[(counts.cumsum(0) - counts)[:, None].add(places).clamp_max(len(order) - 1)], mask


def block_cosines(text: Float[Tensor, "v m d"], clips: Float[Tensor, "v c d"]) -> Float[Tensor, "v m c"]:
    """Cosines of the queries of each video with its clips."""
    return F.normalize(text, dim=-1) @ F.normalize(clips, dim=-1).mT
