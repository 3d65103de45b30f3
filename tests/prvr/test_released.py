"""Agreement with the authors' own numbers, through the public entry `prvr.load_released`."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from golden import SYSTEMS, Golden, check_close, drawn_corpus
from nightly import NIGHTLY

import prvr
from prvr.config import LOSSES, Compat, Config, LossConfig, ModelConfig, OptimConfig
from prvr.data.layout import Caption, TextData, video_of, write_layout
from prvr.losses import LossInputs
from prvr.models import build_retriever, load_pretrained, project_bounds
from prvr.models.rows import Sequences
from prvr.published import CheckpointError, released_config, tensors
from prvr.published.checkpoint_files import convert_checkpoint
from prvr.published.diffusionret.model_config import TokenCompat
from prvr.published.gmmformer.released_padding import released_window
from prvr.published.hlformer.released import ReleasedEntailment
from prvr.published.loading import system_of
from prvr.training import build_optimizer, open_split
from prvr.types import Labels, RetrieverOutput, Scores, VideoEmbedding, query_vectors

TERMS = {
    "triplet_clips": "{}/clip_trip",
    "triplet_frames": "{}/frame_trip",
    "key_clip_triplet": "{}/key_clip_trip",
    "total": "{}/total",
    "info_nce_clips": "clip_nce",
    "info_nce_frames": "frame_nce",
    "diversity": "div",
    "query_structure": "qsp",
    "frame_distillation": "kl",
    "entailment": "pop",
    "prior_kl": "pvs",
    "diffusion": "dre",
}
DTYPES = [torch.float64, torch.float32]


@pytest.fixture(scope="module", params=SYSTEMS)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def _outputs(golden: Golden, retriever: prvr.Retriever, objective: prvr.Objective, batch: prvr.Batch, out):
    found = {
        "video_query": query_vectors(out.text),
        "encoded_clip_feat": out.video.clips,
        "clip_scale_scores": out.scores.clips,
        "frame_scale_scores": out.scores.frames,
        "clip_scale_scores_unnorm": out.scores.clips_dot,
        "frame_scale_scores_unnorm": out.scores.frames_dot,
        "eval_score": out.scores.total,
    }
    if golden.system == "gmmformer":
        found |= {"encoded_frame_feat": out.video.frames[:, 0]}
    else:
        found |= {"some_frames": out.video.frames[:, ::16]}
    if golden.system == "gmmformer-v2":
        found |= {"first_clips": out.video.clips[:, :4]}
    if golden.system == "dl-dkd":
        found |= {"video_query": out.text.sentence, "exploration_query": out.text.words[:, 0]}
        found |= {"first_rows": out.video.clips[:2, :30:10]}
    if golden.system == "msc-prvr":
        found |= {"clip_sizes": out.video.merged.sizes, "clip_of": out.video.merged.clip_of}
    if golden.system == "ms-sl":
        found |= {"proposals": out.video.clips[:, ::100]}
    if golden.system == "hlformer":
        part = objective.entailment
        query, video = part.lift_text(out.text), part.lift_video(part.pool(out.video))
        angle, aperture = part.angles(video[batch.query_to_video], query)
        found |= {
            "frame_pooled": part.pool_frames(out.video.frames),
            "clip_pooled": part.pool_clips(out.video.clips),
            "curv": part.log_curvature.exp(),
            "query_hyp": query[..., 1:],
            "video_hyp": video[..., 1:],
            "pop_angle": angle,
            "pop_aperture": aperture,
        }
    if golden.system == "dreamprvr":
        found |= {
            "condition": out.registers.condition,
            "pvs_mu": out.registers.prior.mean,
            "pvs_logvar": out.registers.prior.logvar,
            "registers_r0": out.registers.tokens,
        }
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_and_losses_and_gradients(golden: Golden, dtype: torch.dtype) -> None:
    exact = dtype == torch.float64
    retriever, objective = golden.load(dtype)
    batch = golden.batch(dtype)
    out = retriever(batch)
    found = _outputs(golden, retriever, objective, batch, out)
    stored = {key.removeprefix("out64/") for key in golden.arrays if key.startswith("out64/")}
    assert len(stored & found.keys()) >= 6
    for name, value in found.items():
        if name not in stored and "drawn" in golden.arrays:
            continue  # such a file is small
        register = name == "registers_r0"
        tolerance = (5e-6 if register else 1e-6) if exact else (2e-5 if register else 1e-5)
        # Ten steps amplify rounding: for the registers the authors' float32 numbers are stored as well.
        own = f"out/{name}"
        expected = golden.arrays[own if own in golden.arrays and not exact else f"out64/{name}"]
        check_close(value, expected, tolerance, name)

    terms = objective(out, batch, negatives="hardest", **golden.given(dtype))
    keys = {name: f"loss64/{TERMS.get(name, name).format('hard_lo')}" for name in (*LOSSES.names, *terms, *TERMS)}
    assert set(terms) == {name for name, key in keys.items() if key in golden.arrays}
    for name, value in terms.items():
        check_close(value, golden.arrays[keys[name]], 1e-6 if exact else 1e-5, name)

    terms["total"].backward()
    gradients = tensors(retriever, grad=True) | tensors(objective, grad=True)
    # The authors' own float32 and float64 gradients differ by up to 1e-3: each precision has its own numbers.
    prefix = "grad64/" if exact or "drawn" in golden.arrays else "grad/"
    stored = [key for key in golden.arrays if key.startswith(prefix)]
    assert len(stored) >= 5
    for key in stored:
        check_close(gradients[key.removeprefix(prefix)], golden.arrays[key], 1e-6 if exact else 1e-4, key)
    if exact:
        names = json.loads(str(golden.arrays["gradnorm64_names"]))
        for name, norm in zip(names, golden.arrays["gradnorm64"], strict=True):
            if norm < 0:
                assert name not in gradients
            else:
                assert abs(float(gradients[name].norm()) - norm) <= max(1e-6 * norm, 1e-12), name


@pytest.mark.parametrize("golden", ["ms-sl", "gmmformer-v2", "ral", "dl-dkd", "msc-prvr"], indirect=True)
def test_a_converted_checkpoint_gives_the_authors_scores_from_raw_features(golden: Golden, tmp_path: Path) -> None:
    """Features as extractors store them through `convert`, our reader and the model, beside the authors' loader."""
    sizes = json.loads(str(golden.arrays["drawn"]))
    videos, words = drawn_corpus(sizes["seeds"][1] + 100, sizes)
    texts = TextData({"test": [Caption(name, video_of(name), "a caption") for name in words]})
    write_layout(tmp_path / "tvr", texts, videos=videos.items(), queries=words.items())
    torch.save({"state_dict": golden.state, "config": golden.config}, tmp_path / "best.ckpt")
    converted = convert_checkpoint(tmp_path / "best.ckpt", "tvr", tmp_path / "converted")
    retriever = load_pretrained(tmp_path / "converted").double()
    data = dataclasses.replace(
        converted.config.data, root=str(tmp_path), feature=None, cache_dir=str(tmp_path / "cache")
    )
    split = open_split(dataclasses.replace(converted.config, data=data), "test")
    with torch.no_grad():
        clips, frames, mask, _ = next(split.video_batches(len(split)))
        queries, word_mask, _ = next(split.query_batches(len(words)))
        video = retriever.encode_video(clips.double(), frames.double(), mask)
        scores = retriever.score(retriever.encode_text(queries.double(), word_mask), video).total
    split.close()
    # Of a video of three frames many pairs are equal; theirs merge in the order of a sort that is not stable.
    comparable = slice(-1) if golden.system == "msc-prvr" else slice(None)
    check_close(scores[:, comparable], golden.arrays["raw/eval_score"][:, comparable], 1e-6, "scores")


