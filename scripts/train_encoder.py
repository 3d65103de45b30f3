"""Train the joint encoder of the toy world and write its weights with their hash. At most 30 CPU minutes.

    python scripts/train_encoder.py                     # into packages/prvr/src/prvr/toy
    python scripts/train_encoder.py --steps 20 --frames 2000 --output /tmp/encoder

It sees single frames of videos that are in no corpus, with sentences about how things look and where they are: no
action word, no sequence. Like training videos, they show no held-out colour of a shape. Losses: symmetric InfoNCE in
which other pairs that happen to be true do not count as wrong; each sentence against some with one shape or colour
changed; and a linear read-out of an 8 x 8 thumbnail, which keeps place. Batch normalisation helps it learn and is
folded away at the end.
"""

import argparse
import hashlib
import json
import platform
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from prvr.data.atomic import replace_file
from prvr.toy.encoder import ABOUT, DIM, WEIGHTS, JointEncoder, split_words
from prvr.toy.grammar import WORDS, with_article
from prvr.toy.rendering import render_frames
from prvr.toy.staging import OPACITY, SIZE, draw_stage
from prvr.toy.timelines import draw_videos
from prvr.toy.world import BACKGROUNDS, COLOURS, FPS, SHAPES, SIZES, Video, in_training

FOLDER = Path(__file__).parent.parent / "packages/prvr/src/prvr/toy"
SEED = 2_000_000_011  # no corpus has it: theirs start from [seed, attempt, split], this one from [SEED]
BATCH, FOILS, THINGS, FACTORS = 256, 4, 4, 5  # shape, colour, size, column, row
RATE = 3e-3
PER_VIDEO = 24
COLUMNS, ROWS = ("west", "centre", "east"), ("north", "centre", "south")
TEMPLATES = (
    "{x}",
    "there is {x}",
    "a picture of {x}",
    "a frame with {x}",
    "{x} can be seen",
    "this shows {x}",
    "we see {x}",
)


@dataclass
class Frames:
    """Frames and what can be seen in them: things (n 4 5) as numbers, -1 where nothing is visible."""

    pixels: np.ndarray
    things: np.ndarray
    backgrounds: np.ndarray


