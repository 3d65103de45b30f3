"""Holmes: its losses and its word branch against the authors' numbers, plain loops, and laws."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import plain_holmes as plain
import pytest
import torch
from golden import FIXTURES, check_close
from torch import Tensor

import prvr
from prvr.config import load_config
from prvr.losses import LossInputs
from prvr.published import released_config, tensors
from prvr.published.blocks_of_queries import block_cosines
from prvr.published.checkpoint_files import convert_checkpoint
from prvr.published.holmes.evidence import dirichlet_loss, dissent_loss, evidence_of, fuse_evidence, query_groups
from prvr.published.holmes.released_transport import released_transport_targets, released_unit_interval
from prvr.published.holmes.transport import intra_video_loss, transport_targets, unit_interval
from prvr.published.loading import released_sizes, system_of
from prvr.training import Splits, train
from prvr.types import Labels, RetrieverOutput, Scores, VideoEmbedding

OWNERS = [2, 0, 0, 1, 2, 3, 3, 2, 0, 5, 4, 2]
"""Videos with 3, 1, 4, 2, 1 and 1 queries, in no order."""
SMALL = {"video_dim": 12, "query_dim": 10, "hidden": 16, "heads": 2, "num_clips": 4, "max_frames": 8, "max_words": 6}


def batch(seed: int = 0, **changes: Any) -> prvr.Batch:
    """Queries and videos of several lengths, in float64."""
    draw = torch.Generator().manual_seed(seed)
    words, frames = torch.randint(1, 7, (len(OWNERS),), generator=draw), torch.randint(1, 9, (6,), generator=draw)
    values = {
        "clips": torch.randn(6, 4, 12, generator=draw, dtype=torch.float64),
        "frames": torch.randn(6, 8, 12, generator=draw, dtype=torch.float64),
        "frame_mask": torch.arange(8) < frames[:, None],
        "words": torch.randn(len(OWNERS), 6, 10, generator=draw, dtype=torch.float64),
        "word_mask": torch.arange(6) < words[:, None],
        "query_to_video": torch.tensor(OWNERS),
    }
    return prvr.Batch(**values | changes)


@functools.cache
def model(preset: str = "holmes-words-tvr", **changes: Any) -> tuple[prvr.Retriever, prvr.Objective]:
    """A small one with weights so large that scores differ, in float64."""
    sizes = {f"model.{name}": value for name, value in SMALL.items()}
    config = load_config(preset, sizes | {key.replace("__", "."): value for key, value in changes.items()})
    torch.manual_seed(1)
    retriever = prvr.Retriever(config.model).double().eval()
    with torch.no_grad():
        for parameter in retriever.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return retriever, prvr.Objective(config.loss, config.model, retriever.registers).double()


CORRECT = {"model__compat__transport": "masked", "model__compat__padding": "masked"}


class TestGolden:
    """The authors' loss on made-up scores."""

    @staticmethod
    def array(key: str) -> np.ndarray:
        with np.load(FIXTURES / "prvr_holmes.npz") as file:
            return file[f"unit/{key}"]

    def tensor(self, key: str) -> Tensor:
        return torch.from_numpy(self.array(key)).double()

    @pytest.mark.parametrize("unit", ["mixed", "none", "all"])
    def test_groups_targets_terms_and_gradients(self, unit: str) -> None:
        with np.load(FIXTURES / "prvr_holmes.npz") as file:
            theirs = json.loads(str(file["config"])) | {"edl_tau": float(self.array(f"{unit}/edl_tau"))}
        config, loss = released_config("Holmes_Net", theirs)
        objective = prvr.Objective(prvr.config.LossConfig({**loss.terms, "transport": 0.0}), config).double()
        clips, frames = (self.tensor(f"{unit}/{name}_scores").requires_grad_() for name in ("clip", "frame"))
        scores = Scores(frames, clips, frames, 3 * clips, 4 * frames)
        labels = Labels(clips.shape[1], self.tensor("labels").long())
        output = RetrieverOutput(self.tensor(f"{unit}/query"), VideoEmbedding(), scores)
        inputs, settings = LossInputs(output, labels, "hardest"), loss["evidence"]
        for name, given in (("clip", clips), ("frame", frames)):
            evidence = evidence_of(given, settings.temperature)
            groups = query_groups(given, evidence, labels.ground_truth, labels.positives, settings.division)
            assert groups.tolist() == self.array(f"{unit}/{name}_group").tolist()
        term: Any = objective.evidence
        check_close(term.targets(inputs, [clips, frames]), self.array(f"{unit}/final_labels"), 1e-12, "targets")
        terms = objective(output, labels, negatives="hardest")
        parts = sum(self.tensor(f"{unit}/{name}_edl_raw") for name in ("clip", "frame", "combine"))
        check_close(terms["evidence"], (settings.weight * parts).numpy(), 1e-12, "evidence")
        total = terms["total"] + loss.weight("transport") * self.tensor(f"{unit}/intra_edl_raw")
        check_close(total, self.array(f"{unit}/total"), 1e-12, "total")
        terms["total"].backward()
        for name, given in (("clip", clips), ("frame", frames)):
            check_close(given.grad, self.array(f"{unit}/grad_{name}_scores"), 1e-12, f"gradient of {name} scores")

    def test_transport(self) -> None:
        clips, text = (self.tensor(f"ot12/{name}").requires_grad_() for name in ("clips", "text"))
        mask = self.tensor("ot12/mask") > 0
        similarity = released_unit_interval(block_cosines(text, clips), mask)
        own = mask[..., None].double()
        check_close(similarity * own, self.array("ot12/sim") * own.numpy(), 1e-12, "similarity")
        target = released_transport_targets(similarity, mask, 0.1)
        check_close(target, self.array("ot12/target"), 1e-12, "target")
        loss = intra_video_loss(similarity, target, mask, 0.06)
        check_close(loss, self.array("ot12/loss"), 1e-12, "loss")
        loss.backward()
        check_close(clips.grad, self.array("ot12/grad_clips"), 1e-12, "gradient of clips")
        check_close(text.grad, self.array("ot12/grad_text") * own.numpy(), 1e-12, "gradient of texts")
        # The clean part differs by their guard of the division alone.
        torch.testing.assert_close(transport_targets(similarity, mask, 0.1), target, rtol=1e-7, atol=0)


