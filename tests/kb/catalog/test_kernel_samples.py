"""Samples through versions and deletion, toolchain results of them, and kernels of runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kb.catalog import tables as t
from kb.catalog.knowledge import samples
from kb.catalog.knowledge.samples import Sample, VerifiedKernel
from kb.plain import plain

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=6)

MANUAL = """\
# Orbit assembler

## Opcodes

| Opcode | Effect |
|---|---|
| ldt | load a tile |
| stt | store a tile |
| mulacc | multiply and add |

## A row softmax

```orbit
.kernel softmax
    ldt t0, [x0]
loop:
    mulacc a0, t0, t0   // square
    stt [x1], t0
    halt
```
"""
SECOND = """
## Another kernel

```orbit
.kernel rmsnorm
    ldt t0, [x0]
    mulacc a1, t0, t0
    mulacc a1, t0, t1
    stt [x1], t0
    halt
```
"""
KERNEL = VerifiedKernel(
    title="softmax: a row softmax",
    operator="softmax",
    language="orbit",
    hardware="h100",
    shapes=("x float32 [64, 128]",),
    symbols=("ldt", "stt"),
    code=".kernel softmax\n    ldt t9, [x0]\n    stt [x1], t9\n    halt\n",
    evidence="right in every case of softmax, 900 cycles in the simulator",
    run_id="run_1",
)


def upload(store: Store, text: str, name: str = "orbit.md", hardware: str = "h100") -> str:
    return str(store.ingest(name, text, hardware=(hardware,)).document_id)


def kernels(store: Store, *hardware: str) -> list[Sample]:
    with store.catalog.read() as connection:
        return samples.listed(connection, hardware or None)


def add(store: Store, kernel: VerifiedKernel) -> str:
    with store.catalog.write() as connection:
        return samples.add_verified(connection, kernel)


def test_uploaded_manual_stores_its_kernel(store: Store) -> None:
    document = upload(store, MANUAL)
    [kernel] = kernels(store, "h100")
    assert (kernel.operator, kernel.language, kernel.status) == ("softmax", "orbit", "untried")
    assert kernel.code.startswith(".kernel softmax") and kernel.code.rstrip().endswith("halt")
    assert {"ldt", "stt", "mulacc"} <= set(kernel.symbols)
    assert (kernel.document_id, kernel.version, kernel.run_id) == (document, 1, None)
    assert kernel.path[-1] == "A row softmax" and plain(kernel)["code"] == kernel.code
    assert kernels(store, "mi300x", "amd", "any") == []


def test_toolchain_result_is_reused_for_equal_code(store: Store) -> None:
    upload(store, MANUAL)
    with store.catalog.write() as connection:
        known = {"status": "compiles", "evidence": "orbit-as took it"}
        connection.execute(t.samples.update().values(known))
    upload(store, MANUAL + SECOND)
    first, second = sorted(kernels(store), key=lambda k: k.status)
    assert (first.status, first.evidence, first.version) == ("compiles", "orbit-as took it", 2)
    assert (second.operator, second.status, second.evidence) == ("rmsnorm", "untried", "")


def test_changed_code_becomes_untried(store: Store) -> None:
    upload(store, MANUAL)
    with store.catalog.write() as connection:
        connection.execute(t.samples.update().values(status="refused", evidence="E1042"))
    upload(store, MANUAL.replace("mulacc a0, t0, t0", "mulacc a0, t0, t1"))
    [kernel] = kernels(store)
    assert (kernel.status, kernel.evidence, kernel.version) == ("untried", "", 2)


def test_deleted_document_removes_its_samples_but_not_those_of_runs(store: Store) -> None:
    document = upload(store, MANUAL)
    add(store, KERNEL)
    assert [k.run_id for k in kernels(store, "h100")] == ["run_1", None]  # those of runs first
    store.documents.delete(document)
    assert [k.run_id for k in kernels(store)] == ["run_1"]


def test_run_has_one_kernel_per_operator(store: Store) -> None:
    add(store, KERNEL)
    faster = add(store, replace(KERNEL, code=KERNEL.code + "; faster\n", evidence="800 cycles"))
    other = add(store, replace(KERNEL, operator="matmul", code=".kernel matmul\n"))
    add(store, replace(KERNEL, run_id="run_2"))
    mine = [k for k in kernels(store, "h100") if k.run_id == "run_1"]
    assert {k.id for k in mine} == {faster, other}
    [stored] = [k for k in mine if k.id == faster]
    assert (stored.status, stored.evidence, stored.document_id) == ("right", "800 cycles", None)
    assert stored.hardware == ("h100",) and stored.document_title == "" and stored.path == ()
    assert kernels(store, "mi300x") == []
