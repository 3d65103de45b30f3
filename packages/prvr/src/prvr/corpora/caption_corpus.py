"""Corpora of users' own videos, from a table of captions and the features of the videos."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan, nan
from pathlib import Path

import numpy as np

from prvr.corpora.annotations import Conversion, lengths
from prvr.corpora.corpus_encoders import CorpusEncoders, Progress, joint_side, write_encoded
from prvr.corpora.user_captions import SPLITS, Problems, SplitShares, UserCaption, plain_ids, read_table, split_videos
from prvr.data.corpus import Corpus
from prvr.data.hashes import hash_file
from prvr.data.layout import Caption, MomentTimes, TextData
from prvr.encoders import TextFeaturizer, VideoFeatures
from prvr.errors import DataError
from prvr.reading import LARGE, parse_json, read_text

VIDEOS = "videos.jsonl"
Words = Callable[[UserCaption], tuple[np.ndarray, np.ndarray | None]]
"""Gives the `(w, e)` features of a caption, and its sentence in the space of the frames, if there is one."""
_FEW = 20  # different videos; a note names the splits that have fewer
_BEYOND = 1.0  # seconds that a moment may end after its video: times are rounded, and players differ


def convert_captions(
    path: Path | str,
    store: VideoFeatures,
    text: TextFeaturizer,
    folder: Path | str,
    *,
    joint: TextFeaturizer | None = None,
    shares: SplitShares | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Writes a corpus of captions of users' own videos, whole or not at all.

    Videos are split, never captions: no video is in two splits, and no copy of one either. All videos with the same
    caption are relevant for it. `corpus.json` states the encoders of the features, `videos.jsonl` the id of each video
    in its folder.

    Args:
        path: a table that [read_user_captions][prvr.corpora.read_user_captions] reads.
        store: a store of the videos in the table, which are named as `VideoFeatures.find` accepts it.
        text: encodes the captions.
        folder: `ROOT/COLLECTION`, the new corpus; its name has letters, digits, `-`, `_` and `.`.
        joint: the text side of the encoder of the frames, for the zero-shot score; default: `text`, if it is that.
        shares: the shares of the splits; default: [SplitShares][prvr.corpora.SplitShares]().
        progress: called with (texts and videos done, in all).

    Raises:
        DataError: lines that cannot be used, each with its number; too few videos; the folder exists; a full disk.

    Examples:
        >>> features, text = read_export("features"), open_featurizer("toy")  # doctest: +SKIP
        >>> convert_captions("captions.csv", features, text, "data/mine").counts["captions"]  # doctest: +SKIP
        {'train': 80, 'val': 10, 'test': 20}
    """
    joint = joint_side(store, text if joint is None else joint)

    def words(caption: UserCaption) -> tuple[np.ndarray, np.ndarray | None]:
        return text.words(caption.text), None if joint is None else joint.sentence(caption.text)

    encoders = asdict(CorpusEncoders.of(store, text, joint))
    about = {"generator": "prvr convert captions", "version": 1, "encoders": encoders}
    corpus = write_captions(path, store, words, folder, about, shares=shares, progress=progress)
    note = "no comparison with zero-shot: captions and frames have different encoders"
    return replace(corpus, notes=[*corpus.notes, *[note] * (joint is None)])


