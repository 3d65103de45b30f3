"""Ablations are configurations: other blocks, fusion, registers or losses, without a line of model code.

Each variant is one preset with a few keys changed, built and trained for one step. The same keys are options of
`prvr train --preset NAME --KEY VALUE`.
"""

import torch

import prvr

VARIANTS = {
    "hybrid": {},
    "Euclidean blocks only": {"model.blocks": [{"width": None}, {"width": 2.0}, {"width": 4.0}, {"width": 8.0}]},
    "three Lorentz to one": {"model.blocks": [{"space": "lorentz", "width": w} for w in (2.0, 4.0, 8.0)] + [{}]},
    "mean fusion": {"model.fusion": "mean"},
    "the condition as registers": {"model.registers.kind": "condition", "loss.diffusion": 0, "loss.prior_kl": 0},
    "registers without denoising": {"model.registers.kind": "prior", "loss.diffusion": 0},
    "16 registers in 2 steps": {"model.registers.num": 16, "model.registers.sampling_steps": 2},
    "no registers": {"model.registers.kind": "none", "loss.diffusion": 0, "loss.prior_kl": 0},
    "clips only": {"model.branches": "clips"},
    "triplet loss only": dict.fromkeys(
        (
            "loss.info_nce_clips",
            "loss.info_nce_frames",
            "loss.diversity",
            "loss.query_structure",
            "loss.entailment",
            "loss.diffusion",
            "loss.prior_kl",
        ),
        0,
    ),
}

torch.manual_seed(0)
batch = prvr.Batch(
    clips=torch.randn(4, 32, 512),
    frames=torch.randn(4, 40, 512),
    frame_mask=torch.ones(4, 40, dtype=torch.bool),
    words=torch.randn(8, 6, 48),
    word_mask=torch.ones(8, 6, dtype=torch.bool),
    query_to_video=torch.arange(4).repeat_interleave(2),
)
for name, changes in VARIANTS.items():
    config = prvr.load_config("hybrid-toy", changes)
    retriever = prvr.Retriever(config.model)
    objective = prvr.Objective(config.loss, config.model, retriever.registers)
    parameters = [*retriever.parameters(), *objective.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=config.optim.lr)
    terms = objective(retriever(batch), batch)
    terms["total"].backward()
    optimizer.step()
    size = sum(p.numel() for p in parameters)
    print(f"{name:28} {size:9,} parameters  loss {terms['total'].item():.3f}  terms: {', '.join(objective.active)}")
