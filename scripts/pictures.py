"""Make the pictures of the documentation again: docs/images, with a record of each in docs/images/records.json.

    python scripts/pictures.py [NAME ...] [--all] [--again]

Without names: the page in a browser and the import graph, where a file that they are made of has changed
since (`--again`: all of them); with `--all` also those that need training, some of them half an hour. Needs the
packages with all extras, playwright, Debian's chromium (or --browser), and Graphviz for the import graph.

A record holds the command, the sha256 of the files that the picture was made of, and for the page the words of its
buttons, labels and notes. Tests compare the words with those of the page, and the arrows with those of the packages.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
RECORDS = IMAGES / "records.json"

LABELS = """() => [...document.querySelectorAll("button, label, legend, summary, h1, h3, th, p, .score, [placeholder]")]
  .filter(e => e.checkVisibility({ visibilityProperty: true }) && e.id !== "status")
  .flatMap(e => [e.placeholder, e.innerText]).filter(Boolean)
  .map(text => text.trim().split("\\n")[0].replace(/[0-9][0-9.,:–-]*/g, "#"))"""
"""In the page: the visible words of buttons, labels and notes, with `#` for numbers."""


def labels(page: Any) -> list[str]:
    """The words of the page itself: without names of files, times and lines of subtitles."""
    words = set(page.evaluate(LABELS))
    return sorted(word for word in words if re.search(r"[A-Za-z]{2}", word) and not re.search(r"[“#]\w|\w#", word))


# --- the page ---------------------------------------------------------------------------------------------------------

SIZES = {"results": (1280, 860, "light"), "playing": (1280, 860, "light"), "phone": (390, 844, "dark")}


def page_pictures(out: Path, browser: str | None) -> dict[str, list[str]]:
    """Three pictures of the page, and the words on each."""
    from playwright.sync_api import sync_playwright

    from prvr.toy import write_corpus
    from prvr_search.films.toy_videos import write_videos

    if browser is None:
        sys.exit("no chromium here: name one with --browser")
    found = {}
    with tempfile.TemporaryDirectory() as work, sync_playwright() as play:
        corpus = write_corpus(Path(work), "tiny")
        test = corpus.split("test")
        folder = write_videos(corpus, test.video_ids[:40])
        query = next(caption.text for caption in test.captions if caption.video_id in test.video_ids[:40])
        address = address_of(folder, Path(work) / "library")
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, (width, height, scheme) in SIZES.items():
            page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(address)
            ask(page, query, playing=name != "results")
            page.mouse.move(5, height - 5)
            page.wait_for_timeout(300)
            page.screenshot(path=out / f"serve-{name}.png")
            found[f"serve-{name}.png"] = labels(page)
        chromium.close()
    return found


def ask(page: Any, query: str, playing: bool) -> None:
    """Searches and waits for the answer; with `playing` until the best moment has been played."""
    page.get_by_role("searchbox").fill(query)
    page.keyboard.press("Enter")
    page.wait_for_selector(".card")
    wait(page, "[...document.querySelectorAll('.frame img')].slice(0, 3).every(i => i.naturalWidth)")
    if playing:
        page.locator(".open").first.click()
        wait(page, "document.querySelector('video').currentTime > 0")
        wait(page, "document.querySelector('video').paused")  # at the end of the moment


def address_of(folder: Path, home: Path) -> str:
    """The address of a server that ends with this process."""
    addresses: list[str] = []
    # signals are the main thread's: this one only serves
    threading.Thread(target=_serve, args=(folder, home, addresses.append), daemon=True).start()
    while not addresses:
        time.sleep(0.05)
    return addresses[0]


def _serve(folder: Path, home: Path, started: Any) -> None:
    from prvr_search import Library
    from prvr_search.serve import serve

    with Library(folder, model="toy-world", encoder="toy", home=home) as library:
        library.update()
        serve(library, port=0, started=started)


def wait(page: Any, true: str, seconds: float = 30.0) -> None:
    """Until an expression is true: playwright's own way evaluates strings in the page, which its CSP forbids."""
    until = time.monotonic() + seconds
    while not page.evaluate(true):
        if time.monotonic() > until:
            raise TimeoutError(f"it never came: {true}")
        page.wait_for_timeout(50)


# --- which part imports which -----------------------------------------------------------------------------------------

OTHERS = ("lorentz", "regdiff", "prvr_search")


def arrows() -> list[tuple[str, str]]:
    """Which part imports which, without the arrows that longer paths imply; parts that import each other are one."""
    import grimp

    graph = grimp.build_graph("prvr", *OTHERS)
    parts = {*OTHERS, *graph.find_children("prvr")}
    for part in parts:
        graph.squash_module(part)
    upstream = {part: graph.find_modules_directly_imported_by(part) & parts - {part} for part in parts}
    for middle in parts:  # what it reaches without a way through the names of `prvr` itself, which are imported later
        for part in parts:
            if middle in upstream[part]:
                upstream[part] |= upstream[middle]
    box = {part: frozenset(other for other in upstream[part] if part in upstream[other]) | {part} for part in parts}
    below = {box[part]: {box[other] for other in upstream[part]} - {box[part]} for part in parts}
    label = {members: ", ".join(sorted(name.removeprefix("prvr.") for name in members)) for members in below}
    return sorted(
        (label[importer], label[imported])
        for importer, reached in below.items()
        for imported in reached
        if not any(imported in below[other] for other in reached)
    )


