"""A checkpoint of the authors' code, loaded and converted. A small random one stands in for a published `best.ckpt`.

With a real one: prvr convert checkpoint best.ckpt --dataset tvr --output hlformer-tvr
"""

import tempfile
from pathlib import Path

import torch

import prvr
from prvr.cli import main
from prvr.models import project_bounds
from prvr.published import released_config, tensors

# The authors' configuration, by their names.
config = {
    "model_name": "HLFormer",
    "visual_feat_dim": 48,
    "q_feat_size": 40,
    "hidden_size": 32,
    "n_heads": 2,
    "lorentz_dim": 31,
    "attention_num": 8,
    "sft_factor": 0.09,
    "clip_scale_w": 0.7,
    "frame_scale_w": 0.3,
    "margin": 0.1,
    "loss_factor": [0.05, 0.04, 8e-5, 1e-3],
    "neg_factor": [0.15, 32, 1],
}
model, loss = released_config("HLFormer_Net", config)
retriever = prvr.Retriever(model).eval()
objective = prvr.Objective(loss, model, retriever.registers)
project_bounds(retriever, objective)
state = tensors(retriever) | tensors(objective)  # every tensor under the authors' name
print(f"{len(state)} tensors, for example {next(iter(state))}")

# In memory: their tensors and configuration to a retriever and its objective.
loaded, _ = prvr.load_released(state, config)

# On disk: their file to a folder for from_pretrained.
with tempfile.TemporaryDirectory() as folder:
    checkpoint, out = Path(folder) / "best.ckpt", Path(folder) / "hlformer-tvr"
    torch.save({"config": config, "state_dict": state, "epoch": 0}, checkpoint)
    assert main(["convert", "checkpoint", str(checkpoint), "--dataset", "tvr", "--output", str(out)]) == 0
    converted = prvr.Retriever.from_pretrained(out).eval()

words, word_mask = torch.randn(5, 7, 40), torch.ones(5, 7, dtype=torch.bool)
clips, frames, frame_mask = torch.randn(3, 32, 48), torch.randn(3, 20, 48), torch.ones(3, 20, dtype=torch.bool)
scores = [
    model.score(model.encode_text(words, word_mask), model.encode_video(clips, frames, frame_mask)).total
    for model in (retriever, loaded, converted)
]
print("the same scores:", [f"{s[0, 0].item():.6f}" for s in scores])
assert torch.equal(scores[0], scores[1])
assert torch.equal(scores[0], scores[2])
