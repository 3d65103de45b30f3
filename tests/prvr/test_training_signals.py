"""SIGTERM and Ctrl-C: the step is finished, the run saved, the handlers given back."""

import logging
import os
import signal
import sys
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


def test_an_interrupt_lets_the_step_finish_and_saves_it(
    runs: Runs, straight: RunResult, caplog: pytest.LogCaptureFixture
) -> None:
    before = handlers()
    with pytest.raises(KeyboardInterrupt):
        runs.train(progress=StopInEpoch(2, send(signal.SIGINT), 1))
    assert handlers() == before
    assert "interrupted; saved up to step 2 of 4 of epoch 1; continue with --resume" in caplog.text
    state = state_of(runs.path)
    assert (state["epoch"], state["position"]["step"]) == (1, 2)
    assert losses(runs.resume().history) == losses(straight.history)
    assert same_end(straight.output, runs.path)


def test_a_second_interrupt_does_not_wait(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    before = handlers()
    hook = StopInEpoch(1, send(signal.SIGINT, times=2), 1)
    with pytest.raises(KeyboardInterrupt):
        runs.train(progress=hook)
    assert handlers() == before
    assert not (runs.path / "last").exists()
    assert "interrupted; nothing is saved yet, --resume starts over" in caplog.text


def test_an_evaluation_is_broken_off_and_its_epoch_kept(
    runs: Runs, straight: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = type(runs.splits.selection).video_batches, []

    def signalled(self: Any, size: int) -> Any:
        seen.append(size)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, size)

    monkeypatch.setattr(type(runs.splits.selection), "video_batches", signalled)
    with pytest.raises(Terminated):
        runs.train()
    monkeypatch.undo()
    state = state_of(runs.path)
    assert (state["epoch"], state["position"]["step"]) == (1, 4)
    assert losses(runs.resume().history) == losses(straight.history)
    assert same_end(straight.output, runs.path)


def test_a_signal_while_an_epoch_is_saved_waits_for_it(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Signal(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("epoch 0"):
                os.kill(os.getpid(), signal.SIGTERM)

    caplog.set_level(logging.INFO, "prvr.training.trainer")
    monkeypatch.setattr(logging.getLogger("prvr.training.trainer"), "handlers", [Signal()])
    with pytest.raises(Terminated):
        runs.train()
    assert (state_of(runs.path)["epoch"], state_of(runs.path)["position"]) == (1, None)


def test_a_program_that_handles_signals_itself_goes_on_doing_so(runs: Runs) -> None:
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: found.append(number))
    own = handlers()
    try:
        runs.train(train__epochs=1, progress=StopInEpoch(1, send(signal.SIGTERM), 1))
        assert found == [signal.SIGTERM]
        assert handlers() == own
    finally:
        signal.signal(signal.SIGTERM, before)


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
    runs.train(resume=True)
    assert same_end(straight.output, run)
