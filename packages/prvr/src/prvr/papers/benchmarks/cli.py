"""`prvr convert benchmark`: public text-to-video benchmarks as corpora."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prvr.cli.console import CommandError, progress_bar, show_next
from prvr.cli.convert import (
    PIXELS,
    Features,
    Name,
    Root,
    Text,
    clip_keys,
    clip_of,
    folder_of,
    group,
    place,
    show,
    training,
    video_features,
    width_keys,
)
from prvr.cli.folders import device_of
from prvr.cli.options import Count, Device
from prvr.papers.benchmarks import BENCHMARKS


@group.command(
    help="Convert a public text-to-video benchmark into a corpus.\n\nMake a corpus of a text-to-video benchmark "
    f"({', '.join(BENCHMARKS.names)}) from its public annotation files and the features of its videos."
)
def benchmark(
    name: str,
    /,
    *,
    annotations: Annotated[Path, Parameter(metavar="DIR")],
    features: Features,
    output: Root,
    collection: Name = None,
    text: Text = None,
    max_words: Count | None = None,
    allow_missing: bool = False,
    device: Device = "auto",
) -> None:
    """Convert a public benchmark.

    Args:
        name: the name of the benchmark
        annotations: the folder of the annotation files
        collection: the name of the new corpus (default: that of the benchmark)
        max_words: the maximum number of words of a caption (default: 32 or 64, as in the papers)
        allow_missing: omit videos without features, and list them
    """
    from prvr.corpora.exported import is_export
    from prvr.data import open_features
    from prvr.data.features import BIGFILE, HDF5
    from prvr.encoders import VideoFeatures, open_featurizer
    from prvr.papers.benchmarks.conversion import convert_benchmark

    rules, folder = BENCHMARKS[name], features.expanduser()
    is_public = any((folder / file).exists() for file in (HDF5, BIGFILE[0])) and not is_export(folder)
    with open_features(folder) if is_public else video_features(folder) as reader:
        encoder_name = text or (reader.encoder if isinstance(reader, VideoFeatures) else None)
        if encoder_name is None:
            raise CommandError(
                f"--text is required: {features} does not say what the features are, so the model of the captions is "
                "unknown. For example: --text openai/clip-vit-base-patch32."
            )
        encoder = open_featurizer(encoder_name, device_of(device))
        with progress_bar(f"reading {rules.description}") as progress:
            report = convert_benchmark(
                name,
                annotations,
                reader,
                encoder,
                folder_of(output, collection or name),
                max_words=max_words,
                allow_missing=allow_missing,
                progress=progress,
            )
    show(report, f": {rules.description}")
    clip = clip_of(encoder)
    if rules.part.untrimmed and not clip:
        show_next(*training(report.path, reader.dim, encoder.word_dim, val="val" in report.counts["videos"]))
        return
    preset = PIXELS if clip else rules.part.preset
    keys = clip_keys(clip, rules.part.preset) if clip else width_keys(preset, reader.dim, encoder.word_dim)
    show_next("prvr", "train", "--preset", preset, *place(report.path), *keys)
