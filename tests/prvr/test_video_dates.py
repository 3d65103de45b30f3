"""When a film was filmed: by its container, its name or its file; searched, shown, and described anew once."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import av
import pytest
from counting_encoder import NAME, film
from film_collections import Collection

from prvr_search.films import open_video
from prvr_search.films.info import film_date

APPLE = "com.apple.quicktime.creationdate"
COPIED = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 10**9
"""When a file was last changed, in ns."""


pytestmark = pytest.mark.usefixtures("berlin")


def dated(path: Path, **tags: str) -> Path:
    """A copy of a film with tags of its container."""
    target = path.with_name(f"dated-{path.name}")
    options = {"movflags": "use_metadata_tags"}
    with av.open(str(path)) as source, av.open(str(target), "w", options=options) as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        container.metadata.update(tags)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                container.mux(packet)
    return target.replace(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("day/20190712_143000.mp4", "2019-07-12T14:30:00+02:00 name"),
        ("VID-20190112-WA0003.mp4", "2019-01-12T00:00:00+01:00 name"),
        ("PXL_20190712_143000123.mp4", "2019-07-12T14:30:00+02:00 name"),
        ("Screen Recording 2019-07-12 at 14.30.00.mov", "2019-07-12T14:30:00+02:00 name"),
        ("2019-02-30 or 2018-01-02.mp4", "2018-01-02T00:00:00+01:00 name"),
        ("1968-07-14 wedding.mp4", "1968-07-14T00:00:00+01:00 name"),
        ("20190712/beach.mp4", "2026-03-01T13:00:00+01:00 file"),
        ("19700101_000000.mp4", "2026-03-01T13:00:00+01:00 file"),
        ("20990101_000000.mp4", "2026-03-01T13:00:00+01:00 file"),
        ("2019071214.mp4", "2026-03-01T13:00:00+01:00 file"),
    ],
)
def test_a_name_says_when(name: str, expected: str) -> None:
    assert " ".join(film_date("", name, COPIED)) == expected


@pytest.mark.parametrize(
    ("suffix", "tags", "expected"),
    [
        (".mp4", {"creation_time": "2005-08-01T10:00:00Z"}, "2005-08-01T12:00:00+02:00 container"),
        (
            ".mov",
            {
                "creation_time": "2019-07-12T14:30:00Z",
                APPLE: "2019-07-12T23:30:00+0900",
            },
            "2019-07-12T23:30:00+09:00 container",
        ),
        (".mp4", {"creation_time": "2005-12-31T23:30:00Z"}, "2006-01-01T00:30:00+01:00 container"),
        (".mkv", {"creation_time": "2005-08-01T10:00:00Z"}, "2005-08-01T12:00:00+02:00 container"),
        (".mp4", {"creation_time": "1904-01-01T00:00:00Z"}, "2018-05-06T00:00:00+02:00 name"),
        (".mp4", {"creation_time": "1970-01-01T00:00:00Z"}, "2018-05-06T00:00:00+02:00 name"),
        (".mp4", {"creation_time": "2035-01-01T00:00:00Z"}, "2018-05-06T00:00:00+02:00 name"),
        (".mkv", {"date": "2005-08-01 10:00:00"}, "2005-08-01T10:00:00+02:00 container"),
    ],
)
def test_a_container_says_when(tmp_path: Path, suffix: str, tags: dict[str, str], expected: str) -> None:
    path = dated(film(tmp_path / f"20180506{suffix}", 0), **tags)
    with open_video(path) as video:
        assert " ".join(film_date(video.info.filmed, path.name, COPIED)) == expected


def test_a_film_of_2005_that_was_copied_yesterday_is_found(collection: Collection, tmp_path: Path) -> None:
    """Also in a library that knows no dates yet; its films are described anew, once, and not encoded."""
    dated(collection.films / "red.mp4", creation_time="2005-08-01T10:00:00Z")
    (collection.films / "green.mp4").rename(collection.films / "VID_20040102_030405.mp4")
    os.utime(collection.films / "day 2" / "blue.mp4", ns=(COPIED, COPIED))
    with pytest.MonkeyPatch.context() as patch:  # as the version before
        patch.setattr("prvr_search.store.encoding.FIELDS_VERSION", 2)
        patch.setattr("prvr_search.films.info.container_date", lambda tags: "")
        assert collection.search("red", "--before", "2005-12-31") == ["VID_20040102_030405.mp4"]
    before = {path: path.read_bytes() for path in collection.feature_files}
    assert collection.search("red", "--before", "2006-01-01") == ["red.mp4", "VID_20040102_030405.mp4"]
    after = {path: path.read_bytes() for path in collection.feature_files}
    assert before != after
    assert collection.search("red", "--after", "2006-01-01") == ["day 2/blue.mp4"]
    assert {path: path.read_bytes() for path in collection.feature_files} == after
    assert collection.encodings == 3
    out = collection.search("red", "--json", str(tmp_path / "a.json"), "--csv", str(tmp_path / "a.csv"))
    (answer,) = json.loads((tmp_path / "a.json").read_text())["results"]
    dates = {hit["video"]["id"]: (hit["video"]["filmed"], hit["video"]["filmed_by"]) for hit in answer["hits"]}
    assert dates == {
        "red.mp4": ("2005-08-01T12:00:00+02:00", "container"),
        "VID_20040102_030405.mp4": ("2004-01-02T03:04:05+01:00", "name"),
        "day 2/blue.mp4": ("2026-03-01T13:00:00+01:00", "file"),
    }
    assert len(out) == 3
    assert "2004-01-02T03:04:05+01:00,name" in (tmp_path / "a.csv").read_text()
    table = collection.run("search", str(collection.films), "red", "--encoder", NAME)
    for text in ("2005-08-01\n", "2004-01-02 by name", "2026-03-01 by file"):
        assert text in "\n".join(line.rstrip() for line in table.splitlines()) + "\n", table
