"""The family of retrievers, composed of blocks, a fusion and optional registers."""

from prvr.models.retriever import Retriever

__all__ = ["Retriever"]
