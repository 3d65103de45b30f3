"""What is said in videos: subtitles beside them and inside them are found with their moments, and followed."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import explained
from counting_encoder import NAME, film
from film_collections import with_track

from prvr.cli import main
from prvr_search import Library, Query
from prvr_search import library as library_module
from prvr_search.store.features import encoder_key

av = pytest.importorskip("av")
ENGLISH = "1\n00:00:01,000 --> 00:00:02,000\n<i>Whoever</i> holds the {\\an8}lantern\n\n"
GERMAN = (
    "1\n00:00:00,500 --> 00:00:01,500\nDie Kühe stehen\nauf der Wiese\n\n2\n00:00:02,000 --> 00:00:03,000\nGuten Tag\n"
)
WEB = "WEBVTT\n\n00:01.500 --> 00:03.000 align:start\n<v Ada>It is the <b>harbour</b> &amp; the sea\n"
DRAWN = (
    "[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name, Fontname, Fontsize\nStyle: Default,Arial,20\n\n"
    "[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
    "Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,{\\p1}m 0 0 l 9 9{\\p0}\n"
    "Dialogue: 0,0:00:02.00,0:00:03.50,Default,,0,0,0,,{\\i1}A{\\i0} quiet\\Nlibrary\n"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six films of four seconds, three of which have no subtitles that can be read."""
    folder = tmp_path_factory.mktemp("subtitles")
    for number, name in enumerate(("lantern.mp4", "day 2/cows.mp4", "harbour.mp4", "broken.mp4", "silent.mp4")):
        film(folder / name, number % 3, 100 + 20 * number)
    (folder / "lantern.en.srt").write_text(ENGLISH, "utf-16")
    (folder / "day 2" / "cows.de.srt").write_bytes(GERMAN.encode("latin-1"))
    (folder / "harbour.en.sdh.vtt").write_bytes(b"\xef\xbb\xbf" + WEB.encode())
    (folder / "broken.srt").write_bytes(bytes(range(256)) * 8)
    with_track(film(folder / "copied.mp4", 0, 90), folder / "inside.mkv", DRAWN, "eng")
    return folder