def test_every_tensor_returns_under_the_authors_name(golden: Golden) -> None:
    retriever, objective = golden.load(torch.float32)
    named = tensors(retriever) | tensors(objective)
    assert set(named) == set(golden.state)
    for name, value in golden.state.items():
        assert torch.equal(named[name], value), name


def test_dl_dkd_of_the_branch_of_its_paper_has_other_names() -> None:
    """Its branches are A and B, and B's projection of words serves both."""
    golden, later = Golden("dl-dkd"), {"mapping_linear": "out_mapping_linear", "frame": "visual"}
    iccv, expected = {}, golden.state
    for name, tensor in golden.state.items():
        old = f"A_{name[4:]}" if name.startswith("exp_") else f"B_{name}"
        for theirs, ours in later.items():
            old = old.replace(ours, theirs)
        iccv[old] = tensor
        if name.startswith("query_input_proj"):
            expected[f"exp_{name}"] = tensor
    iccv["A_query_input_proj.net.1.bias"] = torch.full((16,), torch.nan)  # never read
    config = {"B_hidden_size" if k == "inheritance_hidden" else k: v for k, v in golden.config.items()}
    named = tensors(prvr.load_released(iccv, config)[0])
    assert all(torch.equal(named[name], tensor) for name, tensor in expected.items())
    single = {name: tensor for name, tensor in iccv.items() if name.startswith("B_")}
    named = tensors(prvr.load_released(single, {k: v for k, v in config.items() if k != "double_branch"})[0])
    assert set(named) == {name for name in golden.state if not name.startswith("exp_")}


