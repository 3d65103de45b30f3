"""Registers alone (regdiff): a few tokens, sampled by a short diffusion from a sequence, that describe its topic.

Each sequence has one of six topics in some of its positions; a text names the topic. The generator learns to
turn the sequence into tokens near the text.
"""

import torch
import torch.nn.functional as F

from regdiff import TextualPerturbation, make_register_generator

DIM, LENGTH, NUM = 16, 12, 4

torch.manual_seed(0)
topics = F.normalize(torch.randn(6, DIM), dim=-1) * DIM**0.5
generator = make_register_generator(DIM, num_registers=NUM, num_heads=2, steps=5, layers=1, length=LENGTH)
perturb = TextualPerturbation(gamma=0.1)
optimizer = torch.optim.AdamW(generator.parameters(), lr=3e-3)


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = topics[torch.randint(len(topics), (count,))]
    spoken = torch.rand(count, LENGTH, 1) < 0.4
    return torch.where(spoken, text[:, None], 0.0) + 0.5 * torch.randn(count, LENGTH, DIM), text


@torch.no_grad()
def agreement() -> float:
    """Mean cosine of the tokens with the text of their sequence."""
    sequence, text = draw(200)
    tokens = generator.eval()(sequence).tokens
    generator.train()
    return F.cosine_similarity(tokens, text[:, None], dim=-1).mean().item()


before = agreement()
for step in range(151):
    sequence, text = draw(32)
    registers = generator(sequence)
    terms = generator.loss(perturb(text, NUM), registers)
    loss = terms["diffusion"] + 1e-3 * terms["prior_kl"] + F.mse_loss(registers.tokens.mean(1), text)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:3}: " + ", ".join(f"{name} {value.item():.3f}" for name, value in terms.items()))

after = agreement()
print(f"cosine of registers and text: {before:.2f} before, {after:.2f} after")
assert after > before + 0.2
