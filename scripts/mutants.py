"""Would the tests notice? Small mistakes, each put into a copy of the packages on which tests are run.

    python scripts/mutants.py lorentz|regdiff|prvr [--only N ...] [--tests FILE ...]

A mutant is killed when a test fails, and the first that fails is printed; those of prvr name the tests that they are
run with. The working tree is only read. Ends with 1 where one survives, and with an error where tests fail without a
mutant, or the text that one replaces is not there exactly once.
"""

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Fast ones, those that kill most first; pytest runs them in this order.
TESTS = {
    "lorentz": (
        "test_reference",
        "test_functional",
        "test_attention",
        "test_properties_sets",
        "test_properties",
        "test_validation",
        "test_checked",
        "test_gradients",
    ),
    "regdiff": (
        "test_diffusion_losses",
        "test_gaussian",
        "test_guidance",
        "test_register_masks",
        "test_diffusion",
        "test_registers",
        "test_schedulers",
        "test_samplers",
    ),
}


class Mutant(NamedTuple):
    """One mistake: in which file below packages/*/src, what it replaces, by what, and whose mistake it is.

    The file of one without a folder is in the package. `tests` are ids of pytest below tests/, separated by blanks; if
    empty, `TESTS` of the package.
    """

    file: str
    old: str
    new: str
    why: str
    tests: str = ""