@pytest.fixture
def films(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of these films, and no library of them."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(made, tmp_path / "films")


def timed(text: str, number: int = 1) -> str:
    """A line of SubRip that is shown for a second."""
    second = f"00:{number // 60:02}:{number % 60:02}"
    return f"{number}\n{second},000 --> {second},900\n{text}\n\n"


def said(films: Path, name: str) -> list[str]:
    """The texts that a library has of a video."""
    with Library(films, encoder=NAME) as library:
        return [line.text for line in library.store.lines.of(library.features().entries[name].sha256)]


def search(folder: Path, *options: str, encoder: str | None = NAME) -> list[dict[str, Any]]:
    """The hits of the command, as it writes them."""
    answer = folder.parent / "answer.json"
    options += ("--encoder", encoder) if encoder else ()
    assert main(["search", str(folder), *options, "--json", str(answer)]) == 0
    return json.loads(answer.read_text())["results"][0]["hits"]


def names(hits: Sequence[dict[str, Any]]) -> list[str]:
    return [hit["video"]["id"] for hit in hits]


def test_a_line_is_found_with_its_moment(films: Path) -> None:
    """In two languages, in three encodings, beside the video and inside it."""
    for words, video, start, end, text, language in (
        ("LANTERN", "lantern.mp4", 1.0, 2.0, "Whoever holds the lantern", "en"),
        ("kuhe wiese", "day 2/cows.mp4", 0.5, 1.5, "Die Kühe stehen auf der Wiese", "de"),
        ("the harbour", "harbour.mp4", 1.5, 3.0, "It is the harbour & the sea", "en"),
        ("quiet library", "inside.mkv", 2.0, 3.5, "A quiet library", "eng"),
    ):
        hits = search(films, "--subtitles", words)
        assert names(hits) == [video]
        assert (hits[0]["start"], hits[0]["end"]) == (start, end)
        assert hits[0]["lines"] == [{"start": start, "end": end, "text": text, "language": language, "kind": ""}]
        first, *_ = search(films, words)  # as a sentence, which is about the picture too
        assert (first["video"]["id"], first["start"], first["end"]) == (video, start, end)


def test_a_line_that_is_shown_past_the_end_of_its_video_ends_with_it(films: Path) -> None:
    later = "2\n00:00:07,000 --> 00:00:09,000\nThe cellar\n\n"
    (films / "lantern.en.srt").write_text(f"1\n00:00:02,000 --> 00:00:06,000\nInto the attic\n\n{later}")
    (hit,) = search(films, "--subtitles", "attic")
    assert (hit["start"], hit["end"]) == (2.0, hit["video"]["duration"]) == (2.0, 4.0)
    assert not search(films, "--subtitles", "cellar")


def test_a_broken_file_costs_one_warning_and_the_video_is_searched(
    films: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "broken.mp4" in names(search(films, "something red"))
    assert capsys.readouterr().err.count("broken.srt: not subtitles") == 1
    search(films, "something red")
    assert "broken.srt" not in capsys.readouterr().err
    (films / "broken.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nmended\n")
    assert names(search(films, "--subtitles", "mended")) == ["broken.mp4"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8")
def test_a_film_whose_name_is_not_utf_8_has_its_subtitles(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in (".mp4", ".en.srt"):
        (films / f"lantern{suffix}").rename(films / f"lantern \udcff\n{suffix}")
    for _ in range(2):
        assert names(search(films, "--subtitles", "lantern")) == ["lantern \\udcff\n.mp4"]
    (films / "lantern \udcff\n.en.srt").unlink()
    assert search(films, "--subtitles", "lantern") == []


CHINESE = ["晚上好，请进来吧。", "我们明天早上去城里。"]
JAPANESE = ["こんばんは、お元気ですか。", "明日の朝、町へ行きます。", "どうぞお入りください。", "本当にありがとう。"]
FRENCH = ["Où êtes-vous allés hier soir ?", "À l’hôtel, près du café."]


@pytest.mark.parametrize(
    ("encoding", "texts"),
    [("gb18030", CHINESE), ("shift_jis", JAPANESE), ("cp1252", FRENCH)],
)
def test_other_encodings_are_guessed_with_one_warning(
    encoding: str, texts: list[str], films: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("chardet")
    content = "".join(timed(text, number) for number, text in enumerate(texts))
    (films / "silent.srt").write_bytes(content.encode(encoding))
    search(films, "something red")
    assert capsys.readouterr().err.count("silent.srt: not UTF-8; it was read as") == 1
    assert said(films, "silent.mp4") == texts


def test_words_are_found_inside_a_line_without_spaces(films: Path) -> None:
    lines = [*CHINESE, *JAPANESE, "Tokyo 東京 2024"]
    content = "".join(timed(text, number // 2) for number, text in enumerate(lines))
    (films / "silent.srt").write_text(content, "utf-8")
    search(films, "something red")
    for words, text in {"早上": CHINESE[1], "早": CHINESE[1], "お元気": JAPANESE[0], "町へ": JAPANESE[1]}.items():
        hits = search(films, "--subtitles", words)
        assert names(hits) == ["silent.mp4"]
        assert [line["text"] for line in hits[0]["lines"]] == [text]
    assert names(search(films, "--subtitles", "tokyo 京")) == ["silent.mp4"]
    assert names(search(films, "--subtitles", "上早")) == []


def said_on(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed on standard error, without line breaks."""
    return " ".join(capsys.readouterr().err.split())


def test_lines_have_the_time_of_the_pictures_wherever_the_clock_of_a_file_begins(films: Path) -> None:
    with_track(film(films / "copied.mp4", 0, 90), films / "late.mkv", DRAWN.replace("quiet", "later"), "eng", begins=5)
    with Library(films, encoder=NAME) as library:
        (line,) = library.search(Query(subtitles="later library")).hits[0].lines
    assert (line.start, line.end) == (2.0, 3.5)


def test_pictures_and_lines_are_joined(films: Path) -> None:
    """A line lifts a video, and of a query with `said` the sentence is about the picture alone."""
    (films / "silent.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nsomething red is sold\n")
    pictured = names(search(films, "a red thing"))  # a line has one of the words
    assert pictured[0] != "silent.mp4"
    joined = search(films, "something red")
    assert joined[0]["video"]["id"] == "silent.mp4"
    assert sorted(names(joined)) == sorted(pictured)
    assert [hit["lines"] != [] for hit in joined] == [True, *[False] * 5]
    both = search(films, "a red thing", "--subtitles", "Wiese")
    assert both[0]["lines"][0]["language"] == "de"


def test_lines_alone_need_no_encoder(
    films: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor a model; and what is encoded later is encoded as ever."""
    monkeypatch.setenv("ENCODED", str(log := films.parent / "encoded"))
    (films / "torn.mp4").write_bytes((films / "silent.mp4").read_bytes()[:200])
    (films / "torn.srt").write_text(ENGLISH)
    expected = {"LANTERN": "lantern.mp4", "guten tag": "day 2/cows.mp4", "quiet library": "inside.mkv"}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        before = {words: search(films, "--subtitles", words, encoder=None) for words in expected}
        assert {words: names(hits) for words, hits in before.items()} == {w: [name] for w, name in expected.items()}
        assert search(films, "--subtitles", "lantern", "--name", "day*", encoder=None) == []
        assert "torn.mp4" in capsys.readouterr().err
        with Library(films) as library:
            assert (library.spec, library.state().films) == (None, [])
    assert not log.exists()
    with Library(films, encoder=NAME) as library:
        assert len(library.search("something red").hits) == 6
    assert len(log.read_text().splitlines()) == 6


@pytest.mark.parametrize("update", [True, False])
def test_a_search_of_lines_lists_the_folder_once(update: bool, films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(films, "--subtitles", "lantern", encoder=None)
    listings, list_videos = [], library_module.list_videos
    monkeypatch.setattr(library_module, "list_videos", lambda *args: listings.append(args) or list_videos(*args))
    with Library(films) as library:
        assert library.search(Query(subtitles="lantern"), update=update).hits
    assert len(listings) == 1


def test_lines_follow_their_files(films: Path) -> None:
    search(films, "something red")
    assert names(search(films, "--subtitles", "lantern")) == ["lantern.mp4"]
    path = films / "lantern.en.srt"
    path.write_text(ENGLISH.replace("lantern", "candle"))
    assert search(films, "--subtitles", "lantern") == []
    assert names(search(films, "--subtitles", "candle")) == ["lantern.mp4"]
    path.unlink()
    assert search(films, "--subtitles", "candle") == []
    (films / "inside.mkv").unlink()
    assert main(["library", str(films), "--prune"]) == 0
    with Library(films) as library:
        assert library.store.lines.find("library", library.store.lines.videos()) == []


def test_a_renamed_video_keeps_its_track(films: Path) -> None:
    search(films, "something red")
    (films / "inside.mkv").rename(films / "day 2" / "renamed.mkv")
    assert names(search(films, "--subtitles", "library")) == ["day 2/renamed.mkv"]


def test_a_query_has_no_operators(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no line has all words, those count that have one."""
    for words in ('"lantern', "lantern OR", "NOT lantern)"):
        assert names(search(films, "--subtitles", words))[0] == "lantern.mp4"
    assert search(films, "--subtitles", '"" AND NOT (') == []
    capsys.readouterr()
    assert "without" in explained(
        ["search", str(films), "--subtitles", "a", "--without", "b", "--encoder", NAME], capsys
    )


def test_a_library_of_an_older_version_learns_what_is_said(films: Path) -> None:
    search(films, "something red")
    with Library(films, encoder=NAME) as library:
        store, spec = library.store, library.spec
        for film in store.films(encoder_key(spec)).values():
            rows = store.read(encoder_key(film.spec), film.sha256).rows
            store.add(replace(film, version=1, codec="unknown"), rows)
    search(films, "something red")
    with Library(films, encoder=NAME) as library:
        assert {entry.codec for entry in library.features().entries.values()} == {"h264"}
    assert names(search(films, "--subtitles", "library")) == ["inside.mkv"]
    assert names(search(films, "--subtitles", "lantern")) == ["lantern.mp4"]


def test_the_api_finds_lines(films: Path) -> None:
    pytest.importorskip("fastapi")
    from serving import HOST, Served, app_of
    from starlette.testclient import TestClient

    search(films, "something red")
    served = Served(films, films.parent / "data" / "prvr" / "library", NAME)
    with TestClient(app_of(served), base_url=HOST) as client:
        line = {"start": 0.5, "end": 1.5, "text": "Die Kühe stehen auf der Wiese", "language": "de", "kind": ""}
        (hit,) = client.get("/api/search", params={"subtitles": "kühe"}).json()["hits"]
        assert (hit["video"]["name"], hit["lines"]) == ("day 2/cows.mp4", [line])
        lines = client.get(f"/api/videos/{hit['video']['key']}/lines").json()
        assert [(each["start"], each["text"]) for each in lines] == [(0.5, line["text"]), (2.0, "Guten Tag")]


def test_times_that_no_player_can_show(films: Path) -> None:
    """A line that ends before it begins lasts two seconds; one after the end of the video is in no result."""
    (films / "silent.srt").write_text("1\n00:00:01,000 --> 00:00:00,500\nbackwards\n")
    (films / "broken.srt").write_text("1\n00:09:00,000 --> 00:09:01,000\nbeyond the end\n")
    assert [(hit["start"], hit["end"]) for hit in search(films, "--subtitles", "backwards")] == [(1.0, 3.0)]
    assert search(films, "--subtitles", "beyond") == []


ENDLESS = ("<a", "{\\", "{\\p1", "{", "{\\p1\\p1}", "<")


def test_tags_without_an_end_take_no_time(films: Path) -> None:
    """The work grows with the size of a file, also where each of many thousand tags might go on to the end."""
    texts = ["the lighthouse", *([unit * (60_000 // len(unit)) for unit in ENDLESS] * 8)]
    (films / "silent.srt").write_text("".join(timed(text, number) for number, text in enumerate(texts)))
    begin = time.monotonic()
    hits = search(films, "--subtitles", "lighthouse")
    assert time.monotonic() - begin < 10
    assert [Path(name).stem for name in names(hits)] == ["silent"]
    assert hits[0]["lines"][0]["text"] == "the lighthouse"


def test_tags_and_drawings_are_no_words(films: Path) -> None:
    texts = {
        "<i>One</i> {\\an8}{note} 1 < 2": "One 1 < 2",
        "{\\i1}{\\p1}m 0 0 l 9 9{\\p0\\b1}two{\\b0}": "two",
        "{\\pos(1,2)}three{\\p1}m 0 0": "three",
        "four{\\an <b>end</b>": "four{\\an end",
    }
    content = DRAWN[: DRAWN.index("Dialogue")]
    for number, text in enumerate(texts):
        content += f"Dialogue: 0,0:00:0{number}.00,0:00:0{number}.50,Default,,0,0,0,,{text}\n"
    (films / "silent.ass").write_text(content)
    search(films, "something red")
    assert said(films, "silent.mp4") == [*texts.values()]


def test_a_file_gives_no_more_lines_than_there_may_be(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is within the limits is found, and one warning tells of the rest."""
    long = "word " * 20_000  # more than a line may have
    (films / "silent.srt").write_text(timed("before") + timed(long, 2) + timed("after", 3))
    (films / "lantern.srt").write_text("".join(timed("x" * 2**15, n) for n in range(300)))  # more than 2**23 bytes
    search(films, "something red")
    printed = said_on(capsys)
    assert printed.count("silent.srt: more subtitles than are read") == 1
    assert printed.count("lantern.srt: more subtitles than are read") == 1
    assert said(films, "silent.mp4") == ["before", "after"]
    assert len(said(films, "lantern.mp4")) == 257  # one of lantern.en.srt


def test_a_track_that_cannot_be_read_costs_nothing_else(
    films: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(file: Any) -> None:
        raise RuntimeError("no sense in it")

    monkeypatch.setattr("prvr_search.store.encoding.read_tracks", fail)  # no file here does it
    assert len(search(films, "something red")) == 6
    assert said_on(capsys).count("inside.mkv: its text tracks cannot be read (no sense in it)") == 1
