"""`prvr data make`: the toy corpus as files."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

from cyclopts import App, Parameter

from prvr.cli.console import progress_bar, show_next
from prvr.cli.options import CORPORA, Seed, app
from prvr.extensions import extension

group = App(name="data", group=CORPORA, help="Make the toy corpus: videos that prvr draws.")
app.command(group)


@group.command
def make(
    *,
    output: Annotated[Path, Parameter(metavar="ROOT")],
    size: Literal["tiny", "demo", "bench", "large"] = "demo",
    seed: Seed = 0,
    look: Literal["day", "dusk", "haze"] = "day",
    mp4: bool = False,
) -> None:
    """Write the toy corpus to files.

    Draw the videos of the toy corpus, encode them, and write them to ROOT/toy-SIZE in the layout of the public feature
    files. If the same corpus already exists there, nothing is changed.

    Args:
        output: the folder of the corpora
        size: the size of the corpus: 100, 720 or 2700 videos, or 500 more test videos (large)
        look: lighting: day, or dusk or haze to test out of domain
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
    else:
        collection = "" if size == "demo" else f" --data.collection toy-{size}"  # the presets read toy-demo
        print(f"Train on it: prvr train --preset hybrid-toy --data-root {quote(str(output))}{collection}")
    if mp4:
        with progress_bar("writing MP4 files") as progress:
            folder = write_videos(corpus, progress=progress)
        print(f"{folder}: one MP4 file per video")
        show_next("prvr", "search", folder, "a blue star falls")