LORENTZ = (
    Mutant("_hyperboloid.py", "same_side = of.xy >= 0", "same_side = of.xy == of.xy", "one form of Q for all angles"),
    Mutant(
        "_hyperboloid.py",
        "wedge = torch.where(near, 1.0, xx), torch.where(near, xx * dd - xd.square(), dot(p, p))",
        "wedge = torch.ones_like(xx), xx * dd - xd.square()",
        "the Gram form of |x ^ y|^2 far out",
    ),
    Mutant(
        "_hyperboloid.py",
        "return vv / xx0 / c + torch.where(",
        "return vv / xx0 + torch.where(",
        "a curvature forgotten: right at c = 1 only",
    ),
    Mutant(
        "_series.py",
        "torch.where(positive, torch.sqrt(torch.where(positive, q, 1.0)), 0.0)",
        "torch.sqrt(q.clamp_min(0.0))",
        "a root with an infinite slope at 0",
    ),
    Mutant("_series.py", "_SINHC_LIMIT = 0.2", "_SINHC_LIMIT = 0.8", "a Taylor series used too far out, by a little"),
    Mutant("_series.py", "_ASINHC_LIMIT = 0.02", "_ASINHC_LIMIT = 0.08", "the same, in the other series"),
    Mutant(
        "maps.py",
        "0.5 * q * sinhc(0.25 * q).square()",
        "0.5 * q * sinhc(0.25 * q)",
        "cosh - 1 without its square: right to first order",
    ),
    Mutant("maps.py", "v = asinhc(0.25 * q)", "v = asinhc((0.25 * q).clamp_min(1e-8))", "a clamp in the logarithm"),
    Mutant("maps.py", "torch.where(of.near, direct, split)", "direct", "transport by differences far out"),
    Mutant("maps.py", "/ (2.0 + 0.5 * q) * (x + y)", "/ (2.0 + q) * (x + y)", "a factor 2 in transport"),
    Mutant(
        "_fused.py",
        "factor = hyp.range_factor(x)",
        "factor = torch.ones_like(x[..., :1])",
        "overflow of a square at radius 44 in float32",
    ),
    Mutant(
        "distances.py",
        "2.0 * torch.asinh(0.5 * safe_sqrt(q))",
        "torch.acosh(1.0 + 0.5 * torch.relu(q))",
        "the textbook acosh",
    ),
    Mutant(
        "_centroid.py",
        "return _over(weights, weights.sum(-1, keepdim=True))",
        "return weights",
        "tiny weights underflow",
    ),
    Mutant(
        "_centroid.py",
        "/ (p0 + along), p0 - along)",
        "* 0.0 + p0 - along, p0 - along)",
        "s0 - |s| by subtraction far out",
    ),
    Mutant(
        "_centroid.py", "across, slant).mT", "across, 0.0 * slant).mT", "rounding on the mean", "lorentz/test_far.py"
    ),
    Mutant(
        "_centroid.py", "gx = gx + (turn", "gx = gx + 0.0 * (turn", "rounding of a far point", "lorentz/test_far.py"
    ),
    Mutant("_centroid.py", "torch.where(near < far,", "torch.where(near < 0.0,", "a difference near the origin"),
    Mutant(
        "_centroid.py",
        "squared = torch.where(squared < bound, bound, squared)",
        "squared = squared.abs()",
        "no lower bound on -c<s, s> when it cancels",
    ),
    Mutant("cones.py", "r = hyp.root(c) * hyp.length(x)", "r = hyp.length(x)", "an aperture right at c = 1 only"),
    Mutant("cones.py", "hyp.across_exact(x, of.e)", "hyp.across(x, of.e)", "angles on the line nearly 0, not 0"),
    Mutant("cones.py", "adjacent = hyp.root(c) * safe", "adjacent = safe", "an exterior angle right at c = 1 only"),
    Mutant("attention.py", "sharpness = 2.0 /", "sharpness = 1.0 /", "half of the squared Lorentz distance"),
    Mutant(
        "attention.py",
        "return space if alive is None else torch.where(alive, space, 0.0)",
        "return space",
        "a row without keys is the mean of all values",
    ),
    Mutant(
        "_fused.py",
        "obtuse = hyp.scaled(both - xy, c) - 1.0",
        "obtuse = (both - xy) - 1.0",
        "Q beyond a right angle",
    ),
    Mutant(
        "_fused.py",
        "y.add_(x).mul_(cosh)",
        "y.mul_(cosh).add_(cosh * x)",
        "inf - inf in the exponential map",
    ),
    Mutant("_fused.py", "- length) / hyp.root(c)", "- 2.0 * length) / hyp.root(c)", "the gradient of a distance by c"),
    Mutant(
        "_fused.py",
        "_SINHC_SLOPE_LIMIT = 0.2",
        "_SINHC_SLOPE_LIMIT = 2.0",
        "a Taylor series of a gradient used too far out",
    ),
    Mutant(
        "_validation.py",
        'value.device.type == "cpu" and not torch',
        "False and not torch",
        "a curvature in a tensor is not read",
    ),
    Mutant(
        "points.py",
        "if _is_true(off.any()):\n            raise ValueError(_message(",
        "if _is_true(off.all()):\n            raise ValueError(_message(",
        "points are refused only where all are off",
    ),
    Mutant(
        "points.py",
        "except RuntimeError:\n        return False",
        "except KeyError:\n        return False",
        "values that cannot be read",
    ),
    Mutant(
        "means.py",
        "for _ in range(2):",
        "for _ in range(1):",
        "a mean without its second derivatives",
        "lorentz/test_means.py",
    ),
    Mutant("gyro.py", "torch.where(of.near, smooth, of.p - along * x)", "smooth", "a boost by differences far out"),
    Mutant(
        "lorentz/nn/maps.py",
        "hyp.root(c) * hyp.length(v)",
        "hyp.length(v)",
        "clipping at a norm, not at a radius",
        "lorentz/test_nn.py",
    ),
    Mutant("lorentz/nn/maps.py", "(limit / torch.where(", "(1.0 / torch.where(", "clipped to 1", "lorentz/test_nn.py"),
    Mutant(
        "distributions.py",
        "v - share * loc + torch.where(far, share / a, 0.0) * loc",
        "v - share * loc",
        "a density without what v has along loc",
        "lorentz/test_distributions.py",
    ),
    Mutant(
        "distributions.py",
        "torch.where(far, yy, a * (a + 1.0) / c)",
        "a * (a + 1.0) / c",
        "a transport to the origin that cancels far out",
        "lorentz/test_distributions.py",
    ),
    Mutant(
        "distributions.py",
        "dtype=self.loc.dtype, device=self.loc.device)",
        "device=self.loc.device)",
        "draws of float32 in float64",
        "lorentz/test_distributions.py",
    ),
    Mutant(
        "_series.py",
        "- torch.log(2.0 * s)",
        "- torch.log(s)",
        "a density off by a factor",
        "lorentz/test_distributions.py",
    ),
    Mutant(
        "lorentz/nn/attention.py",
        ".tril(count - length)",
        ".tril()",
        "a query at the end that sees the first keys alone",
        "lorentz/test_nn_attention.py",
    ),
    Mutant(
        "lorentz/models.py",
        "_poincare_dist, precision, c, *ball_points(c, p=p, q=q)).squeeze(-1)",
        "_poincare_dist, precision, c, *ball_points(c, p=p, q=q)).squeeze()",
        "a batch axis of length 1 is lost",
        "lorentz/test_batches.py",
    ),
    Mutant(
        "lorentz/_ball.py",
        "/ as_float(self.c) ** 0.5",
        "/ as_float(self.c)",
        "a ball of radius 1/c",
        "lorentz/test_batches.py",
    ),
    Mutant(
        "lorentz/nn/attention.py",
        "mask = valid if mask is None else mask & valid",
        "mask = valid",
        "of two masks one is forgotten",
        "lorentz/test_nn_attention.py",
    ),
    Mutant(
        "lorentz/nn/mlr.py",
        "torch.where(across < 0, 0.0, across)",
        "torch.where(across <= 0, 0.0, across)",
        "no second derivative at the edge",
        "lorentz/test_nn_mlr.py",
    ),
    Mutant(
        "lorentz/nn/maps.py",
        "length = hyp.root(c) * hyp.length(v)",
        "length = hyp.length(v)",
        "a bound that holds at c = 1 alone",
        "lorentz/test_nn.py",
    ),
    Mutant(
        "lorentz/_fused.py",
        " and not (isinstance(c, Tensor) and c.ndim)",
        "",
        "curvatures per row in blocks of rows",
        "lorentz/test_batches.py",
    ),
    Mutant(
        "lorentz/nn/convolution.py",
        "[..., ::spread]",
        "",
        "a dilation that reads every point",
        "lorentz/test_nn_convolution.py",
    ),
    Mutant(
        "lorentz/nn/contrastive.py",
        "each.sum() / (counts > 0).sum().clamp_min(1)",
        "each.mean()",
        "generals without specifics count as losses of 0",
        "lorentz/test_nn_contrastive.py",
    ),
    Mutant(
        "lorentz/nn/linear.py", "self.gate(x)", "self.gate(h)", "a gate of what was activated", "lorentz/test_nn.py"
    ),
    Mutant(
        "points.py",
        "hyp.root(c) * torch.linalg.vector_norm(p",
        "c * torch.linalg.vector_norm(p",
        "a radius right at c = 1 only",
        "lorentz/test_checked.py",
    ),
    Mutant(
        "lorentz/nn/attention.py",
        "mask = before if mask is None else mask & before",
        "mask = before",
        "is_causal drops the mask",
        "lorentz/test_nn_attention.py",
    ),
    Mutant(
        "lorentz/nn/_heads.py",
        "None if ctx.unit else largest, factor > 0)",
        "None, factor > 0)",
        "the clamp left out of a second derivative",
        "lorentz/test_nn_attention.py",
    ),
    Mutant(
        "distributions.py",
        "v = p._draw()",
        "v = p._draw().detach()",
        "the gradient of the KL through its sample",
        "lorentz/test_distributions.py",
    ),
)
REGDIFF = (
    Mutant("losses.py", "(gamma / snr).clamp(max=1.0)", "(gamma / snr)", "min-SNR weights without their cap"),
    Mutant("losses.py", "capped / (snr + 1)", "capped / snr", "min-SNR weights of the velocity"),
    Mutant(
        "losses.py",
        "valid = mask.any(1) if values.ndim == 1 else mask",
        "valid = mask",
        "rows without a valid register in a mean",
    ),
    Mutant("losses.py", "logits.masked_fill(target == 0, 0)", "logits", "0 log 0 is not a number"),
    Mutant("schedule.py", "/ (1 + COSINE_OFFSET) *", "*", "the cosine schedule without its offset's scale"),
    Mutant(
        "schedule.py",
        "u = torch.arange(1, steps + 1,",
        "u = torch.arange(0, steps,",
        "a flow that never reaches pure noise",
    ),
    Mutant(
        "schedule.py", "round(stride * k) - 1", "round(stride * k - 1) if k > 1 else 0", "spacing that always ends at 0"
    ),
    Mutant(
        "forward.py",
        "return signal * noise - sigma * target",
        "return signal * noise + sigma * target",
        "the sign of the velocity",
    ),
    Mutant("forward.py", "return noise - target", "return target - noise", "the sign of the flow"),
    Mutant(
        "solver.py",
        "return torch.add(signal * x, prediction, alpha=-sigma)",
        "return torch.add(x, prediction, alpha=-sigma)",
        "x_0 of a velocity without the signal",
    ),
    Mutant("solver.py", "F.hardtanh(clean, -limit, limit)", "clean", "estimates are not clipped"),
    Mutant(
        "solver.py",
        "terms = [(weight, value) for weight, value in terms if weight]",
        "terms = [(weight, value) for weight, value in terms if weight > 0]",
        "negative weights of a step",
    ),
    Mutant(
        "predictor.py",
        "null + self.scale * (conditional - null)",
        "conditional + self.scale * (conditional - null)",
        "guidance from the wrong end",
    ),
    Mutant(
        "predictor.py",
        '{"mask": torch.cat((mask, mask))}',
        '{"mask": torch.cat((mask, torch.ones_like(mask)))}',
        "the mask of the null half",
    ),
    Mutant(
        "regdiff/registers/gaussian.py",
        "(self.mean**2 + self.logvar.exp() - 1 - self.logvar)",
        "(self.mean**2 + self.logvar.exp() - self.logvar)",
        "a divergence that is not 0 at N(0, I)",
    ),
    Mutant(
        "regdiff/registers/gaussian.py",
        "return torch.exp(0.5 * self.logvar)",
        "return torch.exp(self.logvar)",
        "the variance for the deviation",
    ),
    Mutant(
        "regdiff/registers/gaussian.py",
        "ordered.masked_fill(padding.unsqueeze(-1), 0)",
        "ordered",
        "padding in a pooling: 0 times -inf",
    ),
    Mutant(
        "regdiff/registers/condition.py",
        "end = -(-(segment + 1) * count // num)",
        "end = (segment + 1) * count // num",
        "segments whose end is rounded down",
    ),
    Mutant(
        "regdiff/registers/condition.py",
        "x = masked(x, mask)  # a weight of 0",
        "x = x  # a weight of 0",
        "a NaN in padding",
    ),
    Mutant(
        "diffusion.py",
        "torch.where(width > 0, width, 1)",
        "width.clamp_min(1e-12)",
        "rounding of a constant coordinate, divided by nothing",
        "regdiff/test_first_inputs.py",
    ),
    Mutant(
        "diffusion.py",
        'for name in ("_modules", "_parameters", "_buffers"):',
        "for name in ():",
        "a copy with another scheduler that shares its dictionaries",
        "regdiff/test_ownership.py",
    ),
    Mutant(
        "forward.py",
        "key = (like.device, like.dtype)",
        "key = like.device",
        "numbers of one precision for all",
        "regdiff/test_diffusion.py",
    ),
    Mutant(
        "schedulers.py",
        "if getattr(module, name, None) is kind:",
        "if name in _MODULES:",
        "schedulers known by their name",
        "regdiff/test_scheduler_refusals.py",
    ),
    Mutant(
        "schedulers.py",
        "if type(scheduler) is _class_of(name)[0] else None",
        "if name else None",
        "a derived scheduler saved as what it is derived from",
        "regdiff/test_scheduler_refusals.py",
    ),
    Mutant(
        "solver.py",
        "SIZES = (1e-2, 1.0, 1e2, 1e4)",
        "SIZES = (1.0, 1.0, 1.0, 1.0)",
        "clamps that no number of the test reaches",
        "regdiff/test_scheduler_refusals.py",
    ),
    Mutant(
        "regdiff/registers/generator.py",
        "return config | start | sampling | rest",
        "return config",
        "options as they were made, not as they were set",
        "regdiff/test_ownership.py",
    ),
    Mutant(
        "diffusion.py",
        "noise_of(noise, target, steps, generator)[timesteps, each]",
        "noise_of(noise, target, steps, generator)[0, each]",
        "the noise of timestep 0 for every row",
        "regdiff/test_diffusion.py",
    ),
    Mutant(
        "reverse.py",
        "return masked(replacement, mask)",
        "return replacement",
        "padding replaced",
        "regdiff/test_diffusion.py",
    ),
    Mutant(
        "likelihood.py",
        "slope = first * (",
        "slope = (",
        "the first coefficient left out of a slope",
        "regdiff/test_likelihood.py",
    ),
    Mutant(
        "geodesic.py",
        "self.velocity(x, time + step, condition)",
        "self.velocity(x, time, condition)",
        "a backward step at the wrong time",
        "regdiff/test_geodesic.py",
    ),
    Mutant(
        "losses.py",
        'F.mse_loss(prediction, target, reduction="none")',
        'F.mse_loss(prediction, target.detach(), reduction="none")',
        "no gradient to the target",
        "regdiff/test_diffusion_losses.py",
    ),
)
PRVR = (
    Mutant(
        "prvr/evaluation/metrics.py",
        '{"worst": first + self.tied,',
        '{"worst": first,',
        "ties on the other side",
        "prvr/test_metrics.py::test_ranks_agree_with_a_loop",
    ),
    Mutant(
        "prvr/evaluation/metrics.py",
        "first + self.tied / 2",
        "first + self.tied // 2",
        "the mean of ties, rounded down",
        "prvr/test_metrics.py::test_ranks_agree_with_a_loop",
    ),
    Mutant(
        "prvr/evaluation/rank.py",
        "for video in sorted(videos)])",
        "for video in sorted(videos)[:1]])",
        "one right video of several",
        "prvr/test_evaluation.py::test_report_agrees_with_the_whole_matrix",
    ),
    Mutant(
        "prvr/evaluation/lists.py",
        "_LEVEL[ties] * (level - higher)",
        "_LEVEL[ties] * level",
        "what is above a relevant video counts among its ties",
        "prvr/test_lists.py::test_places_of_relevant_videos_agree_with_a_loop",
    ),
    Mutant(
        "prvr/scoring.py",
        "dot = dot.masked_fill(~mask, -torch.inf)",
        "dot = dot * 1",
        "a mask left out of a maximum",
        "prvr/test_scoring.py::test_maxima_are_the_plain_loop",
    ),
    Mutant(
        "prvr/scoring.py",
        "return start * unit, stop * unit",
        "return start * unit, (stop - 1) * unit",
        "a moment that ends a step early",
        "prvr/test_scoring.py::test_a_moment_ends_where_the_score_falls",
    ),
    Mutant(
        "prvr/scoring.py",
        "covered = (valid & (overlaps(first, end, start, stop) > overlap)).any(1)",
        "covered = (overlaps(first, end, start, stop) > overlap).any(1)",
        "a moment that was left out leaves out others",
        "prvr/test_lists.py::test_moments_by_hand",
    ),
    Mutant(
        "prvr/published/dl_dkd/parts.py",
        "spans = torch.stack([place, place + 1], -1).to(encoded.dtype) / count[..., None]",
        "spans = torch.stack([place, place + 1], -1).to(encoded.dtype) / self.rows",
        "moments as shares of the longest video",
        "prvr/test_models_clip_rows.py::test_both_branches_encode_frames_and_have_queries_of_their_own",
    ),
    Mutant(
        "prvr/published/qb_norm.py",
        "self.active | other.active",
        "other.active",
        "hubs of the last part of a bank alone",
        "prvr/test_reranking_qb_norm.py::test_banks_add_up",
    ),
    Mutant(
        "prvr/published/diffusionret/candidates.py",
        "wrong = owner[:, None] != owner\n",
        "wrong = ~torch.eye(len(owner), dtype=torch.bool)\n",
        "captions of one video are wrong for each other",
        "prvr/test_reranking_evaluation.py::test_the_other_rows_of_a_step_are_its_wrong_candidates",
    ),
    Mutant(
        "prvr_search/films/decode.py",
        "+ self.origin) / unit)",
        "+ self.origin) * unit)",
        "a jump to the beginning of a film",
        "prvr/test_video_clip.py::test_a_jump_does_not_read_what_comes_before",
    ),
    Mutant(
        "prvr_search/ranking/scores.py",
        "while True:\n        nearest = backend",
        "while False:\n        nearest = backend",
        "a backend that is never asked",
        "prvr/test_search_backends_index.py::test_only_what_a_backend_names_is_scored",
    ),
    Mutant(
        "prvr/stages/matrix.py",
        "new + (gap + 1).where(below, 0)",
        "new",
        "candidates fall behind the rest",
        "prvr/test_pipeline.py::test_the_best_columns_and_their_new_scores",
    ),
    Mutant(
        "prvr/losses/matching.py",
        "candidates = ~positives\n",
        "candidates = ~ground_truth\n",
        "another right video as a negative",
        "prvr/test_losses.py::test_another_right_video_is_no_negative_whatever_its_score",
    ),
    Mutant(
        "prvr/published/hlformer/parts.py",
        "/ sigma) ** 2)) / (2 * torch.pi)",
        "/ sigma) ** 2))",
        "a printed window divided by its maximum",
        "prvr/test_models.py::test_the_printed_window_is_equation_10",
    ),
    Mutant(
        "prvr/published/hlformer/lorentz_mixer.py",
        "centroid(v, weights, c,",
        "centroid(v, weights, 1.0,",
        "a centroid right at c = 1 only",
        "prvr/test_models_lorentz.py::test_a_block_is_the_equations",
    ),
    Mutant(
        "prvr/data/sampling.py",
        "if not keep_last:",
        "if keep_last is not None:",
        "the last frame dropped",
        "prvr/test_data_segment.py::test_every_row_counts_in_the_corrected_form_only",
    ),
    Mutant(
        "prvr/data/packing.py",
        'place = np.array([int.from_bytes(digest[:8], "big") / 2**64 for digest in hashes])',
        "place = np.arange(len(packed)) / len(packed)",
        "videos held out by their numbers",
        "prvr/test_data_loader.py::test_holdout_follows_the_id_and_parts_the_videos",
    ),
    Mutant(
        "prvr/data/packing.py",
        "return [[name, stat.st_size, stat.st_mtime_ns]",
        "return [[name, stat.st_size, 0]",
        "a cache whose key does not change with its sources",
        "prvr/test_data_pack.py::test_it_is_built_once_and_anew_when_source_or_settings_change",
    ),
    Mutant(
        "prvr/data/hashes.py",
        "if hash_file(file) != hashes[name]:",
        "if not hash_file(file):",
        "an error about damaged weights is swallowed",
        "prvr/test_pipeline.py::TestRefusals::test_damage",
    ),
    Mutant(
        "prvr/data/atomic.py",
        "if path.name not in files or not stat.S_ISREG(path.lstat().st_mode):",
        "if path.name is None:",
        "a folder of somebody else is deleted",
        "prvr/test_own_files.py::test_a_folder_that_holds_anything_else_is_not_replaced",
    ),
    Mutant(
        "prvr/data/loader.py",
        "self.teacher[query_indices[:, None], list(videos)]",
        "self.teacher[np.sort(query_indices)[:, None], list(videos)]",
        "rows of a teacher in another order",
        "prvr/test_training_teacher.py::test_batches_carry_the_scores_of_their_own_pairs",
    ),
    Mutant(
        "prvr/config/strict.py",
        'extra="forbid"',
        'extra="ignore"',
        "a key that has moved is ignored",
        "prvr/test_config.py::test_unusable_values_are_named",
    ),
    Mutant(
        "prvr/published/hlformer/__init__.py",
        '    "to_length",',
        '    "by_length",',
        "a name that stored configurations hold is gone",
        "prvr/test_released.py::test_names_that_runs_have_stored_are_read",
    ),
    Mutant(
        "prvr/papers/runs.py",
        "_defaults(self.config) | _EARLIER",
        "_defaults(self.config)",
        "results of an earlier default are not recognised",
        "prvr/test_papers.py::test_results_are_found_under_the_names_that_they_have",
    ),
    Mutant(
        "prvr/training/gradients.py",
        'rows = queries if name.startswith("text") else videos',
        'rows = videos if name.startswith("text") else queries',
        "texts and videos swapped between processes",
        "prvr/test_training_global_batch.py::test_two_processes_are_one",
    ),
    Mutant(
        "prvr/training/gradients.py",
        "[g.to(outputs[name].dtype) for name, g in reached.items()]",
        "[g.to(outputs[name].dtype) / len(leaves) for name, g in reached.items()]",
        "gradients of chunks are a mean",
        "prvr/test_training_global_batch.py::test_chunks_change_nothing[halves-hybrid-tvr]",
    ),
    Mutant(
        "prvr/training/trainer.py",
        'torch.manual_seed(derived_seed(*place, "dropout"))',
        "torch.get_rng_state()",
        "a resumed run draws other numbers",
        "prvr/test_training_resume.py::test_a_run_stopped_inside_an_epoch_goes_on_there_bitwise[bert_adam-3-2-3-kept1]",
    ),
    Mutant(
        "prvr/training/optimizer.py",
        "torch._foreach_add_(update, params, alpha=decay)",
        "torch._foreach_add_(update, params, alpha=decay * lr)",
        "decay by the square of the learning rate",
        "prvr/test_training_optimizer.py::test_bert_adam_gives_the_released_numbers",
    ),
    Mutant(
        "prvr/training/splits.py",
        'Splits(training, open_split(config, "val"), report)',
        "Splits(training, report, report)",
        "val taken for test",
        "prvr/test_training_loop.py::test_val_selects_on_a_split_that_is_neither_learned_nor_reported",
    ),
    Mutant(
        "prvr/training/closed_form.py",
        "*captions.targets(videos)",
        "*captions.targets(range(len(videos)))",
        "captions shared out among rows of other videos",
        "prvr/test_training_closed_form.py::test_a_fit_is_that_of_plain_loops",
    ),
    Mutant(
        "prvr/training/closed_form.py",
        "strength = penalty * rows.trace().clamp(min=0) +",
        "strength = penalty +",
        "a penalty in other units than the features",
        "prvr/test_training_closed_form.py::test_a_fit_is_that_of_plain_loops",
    ),
    Mutant(
        "prvr/training/closed_form.py",
        "for group in groups if selection is None else (*groups, np.empty(0)):",
        "for group in groups:",
        "a fit is not chosen on the split that selects",
        "prvr/test_training_closed_form.py::test_the_split_that_selects_has_a_say_and_one_that_is_reported_has_none",
    ),
    Mutant(
        "prvr/training/splits.py",
        'self.val if config.train.protocol == "paper" else self.selection',
        "self.selection",
        "a fit is chosen on the split that is reported",
        "prvr/test_training_closed_form.py::test_the_split_that_selects_has_a_say_and_one_that_is_reported_has_none",
    ),
    Mutant(
        "prvr/training/retrieval.py",
        "if lead.interval.low > 0 else 0.0",
        "if lead.value > 0 else 0.0",
        "a gate that is better by chance",
        "prvr/test_training_closed_form.py::test_blocks_beside_a_path_have_to_earn_their_share",
    ),
    Mutant(
        "prvr/training/closed_form.py",
        "logits.masked_fill(~self.valid[:, None], -torch.inf)",
        "logits",
        "padded rows get a share of a caption",
        "prvr/test_training_closed_form.py::test_a_fit_is_that_of_plain_loops",
    ),
    Mutant(
        "prvr/training/closed_form.py",
        "yield _Fold(train, total(train), test)",
        "yield _Fold(train, total(train), train)",
        "settings are judged on what the map was fitted to",
        "prvr/test_training_closed_form.py::test_the_split_that_selects_has_a_say_and_one_that_is_reported_has_none",
    ),
    Mutant(
        "prvr/training/closed_form.py",
        "(scores >= scores.gather",
        "(scores > scores.gather",
        "equal scores count for the fit",
        "prvr/test_training_closed_form.py::test_equal_scores_count_against_the_fit",
    ),
    Mutant(
        "prvr_search/films/subtitles.py",
        "start = packet.pts * packet.time_base - origin",
        "start = packet.pts * packet.time_base",
        "subtitles by the clock of the file",
        "prvr/test_subtitles.py::test_lines_have_the_time_of_the_pictures_wherever_the_clock_of_a_file_begins",
    ),
    Mutant(
        "prvr_search/store/upkeep.py",
        "if volume_of(place.path) != place.volume:",
        "if place.volume is None:",
        "places whose volume is away are deleted",
        "prvr/test_library.py::test_prune_deletes_what_is_gone_and_keeps_what_is_on_another_disk",
    ),
    Mutant(
        "prvr_search/vectors/files.py",
        "max(0, rows - size)], np.int64)",
        "max(0, rows - size - 1)], np.int64)",
        "the last window ends before the video does",
        "prvr/test_search_windows.py::test_windows_cover_a_video",
    ),
    Mutant(
        "prvr_search/ranking/results.py",
        "start, end = window.start + start, min(window.start + end, window.end)",
        "end = min(end, window.end)",
        "moments by the clock of their windows",
        "prvr/test_search_windows.py::test_a_moment_across_two_windows_that_follow_each_other_is_one",
    ),
    Mutant(
        "prvr_search/ranking/results.py",
        "end = self.spans[0].end",
        "end = self.spans[-1].end",
        "the end of another moment",
        "prvr/test_search_windows.py::test_a_long_moment_in_noise_is_found_and_shown_whole",
    ),
    Mutant(
        "prvr_search/ranking/results.py",
        "max(0, len(folded) - NEIGHBOURS)",
        "0",
        "a hit is folded into one far before it",
        "prvr/test_search_fold.py::test_a_hit_is_folded_into_one_of_the_ten_before_it",
    ),
    Mutant(
        "prvr_search/ranking/lines.py",
        "line.start < (videos",
        "line.end < (videos",
        "a line that is shown past the end of its video is not found",
        "prvr/test_subtitles.py::test_a_line_that_is_shown_past_the_end_of_its_video_ends_with_it",
    ),
    Mutant(
        "prvr_search/ranking/filters.py",
        ".casefold(), pattern.casefold())",
        ".casefold(), pattern)",
        "a pattern in capitals matches nothing",
        "prvr/test_search_filter.py::test_what_passes",
    ),
    Mutant(
        "prvr_search/films/sound.py",
        "abs(time - begins - count / rate) > _GAP",
        "abs(time - begins - count / rate) > 100",
        "what is said after a gap has the times of the gap",
        "prvr/test_recognisers.py::test_sound_after_a_gap_is_a_stretch_of_its_own",
    ),
    Mutant(
        "prvr_search/films/timestamps.py",
        "max(JUMP, 10 * interval)",
        "10 * JUMP",
        "a jump of two seconds is believed",
        "prvr/test_video_decode.py::test_a_time_stamp_is_wrong_by_a_second_and_ten_intervals",
    ),
    Mutant(
        "prvr_search/ranking/snapshot.py",
        "first.setdefault(entry.sha256, number)",
        "first.setdefault(entry.sha256, len(first))",
        "numbers of contents for numbers of originals",
        "prvr/test_search_query.py::test_copies_are_one_hit",
    ),
    Mutant(
        "prvr_search/ranking/scores.py",
        "best = best[:, snapshot.originals]",
        "best = best[:, :-1]",
        "a copy that passes a filter has the score of none",
        "prvr/test_search_index.py::test_copies_share_vectors",
    ),
    Mutant(
        "prvr_search/store/proof.py",
        'if content[:HEAD] != f"{digest}\\n".encode():',
        "if False:",
        "the hash of a file is not compared",
        "prvr/test_library_damage.py::test_an_import_takes_what_proves_itself_and_skips_the_rest[files]",
    ),
    Mutant(
        "prvr_search/vectors/files.py",
        "load(bytes(read_proven(path)[0]))",
        "load(path.read_bytes()[HEAD:])",
        "the hash of a file of vectors is not compared",
        "prvr/test_library_damage.py::test_a_flipped_bit_never_changes_an_answer",
    ),
    Mutant(
        "prvr_search/vectors/files.py",
        "if stamp != [*(now := stamp_of(path.lstat()))]:",
        "if [*(now := stamp_of(path.lstat()))][:3] != (stamp or [])[:3]:",
        "a file is known by a time that anybody can set",
        "prvr/test_library_damage.py::test_a_flipped_bit_never_changes_an_answer",
    ),
    Mutant(
        "prvr_search/ranking/snapshot.py",
        "return entry.features or hashlib",
        "return hashlib",
        "vectors are known by their film alone",
        "prvr/test_search_index.py::test_vectors_belong_to_features_and_not_to_a_film",
    ),
    Mutant(
        "prvr_search/vectors/files.py",
        "            path.unlink(missing_ok=True)\n    return",
        "            pass\n    return",
        "files that were joined stay",
        "prvr/test_search_index.py::test_many_small_files_are_joined",
    ),
    Mutant(
        "prvr_search/ranking/snapshot.py",
        "yield owners, file.starts[:-1], arrays",
        "yield owners, file.starts[1:], arrays",
        "a video has the windows of the next one",
        "prvr/test_search_windows.py::test_a_short_moment_in_a_long_film_is_found",
    ),
    Mutant(
        "prvr_search/ranking/scores.py",
        "np.union1d(others, np.array(videos, np.int64))",
        "np.sort(np.array(videos, np.int64))",
        "videos beside the pack are no candidates",
        "prvr/test_search_backends_index.py::test_final_list_is_the_exact_one",
    ),
    Mutant(
        "prvr_search/ranking/index.py",
        "                self.update(features)\n",
        "                pass\n",
        "a search ends where a file of vectors was changed under it",
        "prvr/test_library_damage.py::test_a_file_of_vectors_that_is_cut_under_a_search_is_made_again",
    ),
    Mutant(
        "prvr_search/ranking/index.py",
        "videos = searched[asked[q].passage]",
        "videos = np.intersect1d(searched[asked[q].passage], np.argsort(-video_scores(snapshot, text)[number])[:k])",
        "a filter of the best k",
        "prvr/test_search_filter.py::test_the_best_of_those_that_pass_are_found",
    ),
    Mutant(
        "prvr_search/ranking/scores.py",
        "np.maximum.reduceat(scores, starts, axis=0)",
        "np.add.reduceat(scores, starts, axis=0)",
        "a score that grows with the length of a video",
        "prvr/test_search_ranking.py::test_the_best_are_those_of_scoring_each_by_itself",
    ),
    Mutant(
        "prvr_search/ranking/scores.py",
        "[len(videos) - k] - _ROUNDING",
        "[len(videos) - k]",
        "rounding leaves out one of the best",
        "prvr/test_search_ranking.py::test_what_rounding_may_have_put_behind_the_best_is_scored_again",
    ),
    Mutant(
        "prvr_search/ranking/query.py",
        "unit(target - WITHOUT * direction",
        "unit(target + WITHOUT * direction",
        "what is not wanted is wanted",
        "prvr/test_search_query.py::test_what_is_wanted_is_added_and_what_is_not_is_taken_away",
    ),
    Mutant(
        "prvr_search/ranking/lines.py",
        "is_other = originals != videos.originals[videos.numbers[passage.video]]",
        "is_other = numbers != videos.numbers[passage.video]",
        "the copies of the video that is asked for are found",
        "prvr/test_search_query.py::test_the_film_that_is_asked_for_and_its_copies_are_left_out",
    ),
    Mutant(
        "prvr_search/ranking/index.py",
        "order = fuse([*ranked], [*lines]) if lines else [*ranked]",
        "order = [*each]",
        "lines change nothing in the order",
        "prvr/test_subtitles.py::test_a_line_is_found_with_its_moment",
    ),
    Mutant(
        "prvr_search/ranking/lines.py",
        "if line.start < (videos.entries[owners[sha256]].duration or np.inf):",
        "if True:",
        "a line after the end of its video",
        "prvr/test_subtitles.py::test_times_that_no_player_can_show",
    ),
    Mutant(
        "prvr_search/ranking/results.py",
        "median = min(median, usual + _ABOVE * (float(scores.max()) - usual))",
        "pass",
        "a video that fits as a whole is many moments",
        "prvr/test_search_windows.py::test_a_moment_reaches_as_far_as_the_video_stands_out_from_others",
    ),
    Mutant(
        "prvr_search/store/features.py",
        "if (encoder_key(spec), film.sha256) != (",
        "if (encoder_key(spec), film.sha256) == (0,",
        "features of another film under the name of one",
        "prvr/test_library_damage.py::test_an_import_takes_what_proves_itself_and_skips_the_rest[heads]",
    ),
    Mutant(
        "prvr_search/store/folders.py",
        "and os.path.normpath(path) == path",
        "",
        "places of a library lead out of its folder",
        "prvr/test_library_damage.py::test_the_places_of_another_library_lead_nowhere",
    ),
    Mutant(
        "prvr_search/store/upkeep.py",
        "unused = {*missing.values()} - seen",
        "unused = {sha for films in store.by_key().values() for sha in films} - seen",
        "what was never seen is pruned",
        "prvr/test_library_damage.py::test_nothing_is_pruned_that_was_not_seen_again",
    ),
    Mutant(
        "prvr_search/store/upkeep.py",
        "for key, spec in store.specs().items() if key != kept}",
        "for key, spec in store.specs().items()}",
        "features in use are dropped with those that were replaced",
        "prvr/test_library.py::test_features_of_an_encoder_that_was_replaced_are_listed_and_deleted",
    ),
    Mutant(
        "prvr_search/store/folders.py",
        "{video.file: video for video in self.places(folder).values()}",
        "{video.file: video for video in [*self.places(folder).values()][::-1]}",
        "a folder that is away shows what was seen first",
        "prvr/test_library.py::test_a_folder_that_is_away_shows_the_latest_content_whatever_the_clock_says",
    ),
    Mutant(
        "prvr_search/films/clips.py",
        "start - first > _NEAR",
        "start - first > 10 * _NEAR",
        "a copied clip begins seconds early",
        "prvr/test_video_clip.py::test_a_clip_starts_at_most_a_second_early",
    ),
    Mutant(
        "prvr/corpora/caption_corpus.py",
        "cut=end > duration",
        "cut=start > duration",
        "moments that were cut are not counted",
        "prvr/test_video_captions.py::test_what_the_corpus_holds",
    ),
    Mutant(
        "prvr_search/films/picture.py",
        "* -np.expm1(-over)) /",
        "* over) /",
        "what is brighter than white is not compressed",
        "prvr/test_video_picture.py::test_lights_above_white_paper_stay_apart",
    ),
    Mutant(
        "prvr_search/vectors/teaching.py",
        "self.fit([other for other in folds if other != fold], penalty)",
        "self.fit(folds, penalty)",
        "a map is judged by captions that it was fitted to",
        "prvr/test_teach.py::test_the_penalty_is_that_of_captions_that_the_map_does_not_know",
    ),
    Mutant(
        "prvr_search/vectors/teaching.py",
        "np.minimum(start * rate, len(rows) - 1)",
        "np.minimum(start, len(rows) - 1)",
        "moments of captions are read at one row a second",
        "prvr/test_teach.py::test_map_and_table_are_those_of_a_plain_loop_that_leaves_each_video_out",
    ),
    Mutant(
        "prvr/systems.py",
        "config = replace(config, data=replace(config.data, root=str(root)))",
        "pass",
        "a stage reads another root than its command",
        "prvr/test_cli_rerank.py::TestEvaluate::test_stages_read_the_corpus_where_it_is_now",
    ),
    Mutant(
        "prvr/evaluation/lists.py",
        "((1 + places).log2()",
        "((2 + places).log2()",
        "nDCG with the discount of the next place",
        "prvr/test_lists.py prvr/test_dense_labels.py",
    ),
    Mutant(
        "prvr_search/vectors/joint.py",
        "unit(self.encode_plain(texts) - self._common)",
        "self.encode_plain(texts)",
        "sentences with what all have in common",
        "prvr/test_search_centre.py::test_sentences_are_compared_without_their_mean",
    ),
    Mutant(
        "prvr_search/vectors/trained.py",
        "spans[0].T.reshape(-1, 1)",
        "spans[0].reshape(-1, 1)",
        "starts and ends of clips transposed",
        "prvr/test_search_index.py::test_scores_ranks_and_moments_are_those_of_evaluation[proposals]",
    ),
    Mutant(
        "prvr_search/vectors/trained.py",
        "VideoEmbedding(clips, frames, mask, path=path, ",
        "VideoEmbedding(clips, frames, mask, ",
        "blocks alone order what the path finds",
        "prvr/test_pipeline.py::test_a_search_by_path_and_blocks_finds_what_evaluation_ranks",
    ),
    Mutant(
        "prvr_search/serve/files.py",
        'if not _RANGE.fullmatch(headers.get("range", "")):',
        "if True:",
        "Range ignored",
        "prvr/test_serve_api.py::test_a_file_whole_and_in_parts",
    ),
    Mutant(
        "prvr_search/serve/files.py",
        "if sha256 == video.sha256:",
        "if video.mtime_ns == status.st_mtime_ns:",
        "a file is taken for the film by its size and time",
        "prvr/test_serve_files.py::test_a_link_to_a_private_file_is_not_followed",
    ),
    Mutant(
        "prvr_search/serve/service.py",
        "_REST * (time.monotonic() - began)",
        "time.monotonic() - began",
        "an idle server looks half of the time",
        "prvr/test_serve_api.py::test_an_idle_server_rests_nine_times_as_long_as_it_looks",
    ),
    Mutant(
        "prvr_search/serve/schema.py",
        ' + b"\\0" + video.sha256.encode()',
        "",
        "an address that stays when the content changes",
        "prvr/test_serve_api.py::test_another_content_has_another_address",
    ),
    Mutant(
        "prvr_search/serve/security.py",
        'return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), expected.encode())',
        "return text == expected",
        "a token compared in as long as it fits",
        "prvr/test_serve_security.py::test_a_token_is_compared_in_constant_time",
    ),
    Mutant(
        "prvr_search/ranking/filters.py",
        "filmed(video, time.tzinfo) < time.timestamp()",
        "filmed(video, time.tzinfo) <= time.timestamp()",
        "a file that was changed at a time was changed before it",
        "prvr/test_search_filter.py::test_a_time_without_a_zone_is_local",
    ),
    Mutant(
        "prvr_search/ranking/results.py",
        " and bool(differences.mean() < most)",
        "",
        "videos that are alike in one moment are folded",
        "prvr/test_search_fold.py::test_what_is_folded",
    ),
    Mutant(
        "prvr_search/output/files.py",
        'text.lstrip(" ")[:1] in',
        "text[:1] in",
        "a formula behind a blank",
        "prvr/test_search_output.py::test_no_cell_begins_as_a_formula",
    ),
    Mutant(
        "prvr_search/serve/security.py",
        'path.startswith("/api/videos/") and scope["method"]',
        'scope["method"]',
        "the cookie of a player opens everything",
        "prvr/test_serve_security.py::test_a_cookie_opens_media_for_a_while_and_nothing_else",
    ),
    Mutant(
        "prvr_search/films/decode.py",
        "with suppress(IndexError):",
        "with suppress():",
        "reading fails where streams appear within a file",
        "prvr/test_video_decode.py::test_parts_that_start_again_follow_each_other",
    ),
    Mutant(
        "prvr/papers/study.py",
        'pattern=r"^[\\w-]+$"',
        'pattern="."',
        "a record of a study names a file elsewhere",
        "prvr/test_papers.py::TestStudy::test_what_a_study_from_elsewhere_says_is_checked",
    ),
    Mutant(
        "prvr_search/store/lines.py",
        "is_gone = (sha256, name) not in films",
        "is_gone = False",
        "lines whose file is gone are still found",
        "prvr/test_recognisers.py",
    ),
    Mutant(
        "prvr_search/films/sound.py",
        "begins + cut / rate, count - cut",
        "begins, count - cut",
        "the second stretch of sound has the times of the first",
        "prvr/test_recognisers.py",
    ),
    Mutant(
        "prvr_search/store/store.py",
        "return None if file.film.reason else file.film",
        "return file.film if file.film.frames > 0 else None",
        "a film without lines is recognised again",
        "prvr/test_recognisers.py",
    ),
    Mutant(
        "prvr/models/pretrained.py",
        'weights[f"{prefix}{HEADS}.',
        'weights[f"{prefix}kept.',
        "a head of moments has another name in the file",
        "prvr/test_own_moments.py::test_a_head_that_asks_for_it_is_trained_saved_and_used_with_its_model",
    ),
    Mutant(
        "prvr/evaluation/rejection.py",
        "torch.cat([scores.amax(1)",
        "torch.cat([scores.mean(1)",
        "the mean score for the best one",
        "prvr/test_evaluation.py::test_queries_that_no_video_answers_are_told_by_their_best_score",
    ),
    Mutant(
        "prvr/papers/graded_moments.py",
        "best.overlap(start, end) > iou",
        "best.overlap(start, end) >= iou",
        "an overlap at the limit",
        "prvr/test_graded_moments.py",
    ),
    Mutant(
        "prvr/training/closed_form.py",
        "return replace(_path(windows, width, fit), penalty=penalty, temperature=temperature)",
        "return _path(windows, width, fit)",
        "the chosen penalty is not the one of the fit",
        "prvr/test_training_closed_form.py",
    ),
    Mutant(
        "prvr/training/retrieval.py",
        "card = retriever_card(config, ",
        "card = retriever_card(self.config, ",
        "a card of windows that were not chosen",
        "prvr/test_training_closed_form.py",
    ),
    Mutant(
        "prvr_search/serve/files.py",
        "super().__init__(self, stat_result=",
        "super().__init__(os.dup(file.fileno()), stat_result=",
        "a file stays open when a client leaves",
        "prvr/test_serve_files.py::test_no_file_stays_open_whenever_a_client_leaves",
    ),
    Mutant(
        "prvr_search/output/report.py",
        'return (hit.lines[0].kind or "subtitles") if hit.lines else f"',
        'return (hit.lines[0].kind or "subtitles") if not hit.lines else f"',
        "a line is shown with the score of a picture",
        "prvr/test_search_output.py",
    ),
    Mutant(
        "prvr/training/closed_form.py",
        "4 * sums.rounding * rows.trace() + torch.finfo(rows.dtype).tiny",
        "torch.finfo(rows.dtype).eps",
        "a rounding error that does not grow with the rows",
        "prvr/test_training_closed_form.py::test_a_fit_to_few_videos",
    ),
    Mutant(
        "prvr/training/closed_form.py",
        "rows.trace().clamp(min=0) + error",
        "rows.trace() + error",
        "a variance below 0 by rounding",
        "prvr/test_training_closed_form.py::test_a_fit_to_few_videos",
    ),
    Mutant(
        "prvr/cli/console.py",
        "(*command, *import_options())",
        "command",
        "the next command without its imports",
        "prvr/test_next.py::test_a_retriever_of_ones_own_below_a_stage_and_in_a_table",
    ),
    Mutant(
        "prvr/scoring.py",
        "(start < 0) | (stop > 1)",
        "(start < 0)",
        "moments that end after their video",
        "prvr/test_own_moments.py",
    ),
    Mutant(
        "prvr/data/packed_files.py",
        'if name != "clips"',
        'if name != "words"',
        "offsets of the wrong matrix left out",
        "prvr/test_data_pack.py",
    ),
    Mutant(
        "prvr/data/sampling.py",
        "levels.append(sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12))",
        "levels.append(sums)",
        "means that are not of unit length",
        "prvr/test_data_segment.py",
    ),
    Mutant(
        "prvr/evaluation/metrics.py",
        "share = len(ranks) / max(len(ranks) + misses, 1)",
        "share = 1",
        "queries without a rank left out of the recalls",
        "prvr/test_evaluation.py prvr/test_report.py",
    ),
)
MUTANTS = {"lorentz": LORENTZ, "regdiff": REGDIFF, "prvr": PRVR}