def test_dl_dkd_with_soft_labels_with_one_branch_and_with_two_widths(caplog: pytest.LogCaptureFixture) -> None:
    golden = Golden("dl-dkd")
    batch, state = golden.batch(torch.float64), golden.state
    soft, _ = prvr.load_released(state, golden.config | {"label_style": "soft"})
    check_close(soft.double()(batch).scores.total, golden.arrays["out64/eval_score"], 1e-6, "soft labels")
    assert "label_style is 'soft': scores do not depend on it, but the losses here are those of 'hard'" in caplog.text
    single = {name: tensor for name, tensor in state.items() if not name.startswith("exp_")}
    config = {key: value for key, value in golden.config.items() if key != "double_branch"}  # as their files are
    for changes in ({}, {"double_branch": False}):
        retriever, objective = prvr.load_released(single, config | changes)
        out = retriever.double()(batch)
        check_close(out.scores.total, golden.arrays["out64/clip_scale_scores"], 1e-6, "one branch")
        terms = objective.double()(out, batch, negatives="hardest")
        for name, key in (
            ("triplet_clips", "hard_lo/clip_trip"),
            ("info_nce_clips", "clip_nce"),
            ("frame_distillation", "kl"),
        ):
            check_close(terms[name], golden.arrays[f"loss64/{key}"], 1e-6, name)
    with pytest.raises(CheckpointError, match="lacks tensors: exp_"):
        prvr.load_released(single, golden.config)
    with pytest.raises(CheckpointError, match="its branches are 16 and 24 wide: those of DL-DKD here have one width"):
        prvr.load_released(state, golden.config | {"exploration_hidden": 24})


def test_training_trajectory(golden: Golden) -> None:
    """Eight steps of the released optimiser, float64: clip per tensor, decay by name, no bias correction."""
    retriever, objective = golden.load(torch.float64)
    batch, arguments = golden.batch(torch.float64), golden.given(torch.float64)
    optim = OptimConfig(name="bert_adam", lr=1e-3, weight_decay=0.01, decay="released", warmup=0.2)
    config = Config(name="golden", model=retriever.config, loss=objective.config, optim=optim)
    optimizer, _ = build_optimizer(config, retriever, objective, total_steps=20)
    losses = []
    for _ in range(8):
        total = objective(retriever(batch), batch, negatives="hardest", **arguments)["total"]
        losses.append(total.item())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        project_bounds(retriever, objective)
    np.testing.assert_allclose(losses, golden.arrays["traj/loss64"], rtol=1e-6)
    assert losses[0] == losses[1], "the first step has learning rate 0"
    assert losses[7] < losses[0]


