"""SIGTERM and Ctrl-C: the step is finished, the run saved, the handlers given back."""

import logging
import os
import signal
import sys
import threading
import time
from multiprocessing import get_context
from typing import Any

import pytest
from kills import START
from training_runs import Runs, StopInEpoch, half_written, losses, same_end, state_of

from prvr.cli import main
from prvr.config import dump_config
from prvr.training import RunResult, Terminated

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def send(number: int, times: int = 1) -> Any:
    def act() -> None:
        for _ in range(times):
            os.kill(os.getpid(), number)

    return act


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


@pytest.mark.parametrize(
    ("number", "error", "epoch", "step"), [(signal.SIGTERM, Terminated, 1, 0), (signal.SIGINT, KeyboardInterrupt, 2, 3)]
)
def test_a_signal_lets_the_step_finish_and_saves_it(
    runs: Runs,
    straight: RunResult,
    caplog: pytest.LogCaptureFixture,
    number: int,
    error: type[BaseException],
    epoch: int,
    step: int,
) -> None:
    before = handlers()
    hook = StopInEpoch(epoch, send(number, times=1 if number == signal.SIGINT else 3), step)
    with pytest.raises(error) as caught:
        runs.train(progress=hook)
    assert handlers() == before
    if number == signal.SIGTERM:
        assert caught.value.code == 143
    word = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupted"}[number]
    assert f"{word}; saved up to step {step + 1} of 4 of epoch {epoch - 1}; continue with --resume" in caplog.text
    state = state_of(runs.path)
    assert (state["epoch"], state["position"]["step"]) == (epoch - 1, step + 1)
    resumed = runs.resume()
    assert losses(resumed.history) == losses(straight.history)
    assert same_end(straight.output, runs.path)


def test_a_second_interrupt_does_not_wait(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    before = handlers()
    hook = StopInEpoch(1, send(signal.SIGINT, times=2), 1)
    with pytest.raises(KeyboardInterrupt):
        runs.train(progress=hook)
    assert handlers() == before
    assert not (runs.path / "last").exists()
    assert "interrupted; nothing is saved yet, --resume starts over" in caplog.text


@pytest.mark.parametrize("which", [2, 3])
def test_an_evaluation_is_broken_off_and_its_epoch_kept(
    runs: Runs, straight: RunResult, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    real, seen = type(runs.splits.selection).video_batches, []

    def signalled(self: Any, size: int) -> Any:
        seen.append(size)
        if len(seen) == which:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, size)

    monkeypatch.setattr(type(runs.splits.selection), "video_batches", signalled)
    with pytest.raises(Terminated):
        runs.train()
    monkeypatch.undo()
    assert not (runs.path / "evaluation.json").exists()
    state = state_of(runs.path)
    if which == 3:  # of the final evaluation nothing is kept
        assert (state["epoch"], state["position"]) == (2, None)
    else:
        assert (state["epoch"], state["position"]["step"]) == (which - 1, 4)
    resumed = runs.resume()
    assert losses(resumed.history) == losses(straight.history)
    assert resumed.report.text_to_video == straight.report.text_to_video
    assert same_end(straight.output, runs.path)


def test_a_signal_while_an_epoch_is_saved_waits_for_it(runs: Runs, straight: RunResult) -> None:
    class Signal(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("epoch 0"):
                os.kill(os.getpid(), signal.SIGTERM)

    handler, logger = Signal(), logging.getLogger("prvr.training.trainer")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with pytest.raises(Terminated):
            runs.train()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert (state_of(runs.path)["epoch"], state_of(runs.path)["position"]) == (1, None)
    assert losses(runs.resume().history) == losses(straight.history)


def test_a_program_that_handles_signals_itself_goes_on_doing_so(runs: Runs) -> None:
    """With a handler of its own; and while it trains in another thread."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: found.append(number))
    own = handlers()
    try:
        runs.train(train__epochs=1, progress=StopInEpoch(1, send(signal.SIGTERM), 1))
        assert found == [signal.SIGTERM]
        assert handlers() == own
        meanwhile: list[Any] = []
        hook = StopInEpoch(1, lambda: meanwhile.append(handlers()), 0)
        options = {"train__epochs": 1, "progress": hook, "name": "thread"}
        thread = threading.Thread(target=runs.train, kwargs=options)
        thread.start()
        thread.join()
        assert meanwhile == [own]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (runs.folder / "thread" / "evaluation.json").is_file()


def _train_in_a_group(config: str, run: str) -> None:
    os.setsid()
    sys.exit(main(["train", "--config", config, "--output", run, "--device", "cpu"]))


def test_the_command_ends_with_143_although_its_whole_group_was_signalled(
    runs: Runs, straight: RunResult, capfd: pytest.CaptureFixture[str]
) -> None:
    file, run = runs.folder / "config.yaml", runs.path
    file.write_text(dump_config(runs.config(train__checkpoint_every=1)))
    process = get_context(START).Process(target=_train_in_a_group, args=(str(file), str(run)))
    process.start()
    while not (run / "last" / "state.pt").exists():
        assert process.is_alive(), capfd.readouterr().err
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)  # as a batch system does
    process.join()
    err = capfd.readouterr().err
    assert process.exitcode == 143, err
    assert f"{run}: terminated; saved up to" in err
    assert "Traceback" not in err
    assert not half_written(run)
    resumed = runs.train(resume=True)
    assert losses(resumed.history) == losses(straight.history)
    assert same_end(straight.output, run)
