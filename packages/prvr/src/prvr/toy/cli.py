"""`prvr data make | show`: the toy corpus, as files and as pictures."""

from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

from cyclopts import App, Parameter

import prvr
from prvr.cli.console import CommandError, progress_bar, show_next
from prvr.cli.folders import open_corpus_of
from prvr.cli.options import CORPORA, PictureFile, Seed, app
from prvr.extensions import extension

group = App(name="data", group=CORPORA, help="Make and view the toy corpus: videos that prvr draws.")
app.command(group)
_Size = Annotated[
    Literal["tiny", "demo", "bench", "large"],
    Parameter(help="the size of the corpus: 100, 720 or 2700 videos, or 500 more test videos (large)"),
]
_Look = Annotated[
    Literal["day", "dusk", "haze"], Parameter(help="lighting: day, or dusk or haze to test out of domain")
]


@group.command
def make(
    *,
    output: Annotated[Path, Parameter(metavar="ROOT")],
    size: _Size = "demo",
    seed: Seed = 0,
    look: _Look = "day",
    mp4: bool = False,
) -> None:
    """Write the toy corpus to files.

    Draw the videos of the toy corpus, encode them, and write them to ROOT/toy-SIZE in the layout of the public feature
    files. If the same corpus already exists there, nothing is changed.

    Args:
        output: the folder of the corpora
        mp4: also write the videos as MP4 files; needs prvr-search
    """
    from prvr.toy import write_corpus

    if mp4:
        write_videos = extension("write_videos", "--mp4")  # now, not when all is drawn
    with progress_bar(f"making toy-{size}") as progress:
        corpus = write_corpus(output, size, seed, look=look, progress=progress)
    video_dim, query_dim = corpus.dims()
    print(f"{corpus.folder}: splits {', '.join(corpus.splits)}; frame features {video_dim} wide, words {query_dim}")
    if look != "day" or "train" not in corpus.splits:
        print(f"Test on it: prvr evaluate RUN --transfer {quote(str(corpus.folder))}")
    else:  # the presets read toy-demo, and a folder of that name is what `prvr data show` reads
        shown, collection = ("", "") if size == "demo" else (f" --size {size}", f" --data.collection toy-{size}")
        print(f"View a video: prvr data show test0000 --data-root {quote(str(output))}{shown}")
        print(f"Train on it:  prvr train --preset hybrid-toy --data-root {quote(str(output))}{collection}")
    if mp4:
        with progress_bar("writing MP4 files") as progress:
            folder = write_videos(corpus, progress=progress)
        print(f"{folder}: one MP4 file per video")
        show_next("prvr", "search", folder, "a blue star falls")


@group.command
def show(
    video: str,
    /,
    *,
    data_root: Annotated[Path | None, Parameter(metavar="ROOT")] = None,
    size: _Size = "demo",
    look: _Look = "day",
    output: PictureFile | None = None,
) -> None:
    """Draw the contact sheet of a video.

    Draw the contact sheet of one video of the toy corpus: its frames in time order, its moments and its sentences.

    Args:
        video: the id of the video, for example test0000
        data_root: the folder of the corpora (default: the corpus in the cache, which has daylight only)
        output: the picture (default: VIDEO.png in the current folder)
    """
    from prvr.data import open_corpus
    from prvr.toy import read_toy_scenes
    from prvr.toy.toy_corpus import toy_name

    if data_root is not None:
        corpus = open_corpus(data_root, toy_name(size, look))
    elif look == "day":
        corpus = open_corpus_of(prvr.load_config("hybrid-toy", {"data.collection": f"toy-{size}"}))
    else:
        raise CommandError(
            f"--look {look}: the corpus in the cache has daylight only. Make one with `prvr data make --output ROOT "
            f"--size {size} --look {look}`, and name it with --data-root ROOT."
        )
    splits = read_toy_scenes(corpus).values()
    drawn = {scene.id: (scene, scenes) for scenes in splits for scene in scenes.videos}
    if video not in drawn:
        close = get_close_matches(video, drawn, n=3)
        ranges = [f"{s.videos[0].id} to {s.videos[-1].id}" for s in splits]
        raise CommandError(
            f"unknown video {video!r} in {corpus.folder}"
            + (f"; did you mean {', '.join(close)}?" if close else ".")
            + f" The corpus has {', '.join(ranges)}."
        )
    scene, scenes = drawn[video]
    sentences = [sentence for sentence in scenes.sentences if sentence.video_id == video]
    from prvr.plot import save_figure
    from prvr.toy.sheets import video_figure

    target = output or Path(f"{scene.id}.png")
    replaced = "; overwrote the existing file" * target.exists()
    save_figure(video_figure(scene, sentences, look), target)
    print(f"{target}: {corpus.name} {scene.id}, {scene.duration:.0f} s, {len(scene.shots)} shots{replaced}")
    for sentence in sentences:
        print(f"  {sentence.start:5.1f} - {sentence.end:5.1f} s  {sentence.text}")
