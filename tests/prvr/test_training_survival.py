"""What a run survives: a full disk, a folder that cannot be written, `kill -9`, a second process."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import pytest
from kills import START
from training_runs import Runs, StopInEpoch, file_size_limit, half_written, losses, make_config, same_end, state_of

from prvr.models import Retriever
from prvr.training import RunResult, TrainingError, train


@pytest.mark.parametrize(
    ("every", "epoch", "step", "kept"),
    [(None, 2, 0, (1, 0)), (1, 1, 0, None), (2, 1, 2, (0, 2))],
    ids=["at the end of an epoch", "at the first state", "inside the first epoch"],
)
def test_a_run_goes_on_after_the_disk_was_full(
    runs: Runs, straight: RunResult, every: int | None, epoch: int, step: int, kept: tuple[int, int] | None
) -> None:
    config = runs.config(train__checkpoint_every=every)
    with ExitStack() as disk:
        hook = StopInEpoch(epoch, lambda: disk.enter_context(file_size_limit(20_000)), step)
        with pytest.raises(TrainingError, match=r"cannot be written.*intact.*--resume"):
            runs.train(config, progress=hook)
    assert not half_written(runs.path)
    if kept is None:
        assert not (runs.path / "last" / "state.pt").exists()
    else:
        state = state_of(runs.path)
        assert (state["epoch"], (state["position"] or {"step": 0})["step"]) == kept
    assert losses(runs.resume().history) == losses(straight.history)
    assert same_end(straight.output, runs.path)
    assert not half_written(runs.path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
def test_kill_9_at_drawn_moments_loses_nothing(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    import survival

    kills = ["--kills", "2", "--inside", "1", "--epochs", "2"]  # many: benchmarks/survival.py
    with pytest.raises(SystemExit) as ended:
        survival.main(["--what", "train", *kills, "--cache-dir", cache])
    assert not ended.value.code
    assert "equal bit by bit" in capsys.readouterr().out


def _train_until_killed(run: str, cache: str) -> None:
    """Trains one epoch, and waits in the second for the end."""
    forever = StopInEpoch(2, lambda: time.sleep(300), 0)
    train(make_config(cache), output=run, device="cpu", progress=forever)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_one_process_owns_a_run_folder_until_it_dies(runs: Runs, cache: str, straight: RunResult) -> None:
    run = runs.path
    other = get_context(START).Process(target=_train_until_killed, args=(str(run), cache))
    other.start()
    try:
        while not (run / "last" / "state.pt").exists():
            assert other.is_alive()
            time.sleep(0.05)
        before = files(run)
        with pytest.raises(TrainingError, match="run: another process is training"):
            runs.resume()
        assert files(run) == before
    finally:
        other.kill()
        other.join()
    assert losses(runs.resume().history) == losses(straight.history)
    assert same_end(straight.output, run)


def test_what_was_killed_while_its_first_file_was_written_is_trained_anew(runs: Runs, straight: RunResult) -> None:
    runs.path.mkdir(parents=True)
    (runs.path / f"environment.yaml.{0:016x}.prvr-tmp").write_text("half")
    assert losses(runs.train().history) == losses(straight.history)
    assert not half_written(runs.path)
    (runs.path / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match="run: already holds best, "):
        runs.train()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that users other than ours can reach: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes of POSIX")
def test_a_run_goes_on_after_its_folder_could_not_be_written(
    runs: Runs, open_folder: Path, straight: RunResult
) -> None:
    runs.folder, user = open_folder, os.geteuid()
    run = runs.path

    def close() -> None:
        for folder in (run, run / "best", run / "last"):
            folder.chmod(0o555)
        if user == 0:  # root may write everywhere: be nobody for a while
            os.seteuid(65534)

    config = runs.config(train__checkpoint_every=1)
    try:
        with pytest.raises(TrainingError, match=r"cannot be written \(.*Permission denied.*intact.*--resume"):
            runs.train(config, progress=StopInEpoch(2, close, 1))
    finally:
        if user == 0:
            os.seteuid(0)
        for folder in (run, run / "best", run / "last"):
            folder.chmod(0o755)
    assert not half_written(run)
    state = state_of(run)
    assert (state["epoch"], state["position"]["step"]) == (1, 1)
    Retriever.from_pretrained(run / "best")
    assert losses(runs.resume().history) == losses(straight.history)
    assert same_end(straight.output, run)