def place_of(package: str, mutant: Mutant) -> Path:
    """The file of a mutant, from the root."""
    name = mutant.file if "/" in mutant.file else f"{package}/{mutant.file}"
    (path,) = (ROOT / "packages").glob(f"*/src/{name}")
    return path.relative_to(ROOT)


def mutated(path: Path, mutant: Mutant) -> str:
    """The text of the file with the mistake; ValueError where the place is gone."""
    text = (ROOT / path).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{path}: {mutant.old!r} is there {text.count(mutant.old)} times, expected once; mend MUTANTS")
    text = text.replace(mutant.old, mutant.new)
    compile(text, path.name, "exec")
    return text


def tests_of(package: str, mutant: Mutant, names: list[str] | None) -> list[str]:
    """The arguments of pytest for a mutant: those named on the command line, its own, or those of the package."""
    if names is None and mutant.tests:
        return [f"tests/{test}" for test in mutant.tests.split()]
    return [f"tests/{package}/{name}.py" for name in names or TESTS[package]]


class FirstFailure:
    """A plugin of pytest with the name of the first test that fails."""

    def __init__(self) -> None:
        self.name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid.removeprefix("tests/")


def first_failure(package: str, texts: dict[Path, str], tests: list[str]) -> tuple[str | None, float]:
    """The first test that fails where these files have these texts (None if all pass), and the seconds it took.

    Runs once in a process.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name).resolve(), time.monotonic()
        for part in ("packages", "tests", "docs", "benchmarks", "examples"):  # some tests read them
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "conftest.py"):
            shutil.copy(ROOT / file, folder / file)
        for path, text in texts.items():
            (folder / path).write_text(text)
        os.chdir(folder)
        sys.path[:0] = sources = [str(path) for path in sorted(folder.glob("packages/*/src"))]
        # The path is for the processes that tests start.
        os.environ.update(CI="1", PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=os.pathsep.join(sources))
        first = FirstFailure()
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=short", *tests], plugins=[first])
        modules = {package, *(path.parts[3] for path in texts)}
        places = [Path(importlib.import_module(module).__file__ or "") for module in modules]
        os.chdir(ROOT)
        if not all(place.is_relative_to(folder) for place in places):
            raise RuntimeError(f"the tests imported {places}, not the copy in {folder}")
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or (code != 0) != (first.name is not None):
            raise RuntimeError(f"the tests did not run:\n{output.getvalue()[-3000:]}")
        return first.name, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=MUTANTS)
    parser.add_argument("--only", nargs="+", type=int, help="numbers of mutants; default: all")
    parser.add_argument("--tenth", action="store_true", help="one in ten, drawn anew each time")
    parser.add_argument("--tests", nargs="+", help="test files of the package, without .py")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    mutants = MUTANTS[args.package]
    numbers = args.only or range(1, len(mutants) + 1)
    if args.tenth:
        numbers = sorted(random.sample(numbers, -(-len(numbers) // 10)))
    chosen = {i: mutants[i - 1] for i in numbers}
    places = {i: place_of(args.package, mutant) for i, mutant in chosen.items()}
    texts = {i: {places[i]: mutated(places[i], mutant)} for i, mutant in chosen.items()}  # all, before anything runs
    tests = {i: tests_of(args.package, mutant, args.tests) for i, mutant in chosen.items()}
    os.environ["HF_HUB_OFFLINE"] = "1"  # as in conftest.py, before huggingface_hub is imported
    context = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        context.set_forkserver_preload(
            ["accelerate", "diffusers", "geoopt", "hypothesis", "matplotlib.figure", "mpmath", "pytest", "torch"]
        )
    survivors = 0
    with ProcessPoolExecutor(args.workers, mp_context=context, max_tasks_per_child=1) as pool:
        every = [*dict.fromkeys(test for some in tests.values() for test in some)]
        unchanged = pool.submit(first_failure, args.package, {}, every)
        runs = {i: pool.submit(first_failure, args.package, texts[i], tests[i]) for i in chosen}
        if (failed := unchanged.result()[0]) is not None:
            pool.shutdown(cancel_futures=True)
            raise RuntimeError(f"without any mutant {failed} fails, so that nothing can be said: mend it first")
        for i, mutant in chosen.items():
            killer, seconds = runs[i].result()
            survivors += killer is None
            verdict = "SURVIVED" if killer is None else f"killed by {killer}"
            print(f"{i:2d} {mutant.file:34s} {mutant.why:50s} {verdict}, {seconds:.0f} s", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} killed; without a mutant all pass")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
