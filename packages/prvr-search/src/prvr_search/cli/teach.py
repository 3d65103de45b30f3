"""`prvr teach`: a few captions of a folder's videos make its search better, if they do."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prvr.cli.console import CommandError, load, progress_bar, show_next, stdout
from prvr.cli.options import app
from prvr_search.cli.clip import VIDEOS
from prvr_search.cli.libraries import Folder, LibraryOptions, opened_library


@app.command(name="teach", group=VIDEOS)
def run(
    folder: Folder,
    captions: Annotated[Path | None, Parameter(metavar="CAPTIONS.csv")] = None,
    /,
    *,
    library: LibraryOptions = LibraryOptions(),
    forget: bool = False,
) -> None:
    """Improve the search of a folder with a few captions.

    Correct the encoder by some dozens of captions of videos in the folder, in seconds. Captioned videos are left out in
    groups, and their captions are ranked among all videos, of many among a sample; so the table shows what captions of
    other videos are worth. Searches use them only if SumR is shown to be higher than zero-shot. New videos are encoded
    first.

    Args:
        captions: a CSV file with a header, or JSON lines: video, text; start and end if known
        forget: delete what was taught; searches are zero-shot again
    """
    if (captions is None) == (not forget):
        raise CommandError("Expected either a table of captions or --forget: prvr teach FOLDER CAPTIONS.csv")
    load("prvr_search.vectors.teaching")
    from prvr.evaluation.compare import with_differences
    from prvr.evaluation.tables import new_table

    with opened_library(folder, library, update=captions is not None) as opened:
        if captions is None:
            print("deleted; searches are zero-shot" if opened.forget() else "nothing was taught for this folder")
            return
        with progress_bar("teaching", "steps") as progress:
            comparison = opened.teach(captions, progress)
        taught = opened.taught()
    assert taught is not None
    some = "" if comparison.captions == taught.captions else f"{comparison.captions:,} of "
    title = f"{some}{taught.captions:,} captions of {taught.videos:,} videos, "
    title += f"each ranked among {comparison.gallery:,} videos"
    note = "paired by caption, resampled by video; each video was left out when its captions were ranked"
    note += f"; at most {comparison.rows:,} rows of each counted"
    table = new_table(title, note, [""], ("zero-shot", "taught", "difference", "95% interval", "p"))
    metrics = comparison.zero_shot, comparison.taught
    stdout().print(with_differences(table, metrics, comparison.differences))
    if comparison.is_better:
        print("Taught is better than zero-shot: searches of this folder use it from now on.")
        show_next("prvr", "search", folder, "a person opens the fridge")
    else:
        print(
            "Taught is not significantly better than zero-shot: searches stay zero-shot. More captioned videos may "
            "help; use --model taught to search with it anyway."
        )