def write_captions(
    path: Path | str,
    store: VideoFeatures,
    words: Words,
    folder: Path | str,
    about: Mapping[str, object],
    *,
    shares: SplitShares | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Writes a corpus from a table of captions, as `convert_captions` does, with any features of the captions.

    Args:
        path, store, folder, shares, progress: as for `convert_captions`.
        words: gives the features of a caption, and its sentence where there is a joint space; a ValueError is a
            problem of the caption's line.
        about: the head of `corpus.json`.
    """
    path = Path(path).expanduser()
    folder = Path(folder).expanduser()
    shares = shares or SplitShares()
    problems = Problems(path)
    table = read_table(problems)
    lines = match_captions(table, store, problems)
    by_column = any(line.caption.split for line in lines)
    by_name = _named_splits(lines, store, problems) if by_column else {}
    problems.refuse()
    captioned = sorted({line.video for line in lines})
    split_of = by_name or split_videos({video: store.entries[video].sha256 for video in captioned}, shares)
    ids = plain_ids(captioned)
    used = [split for split in SPLITS if split in split_of.values()]
    by_split = {split: list[tuple[Caption, CaptionLine]]() for split in used}
    counts = Counter[str]()
    for line in lines:
        caption = Caption(f"{ids[line.video]}#enc#{counts[line.video]}", ids[line.video], line.caption.text)
        counts[line.video] += 1
        by_split[split_of[line.video]].append((caption, line))
    pairs = [pair for group in by_split.values() for pair in group]
    texts = TextData(
        captions={split: [caption for caption, _ in group] for split, group in by_split.items()},
        moments={caption.id: line.moment for caption, line in pairs if not isnan(line.moment.duration)} or None,
        relevance=_relevance(pairs, ids, store),
        own_ids={caption.id: line.caption.id for caption, line in pairs if line.caption.id} or None,
    )
    rows = (
        {"id": plain, "video": video, "split": split_of[video], "path": entry.path, "sha256": entry.sha256}
        | ({} if isnan(entry.duration) else {"duration": entry.duration})
        for video, plain in ids.items()
        for entry in [store.entries[video]]
    )

    def queries() -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
        for caption, line in pairs:
            try:
                features, sentence = words(line.caption)
            except ValueError as error:
                problems.add(line.caption.line, error)
            else:
                yield caption.id, features, sentence
        problems.refuse()

    files = {VIDEOS: "".join(f"{json.dumps(row)}\n" for row in rows)}
    videos = ((plain, store.read(video)) for video, plain in ids.items())
    captions = {"file": path.name, "sha256": hash_file(path)}
    splits = "column split" if by_column else asdict(shares)
    write_encoded(folder, texts, videos, queries(), {**about, "captions": captions, "splits": splits}, files, progress)
    sides = Counter(split_of.values())
    left_out = [video for video in store.video_ids if video not in ids]
    different = Counter({store.entries[video].sha256: split for video, split in split_of.items()}.values())
    sizes = ", ".join(f"{split} {different[split]}" for split in used if different[split] < _FEW)
    single = " and ".join(split for split in used if different[split] == 1)
    mend = "" if by_column else ", or choose other shares (--test, --val)"
    notes = {
        f"Few different videos: {sizes}. Below {_FEW} in a split, results depend mostly on chance. Caption more "
        f"videos{mend}.": sizes,
        f"Only one different video in {single}: every recall there is 100 %, whatever the model.": single,
        f"{sum(line.caption.start is not None for line in lines):,} of {len(lines):,} captions have times": True,
        f"{(cut := sum(line.cut for line in lines)):,} moments cut to their video": cut,
        f"{(further := sum(len(line.moment.more) for line in lines)):,} further moments of lines with one id": further,
        f"{(repeated := len(table) - len(lines) - further):,} duplicate lines omitted": repeated,
        f"{len(left_out):,} videos without a caption omitted: {', '.join(left_out[:3])} ...": left_out,
    }
    numbers = {"videos": {split: sides[split] for split in used}, "captions": lengths(by_split)}
    return Conversion(folder, numbers, [note for note, holds in notes.items() if holds])


def _named_splits(lines: Sequence["CaptionLine"], store: VideoFeatures, problems: Problems) -> dict[str, str]:
    """The split of each video as the table names it; videos in two splits, copies too, are problems."""
    split_of, contents = dict[str, str](), dict[str, tuple[str, str]]()
    for line in lines:
        split, content = line.caption.split, store.entries[line.video].sha256
        other, before = contents.setdefault(content, (line.video, split))
        split_of[line.video] = split
        if not split:
            problems.add(line.caption.line, "no split, though other lines have one")
        elif before and split != before:
            copy = "" if other == line.video else f", whose content {line.video!r} has too,"
            problems.add(line.caption.line, f"split {split}, but {other!r}{copy} is in {before}")
    if not problems.lines and not {"train", "test"} <= set(split_of.values()):
        raise DataError(
            f"{problems.path}: split: got {', '.join(sorted(set(split_of.values())))}, expected train and test."
        )
    return split_of


def source_videos(corpus: Corpus) -> list[tuple[str, str, str]]:
    """The id, the name and the file of each video of a corpus of `prvr convert`; nothing for another corpus.

    Raises:
        DataError: the list of its videos cannot be read.
    """
    path, videos = corpus.folder / VIDEOS, []
    for number, line in enumerate(read_text(path, LARGE).splitlines() if path.is_file() else (), 1):
        match parse_json(line, f"{path}, line {number}"):
            case {"id": str(name), "video": str(video), "path": str(file)}:
                videos.append((name, video, Path(file).as_posix()))
            case _:
                raise DataError(
                    f"{path}, line {number}: expected an object with id, video and path. Make the corpus again."
                )
    return videos


def videos_folder(corpus: Corpus) -> Path | None:
    """The folder of the videos of a corpus of `prvr convert captions`, which was searched or exported.

    None for another corpus, where the folder is gone, or where the videos came from several folders.

    Raises:
        DataError: the list of its videos cannot be read.
    """
    folders = {
        file.removesuffix(video) if file.endswith(f"/{video}") else "" for _, video, file in source_videos(corpus)
    }
    folder = Path(folders.pop()).resolve() if len(folders) == 1 and "" not in folders else None
    return folder if folder is not None and folder.is_dir() else None


@dataclass(frozen=True)
class CaptionLine:
    """A caption, the video that it is of, and its moments cut to the video."""

    caption: UserCaption
    video: str
    moment: MomentTimes
    cut: bool

    def joined(self, other: "CaptionLine") -> "CaptionLine":
        """The same caption with the moment of another line too, if it is another one."""
        own, times = self.moment, (other.moment.start, other.moment.end)
        if isnan(times[0]) or times in ((own.start, own.end), *own.more):
            return self
        if isnan(own.start):
            return other
        return replace(self, moment=replace(own, more=(*own.more, times)), cut=self.cut or other.cut)


def match_captions(captions: Sequence[UserCaption], store: VideoFeatures, problems: Problems) -> list[CaptionLine]:
    """Each caption with the video that it names, repeated ones once; names and times that do not fit are problems.

    Lines of one id that say the same of the same video at other times are one caption with several moments.

    Args:
        captions: as `read_table` gives them.
        store: the videos.
        problems: what is wrong is added to them; refuse them before using any line.
    """
    names = [caption.video.replace("\\", "/").removeprefix("./") for caption in captions]
    stated = dict[str, float]()  # lengths of videos by the table
    for caption, name in zip(captions, names, strict=True):
        for video in store.named(name) if caption.duration else ():
            stated[video] = max(caption.duration or 0.0, stated.get(video, 0.0))
    lines: dict[tuple[object, ...], CaptionLine] = {}
    for caption, name in zip(captions, names, strict=True):
        if not caption.video:  # the row has a problem already
            continue
        if problems.full and len(store.named(name)) != 1:
            problems.add(caption.line, "")  # it is only counted: to look for similar names takes time
            continue
        try:
            video = store.find(name)
        except DataError as error:
            problems.add(caption.line, str(error))
            continue
        duration, start, end = store.duration(video), caption.start, caption.end
        row = 0.0
        if isnan(duration) or duration == store.entries[video].frames / store.rate:  # not that of a video file
            # Where the length follows from the rows, the last one, which was not full, may be missing.
            duration, row = (stated[video], 0.0) if video in stated else (duration, 1 / store.rate)
        if start is None or end is None:
            start = end = nan
        elif isnan(duration):
            problems.add(
                caption.line,
                "has times, but nothing says how long the video is. Give the rows per second (--rate), or a column "
                "duration",
            )
        elif start >= duration + row or end > duration + max(row, _BEYOND):
            times = f"{start:g} - {end:g} s"
            problems.add(caption.line, f"{times} lies beyond the end of {video!r}, which is {duration:.2f} s long")
        if start >= duration:  # in that row
            start = duration - row
        moment = MomentTimes(start, duration if end > duration else end, duration)
        line = CaptionLine(caption, video, moment, cut=end > duration)
        key = (video, caption.text, caption.id) if caption.id else (video, *caption.content[1:])
        lines[key] = lines[key].joined(line) if key in lines else line
    return list(lines.values())


def _relevance(
    pairs: Sequence[tuple[Caption, CaptionLine]], ids: Mapping[str, str], store: VideoFeatures
) -> dict[str, set[str]]:
    """The relevant videos of captions that several videos have, or of which there are copies."""
    copies = defaultdict[str, set[str]](set)
    relevant = defaultdict[str, set[str]](set)
    for video, plain in ids.items():
        copies[store.entries[video].sha256].add(plain)
    for caption, line in pairs:
        relevant[caption.text.casefold()] |= copies[store.entries[line.video].sha256]
    return {c.id: videos for c, _ in pairs if len(videos := relevant[c.text.casefold()]) > 1}
