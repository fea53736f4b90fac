"""Real languages that an emulator executes: the tools' versions and the floor in prompts, the stop
at the floor, and names of a manual that the tools refuse, in a run and in the acceptance test.
Skipped without the emulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.search.model_writes.chips import emulated
from ingestion.uploads import FileUpload
from kb.errors import Unavailable
from optimizer.evaluation.acceptance.accept import accept_manuals
from optimizer.evaluation.bundle import Bundle
from optimizer.search.goal import Goal
from optimizer.search.records import Proposal
from optimizer.search.runs.acceptance import problem_source
from optimizer.search.runs.optimize import optimize
from optimizer.search.runs.places import places_for
from optimizer.search.synthesizers.base import ProposalContext
from optimizer.search.synthesizers.llm.prompt import compose
from optimizer.search.synthesizers.llm.templates import Fence
from retrieval.coverage import coverage
from tests.optimizer.search.landscape import RecordingListener
from tests.retrieval.drawn_bases import DrawnBase
from tests.shared import BUILTIN, copy_knowledge

pytestmark = pytest.mark.slow(seconds=20)

CHIP, LANGUAGE = "riscv-v", "rvv"
DOCUMENTS = tuple(
    path.relative_to(BUILTIN).as_posix()
    for folder in ("hardware", "samples")
    for chip in (CHIP, "hexagon-v66-hvx")
    for path in (BUILTIN / folder / chip).iterdir()
)
KERNEL = """#include "chip.h"
#include <riscv_vector.h>

void kernlore_run(const tensor *t) {
  const float *x = t[0].data, *y = t[1].data;
  float *out = t[2].data;
  for (size_t n = t[0].elements, vl; n > 0; n -= vl, x += vl, y += vl, out += vl) {
    vl = __riscv_vsetvl_e32m1(n);
    vfloat32m1_t a = __riscv_vle32_v_f32m1(x, vl), b = __riscv_vle32_v_f32m1(y, vl);
    b = __riscv_vfmax_vv_f32m1(a, b, vl);
    __riscv_vse32_v_f32m1(out, __riscv_vfmacc_vf_f32m1(b, 2.0f, a, vl), vl);
  }
}
"""
MANUAL = """# Vector functions

## __riscv_vfmax_vv_f32m1

`vfloat32m1_t __riscv_vfmax_vv_f32m1(vfloat32m1_t a, vfloat32m1_t b, size_t vl)` returns the larger
elements.

## __riscv_vfbig_vv_f32m1

`vfloat32m1_t __riscv_vfbig_vv_f32m1(vfloat32m1_t a, vfloat32m1_t b, size_t vl)` returns the larger
elements too.

## __riscv_vfmin_vv_f32m1