def test_released_windows() -> None:
    checked = 0
    for system in SYSTEMS:
        for key, expected in Golden(system).arrays.items():
            if key.startswith("gauss/L32_w"):
                width = float(key.removeprefix("gauss/L32_w"))
                check_close(released_window(32, width), expected, 1e-5, key)  # stored in float32
                checked += 1
    assert checked >= 13


def test_fusion_weights_and_lorentz_context() -> None:
    golden = Golden("hlformer")
    retriever, _ = golden.load(torch.float64)
    batch = golden.batch(torch.float64)
    branch = retriever.clips
    assert branch is not None
    sequences = Sequences(None, 32)
    x = branch.embed(batch.clips, sequences)
    stack = branch.layers[0]
    check_close(
        stack.fusion.logits(stack.blocks(x, sequences), None)[0],
        golden.arrays["mid/clip/maim_logits"],
        1e-6,
        "maim_logits",
    )
    context = stack.groups[1].mixer.context(x, sequences, stack.windows[1](32), None)
    check_close(context[1, :2], golden.arrays["mid/clip/h1_lorentz_context"], 1e-6, "lorentz_context")
    check_close(stack.blocks(x, sequences)[5, :2], golden.arrays["mid/clip/h1"], 1e-6, "Lorentz block 1")


def test_bounds_are_kept() -> None:
    golden = Golden("hlformer")
    state = golden.state
    state["curv"] = torch.tensor(-3.0)
    state["textual_alpha"] = torch.tensor(0.4)
    state["clip_encoder.h_attns.0.self.scale_alpha"] = torch.tensor(0.25)
    retriever, objective = prvr.load_released(state, golden.config)
    found = tensors(retriever) | tensors(objective)
    assert float(found["curv"]) == pytest.approx(np.log(0.1))
    assert float(found["textual_alpha"]) == 0.0
    assert float(found["clip_encoder.h_attns.0.self.scale_alpha"]) == 0.0


def test_a_checkpoint_of_another_model_is_refused() -> None:
    golden, other = Golden("hlformer"), Golden("gmmformer")
    weight = "query_encoder.self.query.weight"
    for state, config, message in (
        (other.state, golden.config, "lacks tensors: clip_encoder"),
        ({"weight": torch.zeros(2)}, {}, "none of its 1 tensors has a known name"),
        (golden.state | {weight: torch.zeros(3, 3)}, golden.config, rf"{weight} has shape \(3, 3\).*\(32, 32\)"),
        (golden.state | {"surplus.weight": torch.zeros(1)}, golden.config, r"unknown tensors: surplus\.weight"),
        (golden.state, {k: v for k, v in golden.config.items() if k != "hidden_size"}, "lacks hidden_size"),
        (
            golden.state,
            golden.config | {"loss_factor": [0.05, 0.04, 8e-5]},
            r"lacks loss_factor\[3\]; it has: .*_factor\[0\]",
        ),
        (golden.state | {weight: golden.state[weight] * torch.nan}, golden.config, rf"{weight} holds NaN"),
    ):
        with pytest.raises(CheckpointError, match=message):
            prvr.load_released(state, config)
    with pytest.raises(CheckpointError, match="unknown system"):
        released_config("CLIP", golden.config)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_preset_stands_for_every_key_that_a_configuration_lacks(system: str) -> None:
    preset = prvr.load_config(f"{system}-tvr")
    name = system_of(tensors(prvr.Retriever(preset.model)), {})
    assert released_config(name, {}, preset=preset.name) == (preset.model, preset.loss)