def draw_frames(count: int, rng: np.random.Generator) -> Frames:
    videos = draw_videos([f"v{i}" for i in range(-(-count // PER_VIDEO))], rng, in_training)
    drawn = [_draw(video, rng) for video in videos]
    return Frames(*(np.concatenate(part)[:count] for part in zip(*drawn, strict=True)))


def _draw(video: Video, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    numbers = np.sort(rng.choice(video.frame_count, min(PER_VIDEO, video.frame_count), replace=False))
    times = (numbers + 0.5) / FPS
    shots = np.searchsorted([shot.end for shot in video.shots[:-1]], times, side="right")
    things = np.full((len(numbers), THINGS, FACTORS), -1)
    for index in np.unique(shots).tolist():
        rows = np.flatnonzero(shots == index)
        stage = draw_stage(video, index, times[rows])
        for k, part in enumerate((*stage.moving, *stage.still)):
            thing, centre = part.thing, part.centre(stage.moments)
            visible = (part.at(stage.moments)[OPACITY] > 0.35) & (centre > 2).all(1) & (centre < 61).all(1)
            if stage.post is not None:  # what the post may hide is not visible
                visible &= np.abs(centre[:, 0] - stage.post) > 6
            size = SIZES.index(thing.size) if part.ends[0, SIZE] == part.ends[1, SIZE] else -1
            place = np.digitize(centre, (23, 41))
            looks = [SHAPES.index(thing.shape), COLOURS.index(thing.colour), size]
            seen = np.concatenate([np.tile(looks, (len(rows), 1)), place], 1)
            things[rows, k] = np.where(visible[:, None], seen, -1)
    backgrounds = np.full(len(numbers), BACKGROUNDS.index(video.background))
    return render_frames(video, numbers.tolist()), things, backgrounds


def choose(things: np.ndarray, background: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """What a sentence says of a frame: of at most two things (2 5), -1 where nothing, and of the background."""
    claims = np.full((2, FACTORS), -1)
    seen = things[things[:, 0] >= 0]
    seen = seen[rng.permutation(len(seen))[: 2 if rng.random() < 0.3 else 1]]
    for k, thing in enumerate(seen):
        keep = rng.random(3) < (0.85, 0.4 if len(seen) == 1 else 0.15, 0.4)
        claims[k, 0] = thing[0]
        claims[k, 1:3] = np.where(keep[:2], thing[1:3], -1)
        claims[k, 3:] = thing[3:] if keep[2] else -1
    return claims, background if not len(seen) or rng.random() < 0.2 else -1


def foil(claims: np.ndarray, things: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same with one shape or colour changed, so that it is not true any more."""
    false = claims.copy()
    if claims[0, 0] < 0:
        return false
    row = int(rng.integers(1 + (claims[1, 0] >= 0)))
    column = 1 if claims[row, 1] >= 0 and rng.random() < 0.25 else 0
    there = set(things[:, column].tolist())
    others = [value for value in range(len((SHAPES, COLOURS)[column])) if value not in there]
    false[row, column] = others[int(rng.integers(len(others)))]
    return false


def say(claims: np.ndarray, ground: int, rng: np.random.Generator) -> list[str]:
    """The words of a sentence."""
    phrases = []
    for shape, colour, size, column, row in claims[claims[:, 0] >= 0].tolist():
        words = [_pick(WORDS[SIZES[size]], rng)] if size >= 0 else []
        words += [_pick(WORDS[COLOURS[colour]], rng)] if colour >= 0 else []
        phrase = with_article([*words, _pick(WORDS[SHAPES[shape]], rng)])
        phrases.append(phrase + (" " + _where(COLUMNS[column], ROWS[row]) if column >= 0 else ""))
    text = _pick(TEMPLATES, rng).format(x=" and ".join(phrases) or "nothing")
    return split_words(text + (" " + _pick(WORDS[BACKGROUNDS[ground]], rng) if ground >= 0 else ""))


def _where(column: str, row: str) -> str:
    words = [word for word in (row, column) if word != "centre"]
    return f"in the {' '.join(words)}" if words else "in the centre"


def _pick(choices: tuple[str, ...], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


def truth(claims: np.ndarray, grounds: np.ndarray, things: np.ndarray, backgrounds: np.ndarray) -> np.ndarray:
    """(s n) whether a sentence is true of a frame."""
    fits = (claims[:, None, :, None] < 0) | (claims[:, None, :, None] == things[None, :, None])  # (s n 2 4 5)
    there = fits.all(-1).any(-1) | (claims[:, None, :, 0] < 0)
    return there.all(-1) & ((grounds[:, None] < 0) | (grounds[:, None] == backgrounds))


def embed(encoder: JointEncoder, sentences: list[list[str]]) -> torch.Tensor:
    words = encoder.embed_words([word for sentence in sentences for word in sentence])
    owner = torch.arange(len(sentences)).repeat_interleave(torch.tensor([len(words) for words in sentences]))
    return F.normalize(torch.zeros(len(sentences), DIM).index_add(0, owner, words), dim=-1)


def train(frames: Frames, steps: int, rng: np.random.Generator) -> JointEncoder:
    encoder, thumbnail = JointEncoder(), nn.Linear(DIM, 8 * 8 * 3)
    with torch.no_grad():
        encoder.tokens.mul_(0.05)
    normalised = with_batch_norm(encoder).to(memory_format=torch.channels_last)
    scale = nn.Parameter(torch.tensor(2.3))
    parameters = {*encoder.parameters(), *normalised.parameters(), *thumbnail.parameters(), scale}
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=0.1)
    history = []
    for step in range(steps):
        chosen = rng.integers(len(frames.pixels), size=BATCH)
        things, backgrounds = frames.things[chosen], frames.backgrounds[chosen]
        claims, grounds = zip(*(choose(t, int(b), rng) for t, b in zip(things, backgrounds, strict=True)), strict=True)
        foils = [foil(what, t, rng) for what, t in zip(claims, things, strict=True) for _ in range(FOILS)]
        sentences = [say(what, ground, rng) for what, ground in zip(claims, grounds, strict=True)]
        others = [say(what, grounds[i // FOILS], rng) for i, what in enumerate(foils)]
        pixels = torch.from_numpy(frames.pixels[chosen])
        image = F.normalize(encoder.place(normalised(encoder.scaled(pixels)).flatten(1)), dim=-1)
        text = embed(encoder, sentences + others)
        logits = scale.exp() * text[:BATCH] @ image.mT
        true = torch.from_numpy(truth(np.stack(claims), np.array(grounds), things, backgrounds))
        logits = logits.masked_fill(true & ~torch.eye(BATCH, dtype=torch.bool), -torch.inf)
        wrong = scale.exp() * torch.einsum("bkd,bd->bk", text[BATCH:].view(BATCH, FOILS, -1), image)
        silent = torch.tensor([what[0, 0] < 0 for what in claims])  # no claim can be changed
        wrong = wrong.masked_fill(silent[:, None], -torch.inf)
        target = torch.arange(BATCH)
        contrast = (F.cross_entropy(logits, target) + F.cross_entropy(torch.cat([logits.mT, wrong], 1), target)) / 2
        own = torch.cat([logits.diagonal()[:, None], wrong], 1)[~silent]
        foiled = F.cross_entropy(own, torch.zeros(len(own), dtype=torch.long))
        small = F.avg_pool2d(pixels.permute(0, 3, 1, 2).float() / 127.5 - 1, 8).flatten(1)
        loss = contrast + foiled + 5.0 * F.mse_loss(thumbnail(image * DIM**0.5), small)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            scale.clamp_(max=4.0)
        right = (own.argmax(1) == 0).float().mean().item()
        history.append((contrast.item(), foiled.item(), right))
        if step % 100 == 99:
            mean = np.mean(history[-100:], axis=0)
            print(
                f"step {step + 1}: contrast {mean[0]:.3f}, foils {mean[1]:.3f}, seen through {mean[2]:.1%}", flush=True
            )
    without_batch_norm(encoder, normalised)
    return encoder.eval()


def with_batch_norm(encoder: JointEncoder) -> nn.Sequential:
    """The encoder's trunk, its layers shared, with a normalisation after each convolution but the last."""
    layers: list[nn.Module] = []
    for layer in encoder.trunk:
        layers.append(layer)
        if isinstance(layer, nn.Conv2d) and layer is not encoder.trunk[-1]:
            layers.append(nn.BatchNorm2d(layer.out_channels))
    return nn.Sequential(*layers)


def without_batch_norm(encoder: JointEncoder, normalised: nn.Sequential) -> None:
    """Folds what the normalisations have learned into the convolutions before them."""
    normalised.eval()
    layers = list(normalised)
    for conv, norm in pairwise(layers):
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            fused = fuse_conv_bn_eval(conv.eval(), norm)
            conv.load_state_dict(fused.state_dict())


def equalise(encoder: JointEncoder, frames: Frames) -> None:
    """Halves the spread of the variances of the joint space (in logarithm) and centres frames, in the weights alone.

    Contrastive training leaves few wide directions: backgrounds drown what tells shapes and places apart. Dot products
    of texts with frames stay as they are, but for a constant of each text.
    """
    with torch.inference_mode():
        parts = [encoder(torch.from_numpy(frames.pixels[i : i + 256])) for i in range(0, 5120, 256)]
    found = torch.cat(parts).double()
    values, vectors = torch.linalg.eigh(torch.cov(found.mT))
    root = (values + 0.01 * values.mean()).sqrt().sqrt()
    narrow, widen = (vectors / root) @ vectors.mT, (vectors * root) @ vectors.mT
    with torch.no_grad():
        encoder.place.bias.copy_(narrow @ (encoder.place.bias.double() - found.mean(0)))
        encoder.place.weight.copy_(narrow @ encoder.place.weight.double())
        encoder.meaning.weight.copy_(widen @ encoder.meaning.weight.double())


def accuracy(encoder: JointEncoder, frames: Frames, rng: np.random.Generator) -> float:
    """Share of sentences whose best of 500 unseen frames is one they are true of."""
    pairs = zip(frames.things, frames.backgrounds, strict=True)
    claims, grounds = zip(*(choose(t, int(b), rng) for t, b in pairs), strict=True)
    texts = [" ".join(say(what, ground, rng)) for what, ground in zip(claims, grounds, strict=True)]
    images = encoder.encode_frames(frames.pixels)
    best = (np.stack([encoder.encode_text(text) for text in texts]) @ images.T).argmax(1)
    true = truth(np.stack(claims), np.array(grounds), frames.things, frames.backgrounds)
    return float(true[np.arange(len(best)), best].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--frames", type=int, default=60_000)
    parser.add_argument("--output", type=Path, default=FOLDER)
    args = parser.parse_args()
    started = time.process_time()
    torch.manual_seed(SEED % 2**31)
    rng = np.random.default_rng([SEED])
    frames, unseen = draw_frames(args.frames, rng), draw_frames(500, rng)
    print(f"{len(frames.pixels)} frames drawn in {time.process_time() - started:.0f} CPU seconds", flush=True)
    encoder = train(frames, args.steps, rng)
    equalise(encoder, frames)
    right = accuracy(encoder, unseen, rng)
    data = save({name: value.half().contiguous() for name, value in encoder.state_dict().items()})
    minutes = (time.process_time() - started) / 60
    about = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "made_by": "scripts/train_encoder.py",
        "seed": SEED,
        "frames": args.frames,
        "steps": args.steps,
        "right_frame_of_500": round(right, 3),
        "parameters": sum(value.numel() for value in encoder.state_dict().values()),
        "torch": torch.__version__.split("+")[0],
        "numpy": np.__version__,
        "machine": platform.machine(),
    }
    args.output.mkdir(parents=True, exist_ok=True)
    replace_file(args.output / WEIGHTS, lambda file: file.write(data))
    replace_file(args.output / ABOUT, lambda file: file.write((json.dumps(about, indent=1) + "\n").encode()))
    print(f"{len(data)} bytes, {minutes:.1f} CPU minutes, right frame of 500: {right:.1%}")


if __name__ == "__main__":
    main()