def import_graph(out: Path, _: str | None) -> dict[str, list[str]]:
    """Drawn by Graphviz: an arrow points to what is imported."""
    found = arrows()
    drawing = [
        "digraph imports {",
        "rankdir=TB; ranksep=0.25; nodesep=0.4; bgcolor=white;",
        'node [shape=box, style="rounded,filled", fillcolor="#eef2fb", fontname="Helvetica", height=0.3];',
        'edge [color="#5b6b8c", arrowsize=0.6];',
        *(f'"{name}" [fillcolor="#fdf3dc"];' for name in OTHERS),
        *(f'"{importer}" -> "{imported}";' for importer, imported in found),
        "}",
    ]
    target = ["-Tsvg", "-o", str(out / "imports.svg")]
    subprocess.run(["dot", *target], input="\n".join(drawing), text=True, check=True)
    return {"imports.svg": [f"{importer} -> {imported}" for importer, imported in found]}


# --- commands ---------------------------------------------------------------------------------------------------------


class Picture(NamedTuple):
    """How pictures are made, and of which files (patterns below the root)."""

    make: Callable[[Path, str | None], dict[str, list[str]]]
    command: str
    inputs: tuple[str, ...]
    trains: bool = False


def commands(lines: str, made: str, *pictures: str) -> Callable[[Path, str | None], dict[str, list[str]]]:
    """Runs commands in an empty folder and takes a picture from it: `made` (or `{}.png` for each of several)."""

    def make(out: Path, _: str | None) -> dict[str, list[str]]:
        from PIL import Image

        scripts = {"python": [sys.executable], "prvr": [sys.executable, "-m", "prvr.cli"]}
        with tempfile.TemporaryDirectory() as work:
            for line in lines.splitlines():
                program, *arguments = line.split()
                arguments = [str(ROOT / each) if each.startswith("examples/") else each for each in arguments]
                print("  " + line, flush=True)
                subprocess.run([*scripts[program], *arguments], cwd=work, check=True, stdout=subprocess.DEVNULL)
            for name in pictures:
                source = Path(work) / made.format(name.split("-")[-1].removesuffix(".png"))
                Image.open(source).convert("RGB").quantize(256).save(out / name, optimize=True)  # a third of the bytes
        return {name: [] for name in pictures}

    return make


def example(script: str, picture: str, arguments: str = "") -> Picture:
    command = f"python examples/{script}.py {arguments}".strip()
    name = {"lorentz": "lorentz-{}.png", "regdiff": "regdiff-{}.png"}[picture.split("-")[0]]
    made = picture.removeprefix(name.split("{")[0])
    return Picture(commands(command, made, picture), command, (f"examples/{script}.py",), trains=True)


RUN = """prvr data make --output data
prvr data make --output data --look dusk
prvr train --preset hybrid-toy --data-root data --output run
prvr train --preset diffusionret-toy --retriever run --data-root data --output reranker"""
PLOTS = """prvr plot frames run --video test0003 --output frames.png
prvr plot hyperbolic run --output hyperbolic.png
prvr plot registers run --output registers.png
prvr plot examples run --query 12 --output examples.png
prvr plot scores run --transfer data/toy-demo-dusk --output scores.png
prvr plot trajectory reranker --query 12 --output trajectory.png
prvr plot attention reranker --video test0003 --output attention.png"""
PLOT_NAMES = tuple(f"plot-{line.split()[2]}.png" for line in PLOTS.splitlines())
WEB = ("packages/prvr-search/src/prvr_search/serve/web/*",)

PICTURES = {
    "page": Picture(page_pictures, "python scripts/pictures.py page", WEB),
    "imports": Picture(import_graph, "python scripts/pictures.py imports", ("pyproject.toml",)),
    "tree": example("lorentz_tree", "lorentz-tree.png"),
    "mammals": example("wordnet_mammals", "lorentz-mammals.png"),
    "flow": example("flow_matching", "lorentz-flow.png"),
    "density": example("density", "regdiff-density.png"),
    "policy": example("policy", "regdiff-policy.png"),
    "prototypes": example("prototypes", "regdiff-prototypes.png", "--train-steps 4000 --rows 128 --sets 512"),
    "plots": Picture(
        commands(f"{RUN}\n{PLOTS}", "{}.png", *PLOT_NAMES),
        f"{RUN}\n{PLOTS}",
        ("packages/prvr/src/prvr/plot/*.py", "packages/prvr/src/prvr/config/presets/hybrid-toy.yaml"),
        trains=True,
    ),
}


def hash_of(patterns: tuple[str, ...]) -> str:
    """The sha256 of the names and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    parser.add_argument("--all", action="store_true", help="also those that need training")
    parser.add_argument("--again", action="store_true", help="also those whose files have not changed")
    parser.add_argument("--browser", default=shutil.which("chromium"))
    args = parser.parse_args()
    if unknown := set(args.names) - set(PICTURES):
        parser.error(f"no picture {', '.join(sorted(unknown))}")
    records: dict[str, Any] = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for name, picture in PICTURES.items():
        inputs = hash_of(picture.inputs)
        known = [record for record in records.values() if record["picture"] == name and record["inputs"] == inputs]
        if name not in args.names if args.names else picture.trains and not args.all:
            continue
        if known and not (args.again or args.names):
            print(f"{name}: nothing has changed")
            continue
        print(f"{name}: {picture.command.splitlines()[0]}", flush=True)
        for file, words in picture.make(IMAGES, args.browser).items():
            command = picture.command.splitlines()
            records[file] = {"picture": name, "command": command, "inputs": inputs, "labels": words}
            print(f"  {file}: {(IMAGES / file).stat().st_size / 1000:.0f} kB")
        RECORDS.write_text(
            json.dumps(dict(sorted(records.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
