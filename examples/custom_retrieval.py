"""Your own tensors, your own loop: a retriever and an objective are plain modules of PyTorch.

Here 12 videos of random features, each with two sentences about a stretch of its frames.
"""

import torch
from torch.nn.functional import normalize

import prvr
from prvr.models import project_bounds

torch.manual_seed(0)
frames = normalize(torch.randn(12, 64, 24), dim=-1)
starts = torch.randint(0, 56, (24,))
owner = torch.arange(12).repeat_interleave(2)
words = torch.stack([frames[video, start : start + 8, :20] for video, start in zip(owner, starts, strict=True)])
batch = prvr.Batch(
    clips=normalize(frames.unflatten(1, (32, 2)).mean(2), dim=-1),  # 32 coarse segments beside the frames
    frames=frames,
    frame_mask=torch.ones(12, 64, dtype=torch.bool),  # True = valid
    words=words,
    word_mask=torch.ones(24, 8, dtype=torch.bool),
    query_to_video=owner,
)

changes = {"model.video_dim": 24, "model.query_dim": 20, "model.hidden": 32, "model.lorentz_dim": 31}
config = prvr.load_config("hlformer-toy", changes)
retriever = prvr.Retriever(config.model)
objective = prvr.Objective(config.loss, config.model, retriever.registers)
optimizer = torch.optim.AdamW([*retriever.parameters(), *objective.parameters()], lr=5e-3)
for step in range(21):
    terms = objective(retriever(batch), batch, negatives="hard")
    optimizer.zero_grad()
    terms["total"].backward()
    optimizer.step()
    project_bounds(retriever, objective)  # only presets of released code have bounds; elsewhere it does nothing
    if step % 10 == 0:
        print(f"step {step:2}: " + ", ".join(f"{name} {value.item():.3f}" for name, value in terms.items()))

retriever.eval()
with torch.inference_mode():
    text = retriever.encode_text(batch.words, batch.word_mask)
    videos = retriever.encode_video(batch.clips, batch.frames, batch.frame_mask)
    found = retriever.score(text, videos).total.argmax(-1)
right = (found == owner).float().mean().item()
print(f"its video first for {right:.0%} of these sentences, chance {1 / 12:.0%}")
assert right > 0.5
