"""prvr search: what it prints and writes is what the index finds."""

import csv
import json
import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any

import pytest
from commands import explained
from search_files import library_features
from video_files import plain, write_video

from prvr.cli import main
from prvr_search import Library, SearchResult
from prvr_search.films import clip_name, open_video

QUERY = "a red square"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four films of 6 s, each with one coloured second, encoded."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "films").mkdir()
    for place, name in enumerate(["red [x].mp4", "green.mp4", "=blue.mp4", "grey.mp4"]):
        frames = plain([60] * 60, 64, 64)
        for frame in frames[10 * place : 10 * place + 10]:
            frame[16:48, 16:48, min(place, 2)] = 250 if place < 3 else 60
        write_video(folder / "films" / name, frames)
    library_features(folder / "films")
    return folder / "films"


def found(index: Path, query: str, k: int = 10) -> SearchResult:
    with Library(index) as library:
        return library.search(query, k, update=False)


def rows(out: str) -> list[tuple[str, ...]]:
    """rank, video, score, moment of each line of the table."""
    return re.findall(r"^(\d+) +(\S.*?) +(-?\d\.\d{3}) +([\d:]+-[\d:]+) ", out, flags=re.MULTILINE)


def test_a_second_search_imports_what_it_uses(index: Path) -> None:
    """Waiting for a search of what is encoded is waiting for imports: their number is held, and whose they are."""
    code = (
        "import sys, torch; first = {*sys.modules}; from prvr.cli import main; main(sys.argv[1:]); "
        "print(*(sys.modules.keys() - first), file=sys.stderr)"
    )
    assert main(["search", str(index), QUERY]) == 0
    command = [sys.executable, "-c", code, "search", str(index), QUERY]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    used = {
        "annotated_types", "attr", "attrs", "cyclopts", "cython_runtime", "filelock", "h5py", "huggingface_hub",
        "jaxtyping", "numpy", "platformdirs", "prvr", "prvr_search", "pydantic", "pydantic_core", "rich", "safetensors",
        "typing_inspection", *sys.stdlib_module_names,
    }  # fmt: skip
    assert not {name for name in modules if name.split(".")[0] not in used and not name.startswith("_")}
    assert sum(name.split(".")[0] == "prvr" for name in modules) <= 91  # of 222
    assert "huggingface_hub.hf_api" not in modules


