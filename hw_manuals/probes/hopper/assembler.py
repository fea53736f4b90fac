"""What ptxas accepts for sm_90a: the largest value of each limit. Needs no device."""

import os
import subprocess
import tempfile
from pathlib import Path

HEADER = ".version 8.4\n.target {arch}\n.address_size 64\n"
FOLDER = Path(tempfile.mkdtemp(prefix="assembler-"))


def assembles(
    body: str, declarations: str = "", parameters: str = "", arch: str = "sm_90a"
) -> bool:
    """Whether a kernel with this body is accepted."""
    entry = f".visible .entry k({parameters})\n{{\n{body}\nret;\n}}\n"
    text = f"{HEADER.format(arch=arch)}{declarations}\n{entry}"
    source = FOLDER / "k.ptx"
    source.write_text(text, encoding="ascii")
    command = [os.environ["PTXAS"], f"-arch={arch}", "-o", str(FOLDER / "k.cubin"), str(source)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def largest(low: int, high: int, accepts) -> int:
    """The largest accepted value in [low, high], where low is accepted."""
    assert accepts(low), "the smallest value is refused"
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle - 1)
    return low


def report(name: str, value: object) -> None:
    print(
        f"probe {name} {value}" if isinstance(value, int) else f"probe {name} = {value}", flush=True
    )


def answer(name: str, yes: bool) -> None:
    report(name, "yes" if yes else "no")


def load(words: int) -> str:
    names = ", ".join(f"r{n}" for n in range(words))
    registers = f".reg .b32 r<{words}>; .reg .b64 p; mov.b64 p, 64;"
    return f"{registers} ld.global.v{words}.b32 {{{names}}}, [p];"


def product(columns: int, depth: str = "k16", kinds: str = "f32.f16.f16") -> str:
    sums = ", ".join(f"d{n}" for n in range(columns // 2))
    return (
        f".reg .f32 d<{columns // 2}>; .reg .b64 a; mov.b64 a, 0; wgmma.fence.sync.aligned;\n"
        f"wgmma.mma_async.sync.aligned.m64n{columns}{depth}.{kinds}"
        f" {{{sums}}}, a, a, 1, 1, 1, 0, 0;"
    )


def copy(size: int, cache: str = "ca") -> str:
    return f".reg .b64 p; mov.b64 p, 64; cp.async.{cache}.shared.global [s], [p], {size};"


USE = ".reg .b32 r; mov.u32 r, s; st.shared.b8 [r], r;"
IN_SHARED = ".shared .align 128 .b8 s[1024];"
report("named_barriers", largest(0, 63, lambda n: assembles(f"bar.sync {n}, 64;")) + 1)
report(
    "static_shared_memory", largest(1024, 1 << 20, lambda n: assembles(USE, f".shared .b8 s[{n}];"))
)
report(
    "static_shared_memory_portable",
    largest(1024, 1 << 20, lambda n: assembles(USE, f".shared .b8 s[{n}];", arch="sm_90")),
)
report("constant_memory", largest(1024, 1 << 20, lambda n: assembles("", f".const .b8 c[{n}];")))
report(
    "parameter_bytes",
    largest(64, 1 << 18, lambda n: assembles("", parameters=f".param .b8 a[{n}]")),
)
report("vector_load_bytes", 4 * max(n for n in (1, 2, 4, 8) if n == 1 or assembles(load(n))))
report("wgmma_columns", 8 * largest(1, 64, lambda n: assembles(product(8 * n))))
answer("wgmma_columns_by_eight", assembles(product(24)) and not assembles(product(20)))
answer("wgmma_bfloat16_sums_in_half", assembles(product(16, kinds="f16.bf16.bf16")))
answer("async_copy_of_2_bytes", assembles(copy(2), IN_SHARED))
answer("async_copy_past_l1_of_8_bytes", assembles(copy(8, "cg"), IN_SHARED))
report(
    "registers_after_setmaxnreg",
    8 * largest(3, 64, lambda n: assembles(f"setmaxnreg.inc.sync.aligned.u32 {8 * n};")),
)
report(
    "fewest_registers_by_setmaxnreg",
    8 * -largest(-32, -1, lambda n: assembles(f"setmaxnreg.dec.sync.aligned.u32 {-8 * n};")),
)
answer("setmaxnreg_by_eight", not assembles("setmaxnreg.dec.sync.aligned.u32 36;"))
