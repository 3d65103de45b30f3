"""The page of `prvr serve` in a real browser: by mouse, by keyboard, and with hostile names."""

import csv
import io
import json
import os
import runpy
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("av")
pytest.importorskip("playwright")

from counting_recogniser import NAME as RECOGNISER
from counting_recogniser import Walls
from PIL import Image
from playwright import sync_api as playwright
from serving import EVIL, GREYS, TOKEN, Served, listening, make_library, shared, wait_for
from video_files import cut, noise, plain, write_video

from prvr_search.films import SubtitleLine, open_video
from prvr_search.output import clock, clock_span
from prvr_search.serve import ServeLimits, ServeSettings

PICTURES = Path(__file__).resolve().parent.parent.parent / "scripts"
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip("no chromium here", allow_module_level=True)
assert CHROMIUM is not None, "CI has no chromium: .ci/run installs it"


@pytest.fixture(scope="module")
def made(_caches: Path, toy_root: Path) -> tuple[Served, list[str]]:
    return shared(_caches, toy_root)


@pytest.fixture(scope="module")
def address(made: tuple[Served, list[str]]) -> Iterator[str]:
    with listening(made[0]) as address:
        yield address


@pytest.fixture(scope="module")
def told(made: tuple[Served, list[str]]) -> list[str]:
    return made[1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


REFUSED = "Failed to load resource"
"""What a browser notes of a request that the server refuses."""


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page in which nothing goes wrong but what a test lets it `expect`."""
    page = browser.new_context().new_page()
    page.said, page.expect = [], "nothing"
    page.on("console", lambda message: page.said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("dialog", lambda dialog: page.said.append(f"dialog {dialog.message}"))
    yield page
    page.context.close()
    expected = (page.expect, "ERR_CONNECTION_REFUSED")  # the server may end before
    assert [text for text in page.said if not any(part in text for part in expected)] == []


FRAME = 0.6
"""Seconds: browsers may begin with the frame before; drawn films have two per second."""
PLAYING = "(v => v && v.played.length && !v.seeking && v.videoWidth && v.currentTime)(document.querySelector('#video'))"
"""Also true after a short moment has ended: under load a second may pass between two looks."""
STANDS = "(v => v.readyState >= 2 && !v.seeking && v.currentTime)(document.querySelector('#video'))"
"""Also where the browser wants a click before it plays."""
VIDEOS = "fetch('/api/videos?%s').then(r => r.json()).then(a => a.videos)"
HITS = "fetch('/api/search?k=31&q=' + encodeURIComponent(%r)).then(r => r.json()).then(a => a.hits)"
TIME = "document.querySelector('#video').currentTime"
WIDTH = "document.documentElement.scrollWidth"
FOCUS = "document.activeElement"


def until(page: Any, true: str, seconds: float = 60.0) -> Any:
    """The value of an expression once it is true; playwright's own way needs `unsafe-eval`, which the page forbids."""
    end = time.monotonic() + seconds
    while not (value := page.evaluate(true)):
        assert time.monotonic() < end, f"{true}: never; {page.said}"
        page.wait_for_timeout(30)
    return value


def number(page: Any, selector: str, count: int) -> None:
    """Waits until there are so many elements."""
    until(page, f"document.querySelectorAll('{selector}').length === {count}")


def shown(name: str) -> str:
    """A name as the page shows it: the file, then its folder."""
    folder, _, file = name.rpartition("/")
    return f"{file} {folder}".rstrip()


def results(page: Any, query: str) -> None:
    """Searches; the box has the focus from the start."""
    page.keyboard.type(query)
    page.keyboard.press("Enter")
    page.wait_for_selector(".card")


def press(page: Any, name: str) -> None:
    """Presses a button by keyboard."""
    page.get_by_role("button", name=name).first.press("Enter")


def test_a_query_and_a_click_play_the_moment(page: Any, address: str, told: list[str]) -> None:
    page.goto(address)
    results(page, told[1])
    best = page.evaluate(HITS % told[1])[0]
    names = page.locator(".card .name").all_text_contents()
    assert names[0] == shown(best["video"]["name"])
    assert page.locator("#results > li").count() == len(names) == 8
    assert "Same content: old.avi" in page.locator(".card", has_text="inner.mp4").text_content()
    assert "10 videos" in page.locator("#status").text_content()
    assert page.locator(".card").first.locator(".strip rect.heat").count() == len(best["relevance"])
    until(page, "document.querySelector('.frame img').naturalWidth")
    page.locator(".open").first.click()
    assert best["start"] - FRAME <= until(page, PLAYING) <= best["end"] + 0.4
    assert page.locator("#playing-name").text_content() == shown(best["video"]["name"])
    # it stops where the moment ends
    page.evaluate(f"{TIME} = {best['end'] - 0.2}")
    until(page, "document.querySelector('#video').paused")
    assert page.evaluate(TIME) == pytest.approx(best["end"], abs=0.4)
    # and goes on when told to
    page.get_by_role("button", name="Continue").click()
    until(page, f"{TIME} > {best['end'] + 0.1}")
    # or again and again
    page.get_by_role("button", name="Loop").click()
    until(page, f"{TIME} < {best['end']}")
    page.evaluate(f"{TIME} = {best['end'] - 0.1}")
    until(page, f"{TIME} < {best['end'] - 0.5}")


def test_all_of_it_by_keyboard(page: Any, address: str, told: list[str]) -> None:
    page.goto(address)
    page.evaluate(f"{FOCUS}.blur()")
    page.keyboard.press("/")
    results(page, told[2])
    best = page.evaluate(HITS % told[2])[0]
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert best["start"] - FRAME <= until(page, PLAYING) <= best["end"] + 0.4
    page.keyboard.press("Escape")
    assert page.locator("#player").is_hidden()
    label = page.evaluate(f"{FOCUS}.getAttribute('aria-label')")  # where one was
    assert label.startswith(f"1. {best['video']['name']}, play ")
    for key in ("Tab", "Home", *["ArrowRight"] * 4, "Enter"):  # its time line
        page.keyboard.press(key)
    assert until(page, PLAYING) == pytest.approx(best["video"]["duration"] / 16, abs=1)


PLAY = """async ([video, second]) => {
  const { playAt } = await import("/static/player.js");
  window.hits ??= {};
  const hit = (hits[video.key] ??= { video, moments: [], relevance: [0, 1], start: 0, end: 1 });
  playAt(hit, [0, 1], second);
}"""


STARTS = {
    "late.webm": (5, "libvpx", ""),
    "hour.mp4": (3600, "libx264", ""),
    "late fragments.mp4": (5, "libx264", "frag_keyframe+delay_moov"),
}
"""Videos of 12 s: their first time stamp in seconds, codec and flags of the container."""
SCREEN = """async () => {
  const video = document.querySelector("#video");
  while (video.seeking || video.readyState < 2) await new Promise((done) => setTimeout(done, 20));
  video.pause();
  await new Promise((done) => setTimeout(done, 150));
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.drawImage(video, 0, 0);
  return canvas.getImageData(30, 20, 1, 1).data[0];
}"""


def test_the_moment_is_on_the_screen_whatever_the_first_time_stamp(page: Any, tmp_path: Path) -> None:
    (tmp_path / "films").mkdir()
    greys = plain(range(10, 250, 2))  # 20 a second
    for name, (start, codec, flags) in STARTS.items():
        times = [1000 * start + 100 * frame for frame in range(120)]
        options = {"movflags": flags} if flags else None
        write_video(tmp_path / "films" / name, greys, times=times, codec=codec, options=options)
    with listening(make_library(tmp_path)) as address:
        page.goto(f"{address}/#q=a+film")
        page.wait_for_selector(".card")
        videos = page.evaluate(VIDEOS % "")
        assert {video["name"] for video in videos} == set(STARTS)
        for video in videos:
            for second in (3.05, 9.05, 1.05):
                page.evaluate(PLAY, [video, second])
                until(page, PLAYING)

                def is_shown(second: float = second) -> bool:  # under load, the frame before may be there still
                    at = (page.evaluate(SCREEN) - 10) / 20
                    cursor = float(page.locator("#playing-strip .strip").get_attribute("aria-valuenow"))
                    return second - 0.25 <= at <= second + 1 and abs(cursor - at) <= 0.3

                wait_for(is_shown)


NGINX = """
daemon off; error_log stderr; pid {folder}/pid;
events {{}}
http {{
  access_log off;
  {temporary}
  server {{
    listen 127.0.0.1:{port};
    location /films/videos/ {{
      proxy_pass {address}/;
      proxy_set_header Host $host;
    }}
  }}
}}
"""


@contextmanager
def behind_nginx(folder: Path, address: str) -> Iterator[str]:
    """A proxy that cuts the path off."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, address=address, temporary=temporary))
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(config)])
    try:
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("proxy", ["", "nginx"])
def test_the_page_below_a_path(page: Any, made: tuple[Served, list[str]], tmp_path: Path, proxy: str) -> None:
    """Of a proxy that passes it on, and of one that cuts it off."""
    if proxy and shutil.which(proxy) is None:
        pytest.skip("no nginx here")
    page.expect = REFUSED  # without the token
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path) if "http" in request.url else None)
    with ExitStack() as stack:
        settings = ServeSettings(token=TOKEN, root_path="/films/videos")
        address = stack.enter_context(listening(made[0], settings))
        if proxy:
            address = stack.enter_context(behind_nginx(tmp_path, address))
        page.goto(f"{address}/films/videos/")
        page.wait_for_selector("#token[open]")
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        until(page, "document.querySelector('.tile img')?.naturalWidth")
        page.get_by_role("searchbox").click()
        results(page, made[1][1])
        until(page, "document.querySelector('.frame img').naturalWidth")
        page.locator(".open").first.click()
        until(page, PLAYING)
    assert {path[: len("/films/videos/")] for path in asked} == {"/films/videos/"}


WATCHED = """
  window.sent = [];
  const real = fetch;
  window.fetch = async (path, options) => {
    if (options?.body) sent.push([...new Uint8Array(await options.body.arrayBuffer())]);
    return real(path, options);
  };
"""
DROP = """bytes => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([new Uint8Array(bytes)], "photo.jpg", { type: "image/jpeg" }));
  document.body.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer }));
}"""


def test_a_picture_is_chosen_dropped_and_taken_away(page: Any, address: str, made: tuple[Served, list[str]]) -> None:
    """It is sent smaller and without what a camera writes beside it."""
    with open_video(made[0].films / "day 1" / "test0000.mp4") as film:
        frame = next(film.excerpt(4.0, 4.0, most=256)).pixels
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "a secret of the camera"
    Image.fromarray(frame).resize((1100, 1100)).save(file, "JPEG", quality=60, exif=exif)
    page.add_init_script(WATCHED)
    page.goto(address)
    page.wait_for_selector("#choose:not([hidden])")
    for kind in ("choose", "drop"):
        if kind == "choose":
            with page.expect_file_chooser() as chooser:
                page.locator("#choose").press("Enter")
            chooser.value.set_files({"name": "photo.jpg", "mimeType": "image/jpeg", "buffer": file.getvalue()})
        else:
            page.evaluate(DROP, [*file.getvalue()])
        page.wait_for_selector(".card")
        assert page.locator(".card .name").first.text_content() == "test0000.mp4 day 1"
        assert page.locator("#asked").text_content().strip() == "like photo.jpg"
        content = bytes(page.evaluate("window.sent.pop()"))
        assert b"secret" not in content
        assert max(Image.open(io.BytesIO(content)).size) == 1024
        press(page, "Remove")
        until(page, "document.querySelector('#welcome').checkVisibility()")


def test_more_like_this_and_options(page: Any, address: str, told: list[str]) -> None:
    """By keyboard; they apply as they are typed."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/search?" in request.url else None)
    page.goto(address)
    results(page, told[1])
    first = page.locator(".card .name").first.text_content()
    press(page, "More like")
    until(page, "document.querySelector('#asked-text').textContent.includes('excludes that video')")
    until(page, "document.querySelector('#results').getAttribute('aria-busy') === null")
    assert first not in page.locator(".card .name").all_text_contents()
    press(page, "Options")
    for text in ("blue", "day 1", "*.mp4"):  # without, folder, file name
        page.keyboard.type(text)
        page.keyboard.press("Tab")
    page.locator("#more [name=longer]").fill("0.1")
    page.locator("#more [name=after]").fill("2001-01-01")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.card').length <= 1")
    query = parse_qs(urlsplit(asked[-1]).query)
    assert (query["without"], query["in"], query["name"], query["longer"]) == (["blue"], ["day 1"], ["*.mp4"], ["6"])
    assert query["after"][0].startswith(("2000-12-31T", "2001-01-01T"))
    assert "like" in query
    page.reload()
    until(page, "document.querySelector('#more [name=without]').value === 'blue'")
    press(page, "Options")
    press(page, "Clear options")
    until(page, "document.querySelectorAll('.card').length > 2")
    page.locator("#more [name=name]").focus()
    page.keyboard.type("*.avi")
    number(page, ".card", 1)
    page.go_back()  # what was typed in between is no step back
    until(page, "document.querySelectorAll('.card').length > 2")