`vfloat32m1_t __riscv_vfmin_vv_f32m1(vfloat32m1_t a, vfloat32m1_t b, size_t vl)` returns the smaller
elements.
"""


def wider(lmul: int) -> str:
    return KERNEL.replace("32m1", f"32m{lmul}")


@dataclass
class Scripted:
    """Proposes kernels in order, and keeps the requests that a model would have got."""

    kernels: list[str]
    requests: list[str] = field(default_factory=list)
    name: str = "external"
    first_tries: int = 1

    def propose(self, context: ProposalContext) -> Proposal | None:
        self.requests.append(compose(context, Fence(), budget=20_000, tools=False).user)
        if len(self.requests) > len(self.kernels):
            return None
        source = self.kernels[len(self.requests) - 1]
        bundle = Bundle({"kernel.c": source}, "kernel.c", LANGUAGE, "kernlore_run")
        return Proposal(bundle, "external")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[DrawnBase]:
    folder = tmp_path_factory.mktemp("emulated")
    made = DrawnBase(folder, model_cache, copy_knowledge(folder / "knowledge", DOCUMENTS))
    try:
        emulated(CHIP, 1, made.folder, made.folder).register(made.services)
        places_for(made.services, CHIP, LANGUAGE)
        yield made
    except Unavailable as missing:
        pytest.skip(f"{missing.message}. {missing.hint} (`make emulators`)")
    finally:
        made.local.close()


def searched(base: DrawnBase, scripted: Scripted, *, knowledge: bool = False) -> str:
    problem = base.folder / "elementwise.py"
    problem.write_text(problem_source("elementwise", "float32", {"M": 64, "N": 64}))
    goal = Goal(language=LANGUAGE, candidates=len(scripted.kernels), knowledge=knowledge)
    finished = optimize(
        base.services, problem, goal, CHIP, RecordingListener(), proposers=[scripted]
    )
    return finished.run.ended


def test_run_tells_floor_and_stops_at_it(base: DrawnBase) -> None:
    measured = [wider(lmul) for lmul in (1, 2, 4, 8)]
    same = [f"{wider(8)}// again, {n}\n" for n in range(5)]
    scripted = Scripted([*measured, *same])
    ended = searched(base, scripted)
    first, last = scripted.requests[0], scripted.requests[-1]
    assert "tools of rvv: " in first and "clang version 19" in first and "qemu-riscv64" in first
    assert "Floor" not in first
    assert "Floor, fitted from" in last and "the best kernel is at it" in last
    assert ended.startswith("the best kernel is at the floor of") and "instructions" in ended
    assert len(scripted.requests) == len(measured) + 3


def test_names_that_tools_refuse_are_remembered(base: DrawnBase) -> None:
    upload = FileUpload("functions.md", MANUAL.encode(), "hardware", (CHIP,), languages=(LANGUAGE,))
    base.upload([upload])
    wrong = KERNEL.replace("vfmax", "vfbig")
    missing = KERNEL.replace("#include <riscv_vector.h>\n", "").replace("vfmax", "vfmin")
    searched(base, Scripted([wrong, missing, KERNEL]))
    [row] = coverage(base.services, CHIP).refused
    assert row.name == "__riscv_vfbig_vv_f32m1" and ", candidate " in row.seen
    assert row.section == f"Vector functions > {row.name}"
    told = Scripted([wider(2)])
    searched(base, told, knowledge=True)
    assert f"does not know these names of the manuals: {row.name}." in told.requests[0]


HEADER = """
/* C Intrinsic Prototype: HVX_Vector Q6_Vh_vadd_VhVh(HVX_Vector Vu, HVX_Vector Vv) */
#define Q6_Vh_vadd_VhVh(Vu,Vv) __builtin_a(Vu,Vv)
/* C Intrinsic Prototype: HVX_Vector Q6_Vh_vsub_VhVh(HVX_Vector Vu, HVX_Vector Vv) */
#define Q6_Vh_vsub_VhVh(Vu,Vv) __builtin_b(Vu,Vv)
/* C Intrinsic Prototype: HVX_Vector Q6_Vh_vwarp_VhVh(HVX_Vector Vu, HVX_Vector Vv) */
#define Q6_Vh_vwarp_VhVh(Vu,Vv) __builtin_c(Vu,Vv)
#if __HVX_ARCH__ >= 68
/* C Intrinsic Prototype: HVX_Vector Q6_Vsf_vadd_VsfVsf(HVX_Vector Vu, HVX_Vector Vv) */
#define Q6_Vsf_vadd_VsfVsf(Vu,Vv) __builtin_d(Vu,Vv)
#endif
"""


def test_acceptance_tries_names_where_the_sample_calls_in_a_loop(base: DrawnBase) -> None:
    chip = "hexagon-v66-hvx"
    header = FileUpload("protos.h", HEADER.encode(), "hardware", (chip,), languages=("hvx",))
    base.upload([header])
    [result] = accept_manuals(base.services, chip).languages
    outcomes = {f.subject: f.outcome for f in result.findings if f.check == "name"}
    assert outcomes["Q6_Vh_vadd_VhVh"] == outcomes["Q6_Vh_vsub_VhVh"] == "right"
    assert outcomes["Q6_Vh_vwarp_VhVh"] == "contradicted"
    assert outcomes["Q6_Vsf_vadd_VsfVsf"] == "unchecked"  # the header says from which version on
    assert [row.name for row in coverage(base.services, chip).refused] == ["Q6_Vh_vwarp_VhVh"]
