"""A batch encoded in chunks, and by two processes, gives the losses and gradients of one process at once."""

import itertools
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from kills import START, become, free_ports
from training_runs import losses, make_config, state_of

from prvr.config import Config, LossConfig, load_config
from prvr.models import AnyRetriever, build_retriever
from prvr.objective import Objective
from prvr.training import TrainingError, train
from prvr.training.gradients import backward_in_parts
from prvr.training.run_folder import RunFolder
from prvr.types import Batch

OF_TWO = ["gmmformer-tvr", "hybrid-tvr", "holmes-words-tvr", "diffusionret-toy"]
"""What two processes train: padding that counts, registers, words and one text encoder without registers."""
PRESETS = [*OF_TWO, "hlformer-tvr", "dreamprvr-tvr", "msc-prvr-tvr"]
OWNERS = [0, 0, 1, 2, 2, 2, 3, 4, 4, 5]
SHARES = ((3, 6), (3, 4))
"""Videos and queries of two processes."""
FRAMES = [3, 8, 5, 2, 7, 4]


def small(preset: str, **model: Any) -> Config:
    sizes = {"video_dim": 12, "query_dim": 10, "hidden": 16, "max_frames": 8, "max_words": 6}
    sizes |= {"depth": 1} if preset.startswith("diffusionret") else {"num_clips": 4, "lorentz_dim": 15}
    return load_config(preset, {f"model.{name}": value for name, value in (sizes | model).items()}, shared=True)


def built(config: Config, train: bool = False) -> tuple[AnyRetriever, Objective]:
    torch.manual_seed(1)
    retriever = build_retriever(config.model).double()
    objective = Objective(config.loss, config.model, retriever.registers).double()
    with torch.no_grad():  # some parts start at zero, where a lost gradient would not show
        for p in (*retriever.parameters(), *objective.parameters()):
            p.add_(0.05 * torch.randn_like(p))
    return retriever.train(train), objective.train(train)


def whole_batch() -> Batch:
    draw = torch.Generator().manual_seed(3)
    words = [2, 6, 3, 4, 1, 5, 6, 2, 3, 4]
    relevant = torch.eye(len(FRAMES), dtype=torch.bool)[OWNERS]
    relevant[0, 5] = True  # a query that a video of another part answers too
    return Batch(
        clips=torch.randn(len(FRAMES), 4, 12, generator=draw, dtype=torch.float64),
        frames=torch.randn(len(FRAMES), 8, 12, generator=draw, dtype=torch.float64),
        frame_mask=torch.arange(8) < torch.tensor(FRAMES)[:, None],
        words=torch.randn(len(OWNERS), 6, 10, generator=draw, dtype=torch.float64),
        word_mask=torch.arange(6) < torch.tensor(words)[:, None],
        query_to_video=torch.tensor(OWNERS),
        relevant=relevant,
    )


def cut(batch: Batch, first: int, last: int, trim: bool) -> Batch:
    """Videos first to last - 1 with their queries, as padded as the whole batch or (trim) as they need themselves."""
    rows = (batch.query_to_video >= first) & (batch.query_to_video < last)
    longest, words = batch.frames.shape[1], batch.words.shape[1]
    if trim:
        longest, words = int(batch.frame_mask[first:last].sum(1).max()), int(batch.word_mask[rows].sum(1).max())
    return Batch(
        clips=batch.clips[first:last],
        frames=batch.frames[first:last, :longest],
        frame_mask=batch.frame_mask[first:last, :longest],
        words=batch.words[rows][:, :words],
        word_mask=batch.word_mask[rows][:, :words],
        query_to_video=batch.query_to_video[rows] - first,
    )


def gradients(*modules: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = (item for module in modules for item in module.named_parameters())
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def parts(batch: Batch, cuts: tuple[int, ...], preset: str) -> list[Batch]:
    trim = preset != "gmmformer-tvr"  # the released one averages over the padding of its batch
    return [cut(batch, first, last, trim) for first, last in itertools.pairwise(cuts)]


def plain(config: Config, batch: Batch) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    retriever, objective = built(config)
    generator = torch.Generator().manual_seed(5)
    terms = objective(retriever(batch), batch, generator=generator)
    terms["total"].backward()
    return {name: value.detach() for name, value in terms.items()}, gradients(retriever, objective)


def close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float = 1e-6) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        scale = max(1.0, value.abs().max().item())
        torch.testing.assert_close(ours[name].double(), value, rtol=0, atol=tolerance * scale, msg=name)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("cuts", [(0, 6), (0, 3, 6), (0, 1, 2, 5, 6)], ids=["whole", "halves", "uneven"])
