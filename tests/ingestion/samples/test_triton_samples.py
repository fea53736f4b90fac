"""Triton samples that no other test runs, in Triton's interpreter against float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[3] / "hw_manuals" / "samples"

# Triton decides at import whether kernels are interpreted, so this needs a separate process.
CHILD = """
import importlib.util, sys, types, torch
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(multi_processor_count=5)
torch.manual_seed(0)

def sample(path):
    spec = importlib.util.spec_from_file_location("sample", f"{sys.argv[1]}/{path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

ends = torch.tensor([0, 37, 37, 167, 172], dtype=torch.int32)
a, b = torch.randn(172, 72), torch.randn(4, 100, 72)
grouped = sample("hopper/grouped-gemm-descriptors.py").grouped_gemm
found = grouped(a, b, ends, block_m=32, block_n=32, block_k=32)
parts = [a[ends[i] : ends[i + 1]].double() @ b[i].double().T for i in range(4)]
torch.testing.assert_close(found.double(), torch.cat(parts), atol=1e-4, rtol=1e-4)

product = sample("hopper/fp8-block-scaled-gemm.py").fp8_dense
grouped = sample("hopper/fp8-grouped-block-scales.py").fp8_grouped
a, b = (torch.randn(*shape).to(torch.float8_e4m3fn) for shape in ((172, 384), (4, 256, 384)))
of_a, of_b = torch.rand(172, 3) + 0.5, torch.rand(4, 2, 3) + 0.5
left = a.double() * of_a.double().repeat_interleave(128, 1)
right = b.double() * of_b.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
# The interpreter cuts bf16 off instead of rounding it.
found = product(a, b[0], of_a.T.contiguous().T, of_b[0]).double()
torch.testing.assert_close(found, left @ right[0].T, atol=0.05, rtol=8e-3)
parts = [left[ends[i] : ends[i + 1]] @ right[i].T for i in range(4)]
found = grouped(a, b, of_a, of_b, ends).double()
torch.testing.assert_close(found, torch.cat(parts), atol=0.05, rtol=8e-3)

def gated(x, up):
    gate, value = (x.double() @ up.double().T).chunk(2, -1)
    return torch.nn.functional.silu(gate) * value

x, up, down = torch.randn(130, 72), torch.randn(2 * 136, 72) * 0.1, torch.randn(72, 136) * 0.1
found = sample("hopper/gated-ffn.py").gated_ffn(x, up, down)
torch.testing.assert_close(found.double(), gated(x, up) @ down.double().T, atol=1e-4, rtol=1e-4)

ids, shares = torch.rand(130, 5).topk(2, -1).indices.int() % 4, torch.rand(130, 2)
up, down = torch.randn(4, 2 * 136, 72) * 0.1, torch.randn(4, 72, 136) * 0.1
found = sample("hopper/routed-experts.py").routed_experts(x, ids, shares, up, down)
every = torch.stack([gated(x, up[e]) @ down[e].double().T for e in range(4)])
chosen = every[ids.long(), torch.arange(130)[:, None]] * shares.double()[..., None]
torch.testing.assert_close(found.double(), chosen.sum(1), atol=1e-4, rtol=1e-4)

query, key, value = torch.randn(3, 1, 2, 100, 16)
gate, rate = torch.randn(2, 1, 2, 100) - torch.tensor([3.0, 0.0])[:, None, None, None]
found = sample("nvidia/gated-delta-rule.py").gated_delta_rule(query, key, value, gate, rate)
query, key = (torch.nn.functional.normalize(x.double(), dim=-1) for x in (query, key))
state = torch.zeros(1, 2, 16, 16, dtype=torch.float64)
for step in range(100):
    state *= torch.exp(-torch.nn.functional.softplus(gate[:, :, step].double()))[..., None, None]
    error = value[:, :, step] - (key[:, :, step, None] @ state)[:, :, 0]
    error *= torch.sigmoid(rate[:, :, step])[..., None]
    state += key[:, :, step, :, None] * error[:, :, None]
    expected = (query[:, :, step, None] @ state)[:, :, 0] / 4
    torch.testing.assert_close(found[:, :, step].double(), expected, atol=1e-5, rtol=1e-4)

decode = sample("nvidia/mla-decode.py").mla_decode
lengths, table = torch.tensor([1, 65, 200], dtype=torch.int32), torch.randperm(12).view(3, 4).int()
query, cache = torch.randn(3, 24, 576), torch.randn(12, 64, 576)
found = decode(query, cache, table, lengths, 192**-0.5)
for i in range(3):
    keys = cache[table[i].long()].reshape(-1, 576)[: lengths[i]].double()
    weights = (query[i].double() @ keys.T * 192**-0.5).softmax(-1)
    torch.testing.assert_close(found[i].double(), weights @ keys[:, :512], atol=1e-4, rtol=1e-4)
try:
    decode(query.transpose(0, 1).contiguous().transpose(0, 1), cache, table, lengths, 192**-0.5)
except AssertionError:
    print("a strided query is refused")
"""


@pytest.mark.slow(seconds=10)
@pytest.mark.skipif(sys.platform != "linux", reason="triton has wheels for Linux only")
def test_expert_linear_attention_and_latent_decoding_samples() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(SAMPLES)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a strided query is refused\n"