WITHOUT = """
import sys
import pkgutil, prvr.published
for module in pkgutil.walk_packages(prvr.published.__path__, "prvr.published."):
    if module.name.rpartition(".")[2].startswith(("released", "loading", "tensor_names", "checkpoint")):
        sys.modules[module.name] = None  # as if it were not there
import torch, prvr.stages
print("diffusers" in sys.modules)
from prvr.models import build_retriever

SMALL = {"model.hidden": 16, "model.heads": 2, "model.video_dim": 12, "model.query_dim": 10}
TOKENS = {"model.frame_projection": "linear", "model.word_projection": "linear", "model.init_from": None}

for preset in sys.argv[1:]:
    tokens = "lorentz_dim" not in prvr.config.config_to_dict(prvr.load_config(preset).model)
    changes = SMALL | (TOKENS | {"model.clip": None} if tokens else {"model.lorentz_dim": 15})
    config = prvr.load_config(preset, changes, shared=True)
    retriever = build_retriever(config.model)
    objective = prvr.Objective(config.loss, config.model, retriever.registers)
batch = prvr.Batch(clips=torch.randn(2, 32, 12), frames=torch.randn(2, 9, 12),
    frame_mask=torch.ones(2, 9, dtype=torch.bool), words=torch.randn(2, 5, 10),
    word_mask=torch.ones(2, 5, dtype=torch.bool), query_to_video=torch.tensor([0, 1]))
objective(retriever(batch), batch)["total"].backward()
assert retriever.eval()(batch).scores.total.isfinite().all()
from prvr.cli import main
assert main(["train", "--preset", "hybrid-toy", "--optim.lr", "0.5", "--print-config"]) == 0
try:
    build_retriever(prvr.load_config("hlformer-tvr").model)
except ImportError as error:
    print(error.name)
"""


