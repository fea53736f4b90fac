"""Triton samples that no other test runs, in Triton's interpreter against float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[3] / "hw_manuals" / "samples"

# Triton decides at its import whether kernels are interpreted, so that is a process of its own.
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
def test_grouped_products_and_latent_decoding_are_right() -> None:
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
