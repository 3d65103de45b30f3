"""Registers alone (regdiff): a few tokens, sampled by a short diffusion from a sequence, that describe its topic.

Each sequence has one of six topics in some of its positions; a text names the topic. The generator learns to turn the
sequence into tokens near the text, in ten steps. Then those are distilled into one (Luhman and Luhman 2021): a copy
that predicts the clean sample learns, from sequences alone, what the chain of ten makes of the same start.
"""

import time

import torch
import torch.nn.functional as F

from regdiff.registers import RegisterGenerator, TextualPerturbation, make_register_generator

DIM, LENGTH, NUM = 16, 12, 4

torch.manual_seed(0)
topics = F.normalize(torch.randn(6, DIM), dim=-1) * DIM**0.5
options = {"dim": DIM, "num_registers": NUM, "num_heads": 2, "steps": 10, "layers": 1, "length": LENGTH}
generator = make_register_generator(**options)
perturb = TextualPerturbation(gamma=0.1)


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = topics[torch.randint(len(topics), (count,))]
    spoken = torch.rand(count, LENGTH, 1) < 0.4
    return torch.where(spoken, text[:, None], 0.0) + 0.5 * torch.randn(count, LENGTH, DIM), text


@torch.no_grad()
def agreement(model: RegisterGenerator) -> float:
    """Mean cosine of the tokens with the text of their sequence."""
    sequence, text = draw(200)
    tokens = model.eval()(sequence).tokens
    model.train()
    return F.cosine_similarity(tokens, text[:, None], dim=-1).mean().item()


def train(model: RegisterGenerator, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps + 1):
        sequence, text = draw(32)
        registers = model(sequence)
        terms = model.loss(perturb(text, NUM), registers)
        loss = terms["diffusion"] + 1e-3 * terms["prior_kl"] + F.mse_loss(registers.tokens.mean(1), text)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:3}: " + ", ".join(f"{name} {value.item():.3f}" for name, value in terms.items()))


def distil(student: RegisterGenerator, teacher: RegisterGenerator, steps: int) -> None:
    """Both in eval mode, in which a start has one chain: a teacher that draws would teach the mean of its chains."""
    optimizer = torch.optim.AdamW(student.diffusion.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    for _ in range(steps):
        sequence, _ = draw(64)
        with torch.no_grad():
            tokens = teacher(sequence).tokens
        loss = F.mse_loss(student(sequence).tokens, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def error(model: RegisterGenerator, teacher: RegisterGenerator, **options: int) -> float:
    """Mean squared distance to the teacher's registers, as a share of their variance."""
    sequence, _ = draw(500)
    tokens = teacher(sequence).tokens
    return (F.mse_loss(model(sequence, **options).tokens, tokens) / tokens.var(0).mean()).item()


@torch.no_grad()
def seconds(model: RegisterGenerator, calls: int = 20) -> float:
    sequence, _ = draw(64)
    start = time.perf_counter()
    for _ in range(calls):
        model(sequence)
    return time.perf_counter() - start


before = agreement(generator)
train(generator, 300)
after = agreement(generator)
print(f"cosine of registers and text: {before:.2f} before, {after:.2f} after")
assert after > before + 0.2

# The student is not clipped: no gradient reaches an estimate beyond the range.
unclipped = {"prediction_type": "sample", "scheduler_options": {"clip_sample": False}}
student = make_register_generator(**options, **unclipped, num_sampling_steps=1)
student.load_state_dict(generator.state_dict())
generator.eval()
student.eval()
undistilled = error(generator, generator, num_steps=1)
distil(student, generator, 300)
distilled = error(student, generator)
print(f"error of one step against ten: {undistilled:.2f} undistilled, {distilled:.2f} distilled")
print(f"cosine of its registers and text: {agreement(student):.2f}")
student.eval()
print(f"time of ten steps over that of one: {seconds(generator) / seconds(student):.1f}")
assert distilled < 0.5 * undistilled
