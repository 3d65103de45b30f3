"""Earlier names: accepted with a warning, refused beside the current one, and read from checkpoints."""

import importlib

import pytest
import torch
from unchecked import unchecked_lorentz

import lorentz.functional as lf
from lorentz.nn import LorentzMultiheadAttention


def test_earlier_keywords_warn_and_mean_the_same() -> None:
    x, window = lf.expmap0(torch.randn(2, 5, 4)), torch.randn(5, 5)
    with pytest.warns(DeprecationWarning, match="is called") as seen:
        got = lf.lorentz_attention(x, x, x, scale=2.0, bias=window)  # type: ignore[call-arg]
    assert sorted(str(one.message) for one in seen) == [
        "bias= is called attn_bias= now",
        "scale= is called temperature= now",
    ]
    assert torch.equal(got, lf.lorentz_attention(x, x, x, temperature=2.0, attn_bias=window))
    with pytest.warns(DeprecationWarning, match="heads= is called num_heads= now"):
        module = LorentzMultiheadAttention(dim=4, heads=2, bias=False)  # type: ignore[call-arg]
    assert (module.embed_dim, module.num_heads, module.query.linear.bias) == (4, 2, None)
    with pytest.warns(DeprecationWarning, match="window= is called attn_bias= now"):
        got = module(x, x, x, window=window)
    assert torch.equal(got, module(x, x, x, attn_bias=window))


def test_the_warning_points_at_the_caller() -> None:
    with unchecked_lorentz():  # the shape checks of the test run stand between caller and function
        attention = importlib.import_module("lorentz").lorentz_attention
    x = lf.expmap0(torch.randn(2, 5, 4))
    with pytest.warns(DeprecationWarning, match="scale=") as seen:
        attention(x, x, x, scale=2.0)
    assert [one.filename for one in seen] == [__file__]


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(TypeError, match="num_heads: also given as heads, its earlier name"):
        LorentzMultiheadAttention(4, num_heads=2, heads=2)  # type: ignore[call-arg]


def test_a_checkpoint_with_the_scale_of_earlier_versions_loads() -> None:
    source, other = LorentzMultiheadAttention(4, 2), LorentzMultiheadAttention(4, 2)
    with torch.no_grad():
        source.log_temperature.fill_(0.3)
    state = source.state_dict()
    state["log_scale"] = state.pop("log_temperature")
    outer = torch.nn.Sequential(other)
    outer.load_state_dict({f"0.{name}": tensor for name, tensor in state.items()})
    assert other.log_temperature == 0.3
    assert "log_scale" in state
