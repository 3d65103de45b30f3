"""Conditions as pytrees: their batch, their copies, and the null condition of classifier-free guidance."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten


def check_condition(condition: Any, rows: int) -> None:
    """Refuse a tensor whose first axis is not the batch; scalars and other leaves may be anything.

    Args:
        condition: A pytree.
        rows: Batch size.

    Raises:
        ValueError: A tensor of another batch.
    """
    for leaf in tree_leaves(condition):
        if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] != rows:
            raise ValueError(
                f"condition: got a tensor of shape {tuple(leaf.shape)}, "
                f"expected a first axis of {rows}, the batch of the sample"
            )


def repeated(condition: Any, times: int) -> Any:
    """Stack the batch of every tensor leaf `times` times, time-major.

    Args:
        condition: A pytree.
        times: How many times.
    """
    return tree_map_only(
        Tensor, lambda leaf: leaf.repeat(times, *(1,) * (leaf.ndim - 1)) if leaf.ndim else leaf, condition
    )


def null_of(condition: Any, null: Any = None) -> Any:
    """The condition that says nothing, in the shape of `condition`.

    Args:
        condition: A pytree.
        null: A pytree of the same structure whose tensors broadcast to the condition's, for example a learned
            parameter (1, n, d); a None in it keeps that leaf of the condition. None as a whole stands for zeros in
            place of every floating-point tensor; masks and other leaves are kept.

    Raises:
        ValueError: No tensor to replace, integers without a given null (zero might be a class), another structure, or
            shapes that do not broadcast.

    Examples:
        >>> import torch
        >>> features, mask = torch.ones(2, 1, 3), torch.ones(2, 1, dtype=torch.bool)
        >>> nothing, kept = null_of((features, mask))
        >>> nothing.sum().item(), kept is mask
        (0.0, True)
    """
    leaves, structure = tree_flatten(condition)
    batched = [isinstance(leaf, Tensor) and leaf.ndim > 0 for leaf in leaves]
    if null is None:
        nulls: list[Any] = [_zeros(leaf) if here else None for leaf, here in zip(leaves, batched, strict=True)]
    else:
        nulls, null_structure = tree_flatten(null)
        if null_structure != structure:
            raise ValueError(
                f"null_condition: got the structure {null_structure}, expected that of the condition, {structure}; "
                "put None in place of what stays as it is"
            )
    if all(value is None for value in nulls):
        raise ValueError(
            "condition: holds no floating-point tensor that could be replaced by a null condition; "
            "without a condition there is nothing to guide or to drop"
        )
    replaced = [leaf if value is None else _broadcast(value, leaf) for value, leaf in zip(nulls, leaves, strict=True)]
    return tree_unflatten(replaced, structure)


def doubled(condition: Any, null: Any) -> Any:
    """The condition above the null condition: 2b rows for one call of the denoiser.

    Args:
        condition: A pytree whose tensors have b rows.
        null: What `null_of` made of it.
    """
    return tree_map(lambda a, b: torch.cat((a, b)) if isinstance(a, Tensor) and a.ndim else a, condition, null)


def dropped(condition: Any, null: Any, rows: Bool[Tensor, "b"]) -> Any:
    """The condition with some rows replaced by the null condition.

    Args:
        condition: A pytree whose tensors have b rows.
        null: What `null_of` made of it.
        rows: True where the condition is dropped.
    """

    def choose(leaf: Any, nothing: Any) -> Any:
        if leaf is nothing or not isinstance(leaf, Tensor) or not leaf.ndim:
            return leaf
        return torch.where(rows.to(leaf.device).view(-1, *(1,) * (leaf.ndim - 1)), nothing, leaf)

    return tree_map(choose, condition, null)


def _zeros(leaf: Tensor) -> Tensor | None:
    if leaf.is_floating_point() or leaf.is_complex():
        return leaf.new_zeros(())
    if leaf.dtype == torch.bool:
        return None
    raise ValueError(
        f"condition: holds a {leaf.dtype} tensor of shape {tuple(leaf.shape)}, for which zero need not mean nothing; "
        "give null_condition"
    )


def _broadcast(value: Any, leaf: Any) -> Tensor:
    if not isinstance(value, Tensor) or not isinstance(leaf, Tensor):
        raise ValueError(f"null_condition: got {value!r} for {type(leaf).__name__}, expected a tensor for a tensor")
    try:
        return value.to(leaf.dtype).expand(leaf.shape)
    except RuntimeError:
        raise ValueError(
            f"null_condition: got a tensor of shape {tuple(value.shape)}, "
            f"expected one that broadcasts to {tuple(leaf.shape)}, the condition's"
        ) from None
