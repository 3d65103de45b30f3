"""What a checkpoint says about the curvature: it is saved, compared on loading, and never changed without a word."""

import io
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from lorentz.nn import Curvature, ExpMap0, LogMap0, LorentzLinear, LorentzMultiheadAttention

WIDE = (0.01, 1000.0)


def model(c: float | Curvature) -> nn.Sequential:
    return nn.Sequential(ExpMap0(c), LorentzLinear(4, 4, c=c), LogMap0(c))


def saved_and_read(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("learnable", [True, False])
@pytest.mark.parametrize("assign", [True, False])
def test_a_curvature_keeps_its_c_in_other_bounds(learnable: bool, assign: bool) -> None:
    state = saved_and_read(Curvature(1.0, learnable).state_dict())
    other = Curvature(2.0, learnable, bounds=WIDE)
    other.load_state_dict(state, assign=assign)
    torch.testing.assert_close(other(), torch.tensor(1.0))
    assert other.bounds == WIDE


@pytest.mark.parametrize("learnable", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_a_c_outside_of_the_bounds_is_refused(learnable: bool, strict: bool) -> None:
    message = r"0\.curvature: the checkpoint holds c = 50 with the bounds 0\.01 and 1000; .* 0\.1 and 10; build it with"
    with pytest.raises(RuntimeError, match=message):
        model(Curvature(1.0, learnable)).load_state_dict(
            model(Curvature(50.0, learnable, bounds=WIDE)).state_dict(), strict=strict
        )


def test_another_number_is_refused_and_the_same_is_not() -> None:
    layer = LorentzMultiheadAttention(4, 2, out_features=4, c=0.7)
    with pytest.raises(RuntimeError, match=r"query\.curvature: .* saved with c = 1, this layer has c = 0"):
        layer.load_state_dict(LorentzMultiheadAttention(4, 2, out_features=4, c=1.0).state_dict())
    layer.load_state_dict(saved_and_read(LorentzMultiheadAttention(4, 2, out_features=4, c=0.7).state_dict()))
    assert "(curvature): Constant(c=0.7)" in repr(layer)


@pytest.mark.parametrize("c", [0.7, Curvature(0.7), Curvature(0.7, learnable=False)])
def test_checkpoints_of_earlier_versions_load(c: float | Curvature) -> None:
    layers = model(c)
    state = {name: tensor for name, tensor in layers.state_dict().items() if not name.endswith("_extra_state")}
    assert len(state) < len(layers.state_dict())
    assert layers.load_state_dict(state) == nn.Module().load_state_dict({})
    with pytest.raises(RuntimeError, match=r"Missing key.*1\.linear\.bias"):
        layers.load_state_dict({name: tensor for name, tensor in state.items() if name != "1.linear.bias"})


@pytest.mark.parametrize("bounds", [(0.1, 10.0), WIDE])
def test_safetensors_with_a_shared_curvature(tmp_path: Path, bounds: tuple[float, float]) -> None:
    source, file = model(Curvature(0.4)), str(tmp_path / "model.safetensors")
    safetensors.torch.save_model(source, file)  # a tensor under several names is written once
    other = model(Curvature(2.0, bounds=bounds))
    safetensors.torch.load_model(other, file)
    v = torch.randn(3, 4)
    torch.testing.assert_close(other(v), source(v))