def test_what_is_said_is_found_and_played(page: Any, tmp_path: Path) -> None:
    """Lines stand below the player, as text; a click on one plays from there."""
    (tmp_path / "films").mkdir()
    lines = "00:01.000 --> 00:02.000\nfirst line\n\n00:04.000 --> 00:05.000\n<b>second</b> & 'last' line\n"
    (tmp_path / "films" / "talk.vtt").write_text(f"WEBVTT\n\n{lines}")
    write_video(tmp_path / "films" / "mute.mp4", GREYS)
    with listening(make_library(tmp_path, "talk.mp4", frames=plain(range(60, 180)))) as address:
        page.goto(address)
        press(page, "Options")
        page.get_by_role("textbox", name="Subtitles").fill("second")
        page.keyboard.press("Enter")
        page.wait_for_selector(".card")
        assert page.locator(".card .name").all_inner_texts() == ["talk.mp4"]
        page.locator(".card .spoken").click()
        until(page, f"({PLAYING}) >= 3.9")
        buttons = page.locator("#lines button")
        buttons.nth(1).wait_for()
        assert buttons.all_inner_texts() == ["0:01 first line", "0:04 second & 'last' line"]
        assert page.locator("#lines .match").all_inner_texts() == ["0:04 second & 'last' line"]
        buttons.first.click()
        until(page, f"(t => t > 0.9 && t < 3)({TIME})")


