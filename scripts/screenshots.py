"""The pictures of the page in the documentation: drawn videos, a server, a browser.

    python scripts/screenshots.py [--out docs/images] [--videos 40]

Needs `prvr-search[serve]`, playwright, and Debian's chromium (or another one: --browser).
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from prvr.toy import write_corpus
from prvr_search import Library
from prvr_search.films.toy_videos import write_videos
from prvr_search.serve import serve

SIZES = {"results": (1280, 860, "light"), "playing": (1280, 860, "light"), "phone": (390, 844, "dark")}


def make_videos(work: Path, videos: int) -> tuple[Path, list[str]]:
    corpus = write_corpus(work, "tiny")
    test = corpus.split("test")
    names = test.video_ids[:videos]
    return write_videos(corpus, names), [caption.text for caption in test.captions if caption.video_id in names]


def address_of(folder: Path, home: Path) -> str:
    """The address of a server that ends with this process."""
    addresses: list[str] = []
    # signals are the main thread's: this one only serves
    threading.Thread(target=_serve, args=(folder, home, addresses.append), daemon=True).start()
    while not addresses:
        time.sleep(0.05)
    return addresses[0]


def _serve(folder: Path, home: Path, started: Any) -> None:
    with Library(folder, model="toy-world", encoder="toy", home=home) as library:
        library.update()
        serve(library, port=0, started=started)


def pictures(address: str, query: str, out: Path, browser: str) -> None:
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, (width, height, scheme) in SIZES.items():
            page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(address)
            page.get_by_role("searchbox").fill(query)
            page.keyboard.press("Enter")
            page.wait_for_selector(".card")
            wait(page, "[...document.querySelectorAll('.frame img')].slice(0, 5).every(i => i.naturalWidth)")
            if name != "results":
                page.locator(".open").first.click()
                wait(page, "document.querySelector('video').currentTime > 0")
                wait(page, "document.querySelector('video').paused")  # at the end of the moment
            page.mouse.move(5, height - 5)
            page.wait_for_timeout(300)
            target = out / f"serve-{name}.png"
            page.screenshot(path=target)
            print(f"{target}: {target.stat().st_size / 1000:.0f} kB")
        chromium.close()


def wait(page: Any, true: str, seconds: float = 30.0) -> None:
    """Until an expression is true: playwright's own way evaluates strings in the page, which its CSP forbids."""
    until = time.monotonic() + seconds
    while not page.evaluate(true):
        if time.monotonic() > until:
            sys.exit(f"it never came: {true}")
        page.wait_for_timeout(50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--videos", type=int, default=40)
    parser.add_argument("--query", help="default: a sentence about one of them")
    parser.add_argument("--folder", type=Path, help="of toy videos, instead of ones that are drawn")
    parser.add_argument("--browser", default=shutil.which("chromium"))
    args = parser.parse_args()
    if args.browser is None:
        sys.exit("no chromium here: name one with --browser")
    with tempfile.TemporaryDirectory() as work:
        folder, captions = (args.folder, []) if args.folder else make_videos(Path(work), args.videos)
        pictures(address_of(folder, Path(work) / "library"), args.query or captions[0], args.out, args.browser)


if __name__ == "__main__":
    main()
