"""Random weights for small modules, and a place where they are found as if downloaded."""

import torch
from torch import nn


def spread_weights(module: nn.Module, std: float = 0.4) -> nn.Module:
    """Random weights and biases everywhere, so that no term is hidden by a zero; in eval mode."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=std)
    return module.eval()


def in_hub_cache(module, cache):
    """Saves a module as huggingface_hub keeps a download; the arguments of `from_pretrained` that find it there."""
    repository, commit = cache / "models--someone--registers", "0" * 40
    module.save_pretrained(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return {"pretrained_model_name_or_path": "someone/registers", "cache_dir": cache, "local_files_only": True}