class TestWholeModel:
    """Every term against plain loops over the embeddings and scores of a model."""

    @pytest.mark.parametrize("released", [True, False], ids=["released", "correct"])
    def test_terms(self, released: bool) -> None:
        settings = {"loss__dissent": 0.3, "loss__transport__epsilon": 0.05}
        retriever, objective = model(**settings | ({} if released else CORRECT))
        some = batch()
        with torch.no_grad():
            out = retriever(some)
            terms, warm = (objective(out, some, negatives="hardest", warm_up=early) for early in (False, True))
        carry, temperature = objective.config["transport"], objective.config["dissent"].temperature
        expected = plain.intra_video(
            out.text.sentence, out.video.clips, OWNERS, carry.epsilon, carry.temperature, released
        )
        assert float(terms["transport"]) == pytest.approx(carry.weight * expected, rel=1e-7)
        assert float(warm["transport"]) == 0
        expected = 0.3 * plain.dissent(out.scores.clips, out.scores.frames, temperature)
        assert float(terms["dissent"]) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("released", [True, False], ids=["released", "correct"])
    def test_word_scores(self, released: bool) -> None:
        retriever, _ = model(**({} if released else CORRECT))
        some = batch()
        with torch.no_grad():
            out = retriever(some)
            assert retriever.frame_query is not None
            head = retriever.frame_query.weigh.net
            for q, v in [(0, 0), (3, 1), (7, 5), (11, 2)]:
                # As released, rows of padding are 0 and take part.
                rows = out.video.frames[v] if released else out.video.frames[v][some.frame_mask[v]]
                for unit, found in ((True, out.scores.frames), (False, out.scores.frames_dot)):
                    expected = plain.word_score(out.text.words[q], some.word_mask[q], head, rows, unit)
                    assert float(found[q, v]) == pytest.approx(expected, rel=1e-9)

    def test_uniform_weights_are_the_mean_of_the_words(self) -> None:
        retriever, some = model(model__word_weights="uniform")[0], batch()
        weights = retriever.encode_text(some.words, some.word_mask).weights
        torch.testing.assert_close(weights, some.word_mask / some.word_mask.sum(1, keepdim=True), check_dtype=False)