def test_files(index: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Of standard output, which holds one result and nothing else, the bytes are those of the file."""
    names = {kind: tmp_path / "out" / f"a.{kind}" for kind in ("json", "csv", "html")}
    assert main(["search", str(index), QUERY, *(f"--{kind}={path}" for kind, path in names.items())]) == 0
    expected = found(index, QUERY)
    hits = json.loads(names["json"].read_text())["results"][0]["hits"]
    assert [(hit["video"]["id"], hit["score"], hit["start"]) for hit in hits] == [
        (hit.video_id, hit.score, hit.start) for hit in expected.hits
    ]
    with names["csv"].open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["video"] for line in lines] == [hit.video_id.replace("=blue", "'=blue") for hit in expected.hits]
    page = names["html"].read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") == 4
    assert "red [x].mp4" in page
    capfdbinary.readouterr()
    for kind in ("json", "csv"):
        assert main(["search", str(index), QUERY, f"--{kind}", "-", "--html", str(names["html"])]) == 0
        out, err = capfdbinary.readouterr()
        assert out == names[kind].read_bytes()
        assert err.decode() == f"{names['html']}: written\n"


def test_a_file_of_sentences(index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Paths alone are those of all, each once."""
    queries = [QUERY, "a green square", "étoile"]
    (tmp_path / "q.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n\n".join([*queries, "  "]).encode())
    words = ["search", str(index), "--file", str(tmp_path / "q.txt"), "-k", "2"]
    assert main([*words, "--json", str(tmp_path / "a.json")]) == 0
    assert len(rows(capfd.readouterr().out)) == 6
    hits = [hit.video for query in queries for hit in found(index, query, 2).hits]
    results = json.loads((tmp_path / "a.json").read_text())["results"]
    assert [result["query"] for result in results] == queries
    assert [hit["video"]["id"] for result in results for hit in result["hits"]] == [video.id for video in hits]
    paths = dict.fromkeys(video.path for video in hits)
    for option, end in (("--paths", "\n"), ("--print0", "\0")):
        assert main([*words, option]) == 0
        assert capfd.readouterr() == ("".join(path + end for path in paths), "")


def asking(index: Path, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
    """The command that asks for sentences, with standard streams of its own."""
    command = [sys.executable, "-m", "prvr.cli", "search", str(index), *words]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8", "COLUMNS": "80"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **streams)


def test_sentences_of_a_pipe_are_answered_one_after_another(index: Path, capfdbinary: Any) -> None:
    """With the same options, as the command answers each; one that cannot be read stops nothing."""
    sentences, options = ["a green square", QUERY], ["-k", "2", "--without", "snow", "--name", "[gr]*"]
    expected = b""
    for sentence in sentences:
        assert main(["search", str(index), sentence, *options]) == 0
        expected += capfdbinary.readouterr().out
    with asking(index, *options, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        out, err = process.communicate("\n \n".join(sentences).encode() + b"\ncaf\xe9\n!\n", timeout=120)
    assert (process.returncode, out) == (0, expected)
    assert [line[:13] for line in err.splitlines()] == [b"prvr: error: "] * 2, err


def test_each_answer_takes_less_than_a_tenth_of_a_search(index: Path) -> None:
    assert main(["search", str(index), QUERY]) == 0  # what is new is encoded
    began, times = time.monotonic(), list[float]()
    subprocess.run([sys.executable, "-m", "prvr.cli", "search", str(index), QUERY], check=True, capture_output=True)
    cold = time.monotonic() - began
    with asking(index, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(5):
            began = time.monotonic()
            process.stdin.write(f"{QUERY}\n".encode())
            process.stdin.flush()
            while b"of 4 videos" not in process.stdout.readline():
                pass
            times.append(time.monotonic() - began)
        process.communicate(timeout=60)
    assert statistics.median(times) < cold / 10


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("end", [b"\x04", b"\x03"])
def test_a_terminal_is_asked_until_control_d_or_control_c(index: Path, end: bytes) -> None:
    """A line is edited, and the one before it comes back."""
    import pty

    own, other = pty.openpty()
    shown = bytearray()

    def wait_for_prompt(count: int) -> None:
        while shown.count(b"search: ") < count:
            shown.extend(os.read(own, 1000))

    with asking(index, stdin=other, stdout=other, start_new_session=True, preexec_fn=take_terminal) as process:
        os.close(other)
        wait_for_prompt(1)
        os.write(own, b"a red squarw\x7fe\r")
        wait_for_prompt(2)
        os.write(own, b"\x1b[A\r")
        wait_for_prompt(3)
        with suppress(OSError):  # the terminal is closed
            while True:  # Python sees a signal that comes while readline begins to wait at the next key
                os.write(own, end)
                while select([own], [], [], 1.0)[0]:
                    shown.extend(os.read(own, 1000))
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(own)
    assert shown.count(b"4 of 4 videos") == 2


def take_terminal() -> None:
    """Makes standard input the terminal whose keys send signals to this process."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_the_best_moments_are_saved(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "clips"
    assert main(["search", str(index), QUERY, "-k", "2", "--save", str(folder)]) == 0
    hits = found(index, QUERY, 2).hits
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [
        f"{rank:02} {clip_name(hit.video.path, hit.start, hit.end)}" for rank, hit in enumerate(hits, 1)
    ]
    for file, hit in zip(files, hits, strict=True):
        with open_video(file) as video:
            assert video.info.duration == pytest.approx(hit.end - hit.start, abs=1.1)  # key frames are 0.8 s apart
    assert main(["search", str(index), QUERY, "--save", str(folder)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["search", str(index), QUERY, "--save", str(folder), "-k", "1", "--force", "--exact"]) == 0
    assert f"{files[0]}: written, 0:0" in capsys.readouterr().out
    best = Path(hits[0].video.path)
    content, times = best.read_bytes(), best.stat()
    try:  # a film that cannot be read is named, and the others are saved
        best.write_bytes(bytes(len(content)))
        os.utime(best, ns=(times.st_atime_ns, times.st_mtime_ns))  # the file system does not tell that it has changed
        assert main(["search", str(index), QUERY, "-k", "2", "--save", str(tmp_path / "others")]) == 0
        assert capsys.readouterr().err.startswith(f"no clip: {best}: ")
        assert len(list((tmp_path / "others").iterdir())) == 1
    finally:
        best.write_bytes(content)
        os.utime(best, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_what_is_refused(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    for arguments, why in (
        ([str(index), QUERY, "--file", "q.txt"], "either a sentence or --file"),
        ([str(index), "--json", "-"], "need a sentence or --file"),
        ([str(index), "--file", str(tmp_path / "latin.txt")], "not UTF-8"),
        ([str(index), QUERY, "--backend", "magic"], "unknown search backend 'magic'. Known: exact, milvus"),
        ([str(index), QUERY, "--json", "-", "--csv", "-"], "Only one of --json - and --csv - can write"),
        ([str(index), QUERY, "--force"], "--save FOLDER"),
        ([str(index), QUERY, "--after", "soon"], "expected a date like"),
    ):
        assert why in explained(["search", *arguments], capsys), arguments
