"""The optimal transport of Holmes as its code has it."""

import torch

from prvr.published.holmes.transport import Block, BlockMask, sinkhorn, unit_interval


def released_unit_interval(cosines: Block, mask: BlockMask) -> Block:
    """Cosines scaled into [0, 1] by the lowest and the highest, those of padding included, which are 0."""
    return unit_interval(cosines * mask[..., None], torch.ones_like(mask))


@torch.no_grad()
def released_transport_targets(similarity: Block, mask: BlockMask, epsilon: float) -> Block:
    """As `transport_targets`, but for a guard of 1e-8 where rows of the plan are divided."""
    logits, rows, columns = sinkhorn(similarity, mask, epsilon)
    plan = (logits + rows[..., None] + columns[:, None]).exp()[:, :-1] * similarity.shape[2]
    return plan / (plan.sum(-1, keepdim=True) + 1e-8)


TRANSPORT = (released_unit_interval, released_transport_targets)
"""The cosines of padding take part."""