class TestLaws:
    @pytest.mark.parametrize("targets", ["transport", "softmax"])
    def test_the_order_and_a_video_without_queries_change_nothing(self, targets: str) -> None:
        """Neither the order of queries and videos nor a video that no query is about."""
        retriever, objective = model(loss__dissent=0.3, loss__transport__targets=targets, **CORRECT)
        some = batch()
        rows, videos = torch.randperm(len(OWNERS)), torch.randperm(6)
        moved = batch(
            clips=some.clips[videos],
            frames=some.frames[videos],
            frame_mask=some.frame_mask[videos],
            words=some.words[rows],
            word_mask=some.word_mask[rows],
            query_to_video=videos.argsort()[some.query_to_video[rows]],
        )
        expected = objective(retriever(some), some, negatives="hardest")
        found = objective(retriever(moved), moved, negatives="hardest")
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, msg=name)
        lonely = Labels(7, some.query_to_video)
        out = retriever(some)
        clips = torch.cat([out.video.clips, torch.randn(1, 4, 16, dtype=torch.float64)])
        more = dataclasses.replace(out, video=VideoEmbedding(clips=clips))
        inputs = LossInputs(more, lonely, "hardest")
        weight = objective.config.weight("transport")
        torch.testing.assert_close(objective.transport(inputs) * weight, expected["transport"])

    def test_one_query_of_a_video_whose_clips_are_all_alike(self) -> None:
        text = torch.randn(1, 1, 8, requires_grad=True)
        clips = torch.randn(1, 1, 8).expand(1, 4, 8).clone().requires_grad_()
        mask = torch.tensor([[True]])
        similarity = unit_interval(block_cosines(text, clips), mask)
        target = transport_targets(similarity, mask, 0.1)
        assert target.flatten().tolist() == pytest.approx([0.25] * 4)
        intra_video_loss(similarity, target, mask, 0.06).backward()
        assert bool(text.grad.isfinite().all() & clips.grad.isfinite().all())

    @pytest.mark.parametrize("temperature", [0.02, 0.2])
    def test_float32_holds_the_largest_evidence(self, temperature: float) -> None:
        scores = torch.tensor([[1.0, -1.0, 1.0]], requires_grad=True)
        evidence = evidence_of(scores, temperature)
        loss = dirichlet_loss(fuse_evidence(evidence, evidence), torch.tensor([[1.0, 0.0, 0.0]])).mean()
        loss = loss + dissent_loss(evidence, evidence.flip(1))
        loss.backward()
        assert bool(loss.isfinite() & scores.grad.isfinite().all())

    def test_targets_are_shared_among_all_right_videos(self) -> None:
        retriever, objective = model(loss__evidence__relabelling="none")
        relevant = torch.eye(6, dtype=torch.bool)[OWNERS]
        relevant[0, 5] = True
        some = batch(relevant=relevant)
        out = retriever(some)
        inputs = LossInputs(out, some.labels, "hardest")
        target = objective.evidence.targets(inputs, [out.scores.clips, out.scores.frames])
        assert target[0].tolist() == [0, 0, 0.5, 0, 0, 0.5]
        assert target[1:].tolist() == relevant[1:].double().tolist()


class TestCheckpoints:
    @pytest.mark.parametrize("preset", ["holmes-charades", "holmes-words-tvr"])
    def test_round_trip(self, preset: str, tmp_path) -> None:
        """Tensors under the authors' names, a file as their code writes it, and back."""
        config = load_config(preset, {"model.hidden": 16, "model.video_dim": 12, "model.query_dim": 10})
        dataset = preset.rpartition("-")[2]
        state = tensors(prvr.Retriever(config.model)) | {"weight_token": torch.randn(1, 1, 16)}
        assert system_of(state, {}) == "Holmes_Net"
        loaded, losses = prvr.load_released(state, released_sizes("Holmes_Net", state), preset)
        assert (loaded.config, losses.config) == (config.model, config.loss)
        back = tensors(loaded) | tensors(losses)
        assert back.keys() == state.keys()
        assert all(torch.equal(back[name], state[name]) for name in state)
        torch.save({"state_dict": state, "model_cfg": {"collection": dataset}}, tmp_path / "best.ckpt")
        converted = convert_checkpoint(tmp_path / "best.ckpt", dataset, tmp_path / "out")
        assert (converted.system, converted.config.loss) == ("Holmes", config.loss)


def test_training_goes_through_its_warm_up(cache: str, splits: Splits, tmp_path: Path) -> None:
    sizes = {"hidden": 32, "num_clips": 8, "max_frames": 16}
    changes = {f"model.{name}": value for name, value in sizes.items()}
    changes |= {"train.epochs": 2, "train.warm_up_epochs": 1, "train.batch_size": 16, "loss.dissent": 0.1}
    changes |= {"data.collection": "toy-tiny", "data.cache_dir": cache}
    config = load_config("holmes-toy", changes)
    done = train(config, output=tmp_path / "run", splits=splits, device="cpu")
    first, second = (line["loss"] for line in done.history)
    assert first["transport"] == 0 < second["transport"]
    assert second["info_nce_clips"] < first["info_nce_clips"]
