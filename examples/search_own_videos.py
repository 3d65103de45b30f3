"""Search a folder of videos without training, add captions, train, search again.

The videos here are drawn by prvr. With your own, name CLIP instead of `toy` and leave out `draw`; every step is a
command too: prvr search, convert captions, train, search --model. So few videos and epochs do not train a good model.
"""

import csv
import tempfile
from pathlib import Path

import torch

import prvr
from prvr.corpora.caption_corpus import convert_captions
from prvr.encoders import open_featurizer
from prvr.toy import render
from prvr.toy.scenes import draw_split
from prvr.training import train
from prvr_search import Library
from prvr_search.films.toy_videos import write_mp4

SENTENCE = "a small blue circle rises"
SMALL = {
    "data.collection": "captioned",
    "model.hidden": 32,
    "model.lorentz_dim": 31,
    "model.registers.steps": 2,
    "train.epochs": 2,
    "train.batch_size": 8,
}


def draw(folder: Path) -> None:
    """Twelve films of half a minute or so, and a table of what happens in them."""
    scenes = draw_split("train", 12, seed=0)
    (folder / "films").mkdir()
    for film in scenes.videos:
        write_mp4(folder / "films" / f"{film.id}.mp4", render(film), scale=2)
    with (folder / "films.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["video", "text", "start", "end"])
        table.writerows([s.video_id, s.text, s.start, s.end] for s in scenes.sentences)


def search(library: Library) -> None:
    for hit in library.search(SENTENCE, k=3).hits:
        print(f"  {hit.video_id}  {hit.start:5.1f} - {hit.end:5.1f} s  score {hit.score:.3f}")


def main() -> None:
    torch.set_num_threads(1)  # the matrices are small
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        draw(here)
        with Library(here / "films", encoder="toy", home=here / "library") as library:
            print(f"{SENTENCE!r}, without training:")
            search(library)
            features = library.features()

        made = convert_captions(here / "films.csv", features, open_featurizer("toy"), here / "captioned")
        print(f"captions: {made.counts['captions']}")
        where = {"data.root": str(here), "data.cache_dir": str(here / "cache"), "train.protocol": "val"}
        train(prvr.load_config("hybrid-toy", SMALL | where), output=here / "run", device="cpu")
        with Library(here / "films", encoder="toy", home=here / "library", model=here / "run") as library:
            print(f"{SENTENCE!r}, with training:")  # no video is encoded again
            search(library)


if __name__ == "__main__":
    main()