def test_chunks_change_nothing(preset: str, cuts: tuple[int, ...]) -> None:
    config, batch = small(preset), whole_batch()
    expected, wanted = plain(config, batch)
    retriever, objective = built(config)
    chunks = parts(batch, cuts, preset)
    terms = backward_in_parts(
        retriever,
        objective,
        chunks,
        batch.labels,
        generator=torch.Generator().manual_seed(5),
        seeds=list(range(len(chunks))),
    )
    close(terms, expected)
    close(gradients(retriever, objective), wanted)


def _two(rank: int, folder: str) -> None:
    """One of two processes: three training steps of each preset on its half of the batch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        mine = [[(0, 3)], [(3, 5), (5, 6)]][rank]
        torch.save({preset: steps(preset, mine, rank) for preset in OF_TWO}, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def steps(preset: str, mine: list[tuple[int, int]], first: int) -> dict[str, Any]:
    """Losses and final weights, with dropout and hard negatives; `mine` are this process's chunks."""
    batch = whole_batch()
    retriever, objective = built(small(preset), train=True)
    optimizer = torch.optim.SGD([*retriever.parameters(), *objective.parameters()], lr=0.1)
    chunks, losses = [cut(batch, *span, trim=False) for span in mine], []
    labels = replace(batch.labels, shares=SHARES)
    for step in range(3):
        terms = backward_in_parts(
            retriever,
            objective,
            chunks,
            labels,
            negatives="hard" if step else "random",
            generator=torch.Generator().manual_seed(step),
            seeds=[100 * step + first + i for i in range(len(chunks))],
        )
        losses.append(terms["total"].item())
        optimizer.step()
    return {"losses": losses, "weights": {**retriever.state_dict(), **objective.state_dict(prefix="objective.")}}


def test_two_processes_are_one() -> None:
    """Losses of every step and the final weights agree to 1e-5, dropout included: a chunk's draws are its own."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_two, (folder,), nprocs=2, start_method=START)
        first, second = (torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2))
    for preset in OF_TWO:
        one = steps(preset, [(0, 3), (3, 5), (5, 6)], 0)
        for two in (first[preset], second[preset]):
            assert two["losses"] == pytest.approx(one["losses"], abs=1e-5)
            close(two["weights"], one["weights"], 1e-5)
        start = built(small(preset))[0].state_dict()
        assert any((one["weights"][name] - value).abs().max() > 1e-3 for name, value in start.items())


def in_parts(cache: str) -> Config:
    """Chunks of 6 are the halves of a batch. Without registers, whose first step multiplies float32 rounding by 200."""
    settings = {"train__batch_size": 12, "train__chunk_videos": 6, "train__average": 2}
    return make_config(cache, **settings, optim__lr=3e-4, loss__entailment=1e-3)


def _train_in_two(rank: int, folder: str, cache: str, first: str, second: str, third: str) -> None:
    become(rank, first)
    torch.set_num_threads(1)
    try:
        config = in_parts(cache)
        with pytest.raises(TrainingError, match="another process is training"):
            train(config, output=Path(folder) / "owned", device="cpu")
        os.environ["MASTER_PORT"] = second  # on the first, one process could still meet what the other is leaving
        angles = replace(config, loss=LossConfig({"text_angles": 1.0}))
        with pytest.raises(TrainingError, match=r"text_angles=1\.0 needs the words.*2 processes do not share"):
            train(angles, output=Path(folder) / "angles", device="cpu")
        os.environ["MASTER_PORT"] = third
        result = train(config, output=Path(folder) / "two", device="cpu")
        torch.save(losses(result.history), Path(folder) / f"{rank}.pt")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def test_a_run_of_two_processes_ends_as_one_of_one(tmp_path: Path, toy_cache: Path) -> None:
    """Losses and weights agree to 1e-5 with those of one process whose chunks are the same; files are written once."""
    cache = str(toy_cache)
    with RunFolder(tmp_path / "owned").owned(resume=False):  # neither may wait for the other in vain
        mp.start_processes(_train_in_two, (str(tmp_path), cache, *free_ports(3)), nprocs=2, start_method=START)
    one = train(in_parts(cache), output=tmp_path / "one", device="cpu")
    for rank in range(2):
        for ours, theirs in zip(torch.load(tmp_path / f"{rank}.pt"), losses(one.history), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-5)
    two, alone = state_of(tmp_path / "two"), state_of(tmp_path / "one")
    assert len((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()) == 2
    for part in ("retriever", "objective", "average"):
        close({k: v.double() for k, v in two[part].items()}, {k: v.double() for k, v in alone[part].items()}, 1e-5)