def test_what_was_found_by_what_is_said_plays_there(page: Any, tmp_path: Path) -> None:
    """And says so, in place of the score of its picture."""
    (tmp_path / "films").mkdir()
    text = "WEBVTT\n\n00:04.000 --> 00:05.000\na red circle rises\n"
    (tmp_path / "films" / "talk.vtt").write_text(text)
    write_video(tmp_path / "films" / "mute.mp4", GREYS)
    with listening(make_library(tmp_path, "talk.mp4", frames=plain(range(60, 180)))) as address:
        page.goto(f"{address}/#q=a+red+circle+rises")
        card = page.locator(".card", has_text="talk.mp4")
        card.wait_for()
        assert card.locator(".score").text_content() == "by subtitles"
        assert card.locator(".badge").text_content() == "0:04 – 0:05"
        assert page.locator(".card", has_text="mute.mp4").locator(".score").text_content().startswith("score ")
        card.locator(".open").click()
        assert 3.9 <= until(page, PLAYING) <= 5.4


def test_what_a_recogniser_gave_says_so(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is saved."""
    heard = [SubtitleLine(4.0, 5.0, "a red circle rises", kind="said")]
    monkeypatch.setattr(Walls, "recognise", lambda self, video: heard)
    served = make_library(tmp_path, "talk.mp4", frames=plain(range(60, 180)))
    with served.library() as library:
        library.recognise(RECOGNISER)
    with listening(served) as address:
        page.goto(f"{address}/#q=a+red+circle+rises")
        card = page.locator(".card", has_text="talk.mp4")
        card.wait_for()
        assert card.locator(".score").text_content() == "said"
        assert card.locator(".spoken").text_content() == "0:04 said: “a red circle rises”"
        with page.expect_download() as download:
            press(page, "CSV")
        download.value.save_as(tmp_path / "results.csv")
        (row,) = csv.DictReader((tmp_path / "results.csv").read_text("utf-8").splitlines())
        assert [row[name] for name in ("line", "line_kind", "start")] == ["a red circle rises", "said", "4.000"]
        card.locator(".spoken").click()
        page.locator("#lines button").wait_for()
        assert page.locator("#lines .match").all_inner_texts() == ["0:04 said: a red circle rises"]


def test_a_link_leads_to_a_moment(page: Any, address: str, told: list[str]) -> None:
    """The address follows what is opened; reload, Back and a new tab show the same."""
    page.goto(address)
    results(page, told[1])
    best = page.evaluate(HITS % told[1])[0]
    page.locator(".open").first.click()
    until(page, PLAYING)
    link = parse_qs(urlsplit(page.url).fragment)
    assert (link["play"], link["q"]) == ([best["video"]["key"]], [told[1]])
    assert [float(link[name][0]) for name in ("from", "to")] == pytest.approx([best["start"], best["end"]], abs=0.01)
    page.reload()
    assert best["start"] - FRAME <= until(page, STANDS) <= best["end"] + 0.4
    assert page.locator("li[aria-current] .name").text_content() == shown(best["video"]["name"])
    page.locator(".open").nth(1).click()
    until(page, f"document.querySelector('#playing-name').textContent !== {shown(best['video']['name'])!r}")
    page.go_back()
    until(page, f"document.querySelector('#playing-name').textContent === {shown(best['video']['name'])!r}")
    page.go_back()
    until(page, "document.querySelector('#player').hidden")
    assert page.locator(".card").count() > 1
    other = page.context.new_page()  # without results, as somebody wrote it down
    other.goto(f"{address}/#play={best['video']['key']}&from=3.5")
    assert until(other, STANDS) >= 3.5 - FRAME
    assert other.locator("#playing-name").text_content() == shown(best["video"]["name"])
    other.keyboard.press("Escape")
    until(other, "location.hash === ''")
    other.goto(f"{address}/#play={'0' * 24}&from=1")
    other.locator("#problem", has_text="no such video").wait_for()


def test_clips_and_results_are_saved(page: Any, address: str, told: list[str], tmp_path: Path) -> None:
    """Of a film that browsers cannot play, too; and results in the order in which they are shown."""
    page.goto(address)
    results(page, "a film of red")
    page.locator(".card", has_text="inner.mp4").locator(".open").click()
    until(page, PLAYING)
    with page.expect_download() as download:
        press(page, "Save clip")
    assert download.value.suggested_filename.startswith("inner ")
    download.value.save_as(tmp_path / "clip.mp4")
    with open_video(tmp_path / "clip.mp4") as film:
        assert film.info.comment == "clip by prvr"
        assert film.info.width == 64
    page.keyboard.press("Escape")
    ranks = "[...document.querySelectorAll('.card .rank')].map(rank => rank.textContent)"
    assert page.evaluate(ranks) == [str(rank + 1) for rank in range(page.locator(".card").count())]
    page.locator("#order select").select_option("oldest")
    dates = page.evaluate("[...document.querySelectorAll('.card time')].map(date => Date.parse(date.dateTime))")
    assert dates == sorted(dates)
    assert page.locator(".card time").first.text_content().endswith(" by file")
    with page.expect_download() as download:
        press(page, "CSV")
    download.value.save_as(tmp_path / "results.csv")
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [shown(row["path"].lstrip("'")) for row in rows] == page.locator(".card .name").all_text_contents()
    assert {row["query"] for row in rows} == {"a film of red"}
    otio: Any = pytest.importorskip("opentimelineio")
    with page.expect_download() as download:
        press(page, "OTIO")
    download.value.save_as(tmp_path / "results.otio")
    clips = otio.adapters.read_from_file(str(tmp_path / "results.otio")).find_clips()
    media = [unquote(clip.media_reference.target_url) for clip in clips]
    assert media == [row["path"].lstrip("'") for row in rows]
    names = page.locator(".card .name").all_text_contents()
    page.reload()
    page.locator(".card").first.wait_for()
    assert page.locator("#order select").input_value() == "-1"
    assert page.locator(".card .name").all_text_contents() == names


def test_a_film_that_was_replaced_or_is_damaged_says_so(page: Any, tmp_path: Path) -> None:
    """No browser is blamed for it."""
    page.expect = REFUSED
    (tmp_path / "films").mkdir()
    write_video(tmp_path / "films" / "gone.mp4", noise(30, seed=1))
    served = make_library(tmp_path, "replaced.mp4")
    whole = write_video(tmp_path / "whole.mkv", noise(100), codec="mpeg4")
    cut(whole, served.films / "damaged.mkv", 0.5)
    make_library(tmp_path)
    with listening(served) as address:
        write_video(served.films / "replaced.mp4", noise(20))
        (served.films / "gone.mp4").unlink()
        page.goto(f"{address}/#q=a+film")
        for name, text in (("replaced", "changed after it was encoded"), ("gone", "was moved or deleted")):
            card = page.locator(".card", has_text=f"{name}.mp4")
            card.locator(".why", has_text=text).wait_for()
            card.locator(".open").click()
            page.locator("#playing-note", has_text=f"This file {text}.").wait_for()
        page.locator(".card", has_text="damaged.mkv").locator(".open").click()
        page.locator("#playing-note", has_text="A preview: this file is damaged (").wait_for()
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate(WIDTH) <= 360


def test_first_this_then_that(page: Any, address: str, told: list[str]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/search?" in request.url else None)
    page.goto(address)
    results(page, told[1])
    press(page, "Options")
    page.locator("#more [name=then]").fill(told[2])
    page.locator("#more [name=within]").fill("7.5")
    page.keyboard.press("Enter")
    until(page, f"document.title.includes({told[2]!r})")
    query = parse_qs(urlsplit(asked[-1]).query)
    assert (query["then"], query["within"]) == ([told[2]], ["7.5"])


def test_names_queries_and_mistakes_are_text(page: Any, address: str) -> None:
    """No dialog opens, and there is nothing that the policy has to stop."""
    page.expect = REFUSED
    page.goto(address)
    page.keyboard.type("!!!")
    page.keyboard.press("Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert "no word" in page.locator("#problem").text_content()
    page.keyboard.press("Control+a")
    results(page, "<img src=x onerror=alert(2)> red")
    names = page.locator(".card .name").all_text_contents()
    assert EVIL in names
    page.locator(".card").nth(names.index(EVIL)).locator(".open").click()
    until(page, "document.querySelector('#playing-name').textContent")
    assert page.locator("#playing-name").text_content() == EVIL
    assert page.locator("img[src=x]").count() == 0


def test_the_first_screen_shows_the_collection(page: Any, address: str) -> None:
    """A click plays a video; of one that the browser cannot play a preview."""
    page.goto(address)
    until(page, "[...document.querySelectorAll('.tile img')].some(picture => picture.naturalWidth)")
    newest = page.evaluate(VIDEOS % "newest=true")
    assert page.locator(".tile .name").all_text_contents() == [shown(video["name"]) for video in newest]
    page.locator(".tile", has_text="old.avi").click()
    until(page, PLAYING)
    why = "A preview: this browser cannot play this .avi file (mpeg4). Download the file to open it in a player."
    until(page, f"document.querySelector('#playing-note').textContent === {why!r}")
    assert page.evaluate("document.querySelector('#video').src.startsWith('blob:')")
    page.keyboard.press("Escape")
    page.locator(".try a:visible").first.click()
    page.wait_for_selector(".card")
    assert page.get_by_role("searchbox").input_value() == "a red circle rises"


def test_all_videos_can_be_reached_and_found_by_name(page: Any, tmp_path: Path) -> None:
    """Page by page; a name in the box finds the file, whatever its letters."""
    films = tmp_path / "films"
    films.mkdir()
    for film in range(25):
        write_video(films / f"Straße {film:02}.mp4", noise(8 + film, seed=film))
    with listening(make_library(tmp_path)) as address:
        page.goto(address)
        number(page, ".tile", 24)
        press(page, "More videos")
        number(page, ".tile", 25)
        page.get_by_role("searchbox").focus()
        results(page, "strasse")
        number(page, "#named .tile", 4)
        assert page.locator("#named h2").text_content() == "25 videos have this in the name"
        hits = page.evaluate(HITS % "strasse")
        assert len(hits) > 20
        press(page, "More results")
        number(page, ".card", len(hits))


def test_times_are_those_of_the_terminal(page: Any, address: str) -> None:
    parts = (0.0, 1e-7, 0.02, 0.04, 0.05, 0.5, 0.94, 0.97, 1 - 1e-7)
    edges = [second + part for second in (0, 59, 60, 3599, 3600, *range(61, 40_000, 1301)) for part in parts]
    spans = [(start, start + length) for start in edges for length in (0.0, 1e-7, 0.03, 0.5, 1.0, 2.97, 61.04)]
    page.goto(address)
    times, texts = page.evaluate(
        """async ([times, spans]) => {
          const { clock, span } = await import("/static/strip.js");
          return [times.map(clock), spans.map(([start, end]) => span({ start, end }))];
        }""",
        [edges, spans],
    )
    assert times == [clock(edge) for edge in edges]
    assert [text.replace(" – ", "-") for text in texts] == [clock_span(*span) for span in spans]


ONES = ("results", "moments", "batch", "body_bytes", "search_waiting", "media_threads", "media_waiting")
LEAST = ServeLimits(
    **dict.fromkeys(ONES, 1), query_characters=12, connections=8, client_connections=0, preview_seconds=0.1,
    preview_pixels=16, cache_bytes=0,
)  # fmt: skip


def test_the_page_keeps_to_the_limits_of_the_server_and_asks_for_its_token(
    page: Any, made: tuple[Served, list[str]]
) -> None:
    page.expect = REFUSED
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with listening(made[0], ServeSettings(token=TOKEN, session_seconds=365 * 24 * 3600, limits=LEAST)) as address:
        page.goto(address)
        page.wait_for_selector("#token[open]")
        page.keyboard.type("a wrong one")
        page.keyboard.press("Enter")
        page.wait_for_selector("#token-wrong:not([hidden])")
        page.keyboard.press("Control+a")
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        until(page, "document.querySelector('#query').maxLength > 0")
        assert page.evaluate("document.cookie") == ""  # no script can read it
        page.get_by_role("searchbox").click()
        results(page, "a film of a red square that is a little longer")
        assert page.get_by_role("searchbox").input_value().strip() == "a film of a"
        assert page.locator(".card").count() == 1
        page.locator(".open").first.click()
        until(page, PLAYING)
        page.reload()  # it is kept in this tab
        page.wait_for_selector(".card")
        other = page.context.new_page()  # and in no other
        other.goto(address)
        other.wait_for_selector("#token[open]")
    assert len([url for url in asked if url.endswith("/api/session")]) <= 6  # the timer of a year is no loop


@pytest.mark.parametrize("picture", ["serve-results.png", "serve-playing.png"])
def test_pictures_of_the_documentation_show_the_words_of_the_page(
    page: Any, address: str, told: list[str], picture: str
) -> None:
    """Fails where a word on a picture has left the page: `make pictures` takes them again."""
    record = json.loads((PICTURES.parent / "docs" / "images" / "records.json").read_text())[picture]
    pictures = runpy.run_path(str(PICTURES / "pictures.py"))
    page.set_viewport_size({"width": 1280, "height": 860})
    page.goto(address)
    pictures["ask"](page, told[0], playing="playing" in picture)
    assert {"Search", "Options", "score #"} <= set(record["labels"])
    assert set(record["labels"]) - {"More results"} <= set(pictures["labels"](page))
