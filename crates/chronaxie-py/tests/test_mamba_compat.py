"""The block of mamba_ssm by its own names: arguments, parameters, output and caches."""

import inspect
from types import SimpleNamespace

import chronaxie
import pytest
import torch
from chronaxie.torch import Mamba as Ours
from chronaxie.torch.compat import Mamba
from conftest import assert_near

# As published.
ARGUMENTS = (
    "d_model d_state d_conv expand dt_rank dt_min dt_max dt_init dt_scale dt_init_floor conv_bias bias use_fast_path layer_idx device dtype"
)
PARAMETERS = {"A_log", "D", "in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "out_proj.weight"}


def test_arguments_and_parameters_are_the_originals(device):
    assert list(inspect.signature(Mamba).parameters) == ARGUMENTS.split()
    block = Mamba(6, 4, 4, 2, "auto", 0.001, 0.1, "random", 1.0, 1e-4, True, False, True, 7, device, torch.float32)
    assert set(block.state_dict()) == PARAMETERS and block.layer_idx == 7
    assert block.A_log._no_weight_decay and block.D._no_weight_decay and block.dt_proj.bias._no_reinit
    other = Ours(6, 4).to(device)
    other.load_state_dict(block.state_dict())
    x = torch.randn(3, 9, 6, device=device)
    assert torch.equal(block(x), other(x)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("d_conv", [1, 4])
def test_a_prefill_and_steps_by_its_caches_are_the_whole(device, dtype, d_conv):
    torch.manual_seed(0)
    block = Mamba(8, 4, d_conv, layer_idx=0, device=device, dtype=dtype)
    assert block.A_log.dtype is torch.float32 and block.in_proj.weight.dtype is dtype
    x = torch.randn(2, 9, 8, device=device, dtype=dtype)
    params = SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0)
    with torch.no_grad():
        whole = block(x)
        # The second time with what the first has left there.
        for _ in range(2):
            params.seqlen_offset = 0
            parts = [block(x[:, :5], inference_params=params)]
            for t in range(5, 9):
                params.seqlen_offset = t
                parts.append(block(x[:, t : t + 1], params))
            bound = 1e-6 if dtype is torch.float32 else 2e-2
            assert_near("steps", torch.cat(parts, 1).float(), whole.float(), bound)
        conv_state, ssm_state = params.key_value_memory_dict[0]
        assert conv_state.shape == (2, 16, d_conv) and ssm_state.shape == (2, 16, 4)
        # The last inputs of the convolution, the newest behind.
        if d_conv > 1:
            inner = block.in_proj(x).chunk(2, -1)[0].transpose(1, 2)
            assert_near("inputs", conv_state.float(), inner[..., -d_conv:].float(), 1e-2 if dtype is torch.bfloat16 else 1e-6)
        states = block.allocate_inference_cache(2, 100)
        first, conv_state, ssm_state = block.step(x[:, :1], *states)
        assert conv_state is states[0] and ssm_state is states[1] and states[1].abs().max() > 0
        assert_near("first", first.float(), whole[:, :1].float(), 1e-6 if dtype is torch.float32 else 2e-2)


def test_how_the_time_steps_start():
    torch.manual_seed(0)
    assert torch.equal(Mamba(32, dt_init="constant", dt_scale=2.0).dt_proj.weight, torch.full((64, 2), 2.0 * 2**-0.5))
    wide = Mamba(32, dt_scale=3.0).dt_proj.weight.abs().max()
    assert 2.5 * 2**-0.5 < wide <= 3.0 * 2**-0.5
    with pytest.raises(chronaxie.ConfigError, match='dt_init must be "random" or "constant", not \'zero\''):
        Mamba(8, dt_init="zero")
    with pytest.raises(chronaxie.ConfigError, match="need a layer_idx"):
        Mamba(8)(torch.randn(1, 2, 8), SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0))
