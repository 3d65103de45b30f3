"""Images and their labels in one hyperbolic space: the general near the origin, the specific around it (as MERU).

The images are letters and digits drawn in the 16 text fonts that ship with matplotlib, each shifted at random; the
labels are the 62 characters and, above them, the three kinds: digit, capital, small letter. Four fonts are held out.
"""

from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

import lorentz
from lorentz.nn import Curvature, LorentzContrastiveLoss

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KINDS = ("digit", "capital", "small letter")
HELD_OUT = ("DejaVuSans-Oblique", "DejaVuSansMono-Bold", "DejaVuSerif-Bold", "STIXGeneralItalic")
SIZE, DIM, STEPS, BATCH = 20, 32, 400, 256

torch.manual_seed(0)
kind_of = torch.tensor([0 if x.isdigit() else 1 if x.isupper() else 2 for x in CHARACTERS])


def draw(font: Path) -> torch.Tensor:
    """All characters in this font, (62, SIZE, SIZE)."""
    face, pictures = ImageFont.truetype(font, 15), []
    for character in CHARACTERS:
        picture = Image.new("L", (SIZE, SIZE))
        ImageDraw.Draw(picture).text((SIZE / 2, SIZE / 2 + 4), character, fill=255, font=face, anchor="ms")
        pictures.append(np.asarray(picture, dtype=np.float32) / 255)
    return torch.from_numpy(np.stack(pictures))


fonts = sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("*.ttf"))
fonts = [font for font in fonts if font.stem.startswith(("DejaVu", "STIXGeneral")) and "Display" not in font.stem]
seen = torch.stack([draw(font) for font in fonts if font.stem not in HELD_OUT])
held_out = torch.stack([draw(font) for font in fonts if font.stem in HELD_OUT])

c = Curvature(1.0, bounds=(0.5, 2.0))  # shared; contrastive training would flatten the space without the lower bound
encoder = nn.Sequential(
    nn.Conv2d(1, 16, 3, 2, 1), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(800, DIM)
)
characters, kinds = nn.Embedding(len(CHARACTERS), DIM), nn.Embedding(len(KINDS), DIM)
of_images = LorentzContrastiveLoss(DIM, c=c, entailment_weight=1.0)  # a character is the general of its images,
of_characters = LorentzContrastiveLoss(DIM, c=c, entailment_weight=1.0)  # a kind that of its characters
model = nn.ModuleList([encoder, characters, kinds, of_images, of_characters])
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step in range(STEPS):
    font, label = torch.randint(len(seen), (BATCH,)), torch.randint(len(CHARACTERS), (BATCH,))
    shift = [int(torch.randint(-1, 2, ())) for _ in range(2)]
    images = encoder(seen[font, label].roll(shift, (1, 2))[:, None])
    lower = of_images(characters.weight, images, label)
    upper = of_characters(kinds.weight, characters.weight, kind_of)
    optimiser.zero_grad()
    (lower.total + upper.total).backward()
    optimiser.step()
    if step % 100 == 99:
        print(
            f"step {step + 1}: contrastive {lower.contrastive:.2f}, outside of the cone {lower.entailment:.2f} rad "
            f"(images), {upper.entailment:.2f} rad (characters), c {c().item():.2f}"
        )

with torch.no_grad():
    points = of_images.specific(encoder(held_out.flatten(0, 1)[:, None]))
    label = torch.arange(len(CHARACTERS)).repeat(len(held_out))
    characters_as_general = of_images.general(characters.weight)
    nearest = lorentz.pairwise_dist(points, characters_as_general, c()).argsort(-1)
    recall = [(nearest[:, :k] == label[:, None]).any(-1).float().mean().item() for k in (1, 5)]
    print(f"images of held-out fonts: {recall[0]:.0%} at the right character, {recall[1]:.0%} among five; chance 2 %")
    radius = {
        "kinds": lorentz.dist0(of_characters.general(kinds.weight), c()),
        "characters, under their kinds": lorentz.dist0(of_characters.specific(characters.weight), c()),
        "characters, above their images": lorentz.dist0(characters_as_general, c()),
        "images": lorentz.dist0(points, c()),
    }
    for name, r in radius.items():
        print(f"distance from the origin, {name}: {r.mean():.2f} on average, from {r.min():.2f} to {r.max():.2f}")
assert recall[0] > 0.5
assert radius["kinds"].mean() < radius["characters, under their kinds"].mean()
assert radius["characters, above their images"].mean() < radius["images"].mean()
