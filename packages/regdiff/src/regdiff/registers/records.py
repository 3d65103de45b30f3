"""Dataclasses of tensors as pytrees, so that torch.export knows what a module returns."""

from dataclasses import fields
from typing import Any

from torch.utils._pytree import register_pytree_node


def register_record(kind: type) -> None:
    """Makes the fields of a dataclass the leaves of a pytree.

    Args:
        kind: A dataclass whose constructor takes its fields in their order.
    """
    names = [field.name for field in fields(kind)]

    def unflatten(values: Any, context: None) -> Any:
        record = object.__new__(kind)  # leaves may be anything, which the annotations of a constructor would refuse
        vars(record).update(zip(names, values, strict=True))
        return record

    register_pytree_node(
        kind,
        lambda record: ([getattr(record, name) for name in names], None),
        unflatten,
        serialized_type_name=f"{kind.__module__}.{kind.__name__}",
    )