def test_defaults_do_without_released_parts() -> None:
    """Presets that are not of a paper are built, and the hybrid trains and scores, without what the released code alone
    has.

    Those of a paper need it. Importing the stages leaves diffusers alone.
    """
    papers = ("gmmformer-", "hlformer-", "dreamprvr-", "holmes-", "ral-", "msc-", "ms-sl-", "dl-dkd-")
    names = [name for name in prvr.preset_names() if not name.startswith(papers) and not name.endswith("-released")]
    if not NIGHTLY:  # those of other corpora have other sizes
        names = [name for name in names if name.endswith(("-toy", "-clip"))]
    command = [sys.executable, "-c", WITHOUT, *sorted(names, key="hybrid-toy".__eq__)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    diffusers, config = process.stdout.split("\n", 1)
    assert diffusers == "False"
    assert "  lr: 0.5\n" in config
    assert config.splitlines()[-1].startswith("prvr.published.")


STORED = {
    "dreamprvr-tvr": "window=released padding=to_length lorentz=released entailment=released register_noise=start"
    " register_times=random register_constants=float32 transport=released decay=released",
    "hybrid-tvr": "window=centred padding=masked lorentz=correct entailment=correct register_noise=gaussian"
    " register_times=sincos register_constants=float64 transport=masked lorentz_start=printed decay=matrices",
    "hybrid-toy": "window=printed lorentz_start=balanced",
    "gmmformer-tvr": "padding=to_batch",
    "diffusionret-msrvtt": "alignment=released norms=released",
    "msc-prvr-tvr": "merging=stored",
    "msc-prvr-toy": "merging=unit",
    "diffusionret-toy": "alignment=masked norms=clip",
}


@pytest.mark.parametrize("preset", STORED)
def test_names_that_runs_have_stored_are_read(preset: str) -> None:
    """Literally those, so that no part loses its name, whatever the presets call it."""
    words = dict(word.split("=") for word in STORED[preset].split())
    keys = {"optim.decay" if name == "decay" else f"model.compat.{name}": value for name, value in words.items()}
    config = prvr.load_config(preset, keys)
    assert {key: attrgetter(key)(config) for key in keys} == keys
    assert build_retriever(config.model).config == config.model


def test_the_page_has_a_row_for_each_field_of_compat() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compat.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(?:model\.compat\.)?(\w+)` \|", page, flags=re.MULTILINE)
    assert {field.name for record in (Compat, TokenCompat) for field in dataclasses.fields(record)} <= set(rows)


def test_no_gradient_is_lost_where_a_cone_is_wider_than_a_right_angle() -> None:
    """A video so near the origin that 2K / (sqrt(c) |v|) exceeds 1: the released gradient is not a number there."""
    module = ReleasedEntailment(LossConfig()["entailment"], ModelConfig(video_dim=8, query_dim=8, hidden=8))
    text = torch.randn(3, 8, requires_grad=True)
    clips = (1e-3 * torch.randn(3, 4, 8)).requires_grad_()
    output = RetrieverOutput(text, VideoEmbedding(clips=clips), Scores(torch.zeros(3, 3)))
    loss = module(LossInputs(output, Labels(3, torch.arange(3))))
    gradients = torch.autograd.grad(loss, [text, clips, module.log_curvature], allow_unused=True)
    assert all(bool(g.isfinite().all()) for g in gradients if g is not None)


DIM, LORENTZ, CODE = 128, 63, 32
NORM = r"(LayerNorm|layer_norm|norm\d|blcok_(in|out)\.0|cond_embedding\.0)"
# The authors' rules by the authors' names, the first that fits: mean and standard deviation of a tensor's entries.
RULES = {
    r"manifold\.k$": (1.0, 0.0),
    r"^curv$": (0.0, 0.0),  # the logarithm of 1
    r"(textual|video)_alpha$": (-0.5 * math.log(DIM), 0.0),
    r"scale_alpha$": (-0.5 * math.log(LORENTZ), 0.0),
    r"multiattention\.scale$": (math.sqrt(LORENTZ + 1), 0.0),
    r"multiattention\.bias$": (0.0, 0.0),
    r"linear_(query|keys|values)\.scale$": (math.log(10), 0.0),
    r"gru\.weight_ih": (0.0, math.sqrt(2 / (CODE + 3 * CODE))),  # Xavier, over the three gates at once
    r"gru\.weight_hh": (0.0, math.sqrt(1 / (3 * CODE))),  # orthonormal columns
    r"gru\.bias": (0.0, 0.0),
    r"(query_tokens|weight_token)$": (0.0, 1.0),
    NORM + r"\.weight$": (1.0, 0.0),
    r"bias$": (0.0, 0.0),
    r"weight$": (0.0, 0.02),
}


@pytest.mark.parametrize("system", [*SYSTEMS, "holmes-words"])
def test_every_tensor_starts_as_the_authors_let_it(system: str) -> None:
    small = {"model.hidden": DIM, "model.video_dim": 256, "model.query_dim": 192, "model.lorentz_dim": LORENTZ}
    if system == "hlformer":
        small |= {"model.compat.lorentz": "released", "model.compat.entailment": "released", "model.window": "multiply"}
    config = prvr.load_config(f"{system}-tvr", small, shared=True)
    torch.manual_seed(0)
    retriever = prvr.Retriever(config.model)
    found = tensors(retriever) | tensors(prvr.Objective(config.loss, config.model, retriever.registers))
    assert len(found) > 50
    for name, tensor in found.items():
        mean, std = next(rule for pattern, rule in RULES.items() if re.search(pattern, name))
        size = tensor.numel()
        assert tensor.mean().item() == pytest.approx(mean, rel=1e-6, abs=5 * std / math.sqrt(size) + 1e-7), name
        if size > 1:  # five standard errors, of a mean and of a standard deviation
            assert tensor.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * size), abs=1e-7), name
        if "gru.weight_hh" in name:
            torch.testing.assert_close(tensor.mT @ tensor, torch.eye(CODE), atol=1e-5, rtol=0)
