"""The command toolchain with small real programs: correct and faulty output."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from kb.errors import InvalidRequest
from kb.hardware.spec import ToolchainSpec
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.isolation.levels import can_unshare
from optimizer.evaluation.toolchains.base import CompileCase, Compiled, EvaluationTarget
from optimizer.evaluation.toolchains.command import CommandRun, CommandToolchain
from optimizer.evaluation.toolchains.processes import CommandLimits, members

pytestmark = pytest.mark.slow(seconds=10)

RUN = "python {source} {input}"
TARGET = EvaluationTarget("toy", ("toy",), arch="t1")
ADD = Signature(
    (
        TensorSpec("x", "input", "float32", (2, 3)),
        TensorSpec("layer.weight", "parameter", "float32", (3,)),
        TensorSpec("out", "output", "float32", (2, 3)),
    )
)
# A program of the chip: a Python file whose arguments are the manifest and the report.
READ = """
import json, os, sys, time
from pathlib import Path
manifest = json.loads(Path(sys.argv[1]).read_text())
folder = Path(sys.argv[1]).parent
t = manifest["tensors"]
"""
GOOD = """
total = sum(np.load(folder / row["file"]) for row in t if row["role"] != "output")
np.save(folder / t[-1]["file"], total)
"""
REPORT = """
Path(sys.argv[2]).write_text(json.dumps({"cycles": 40, "time_us": 0.5, "metrics": {"launches": 1}}))
"""


def inputs() -> list[torch.Tensor]:
    return [torch.arange(6, dtype=torch.float32).reshape(2, 3), torch.ones(3)]


def toolchain(**said: str) -> CommandToolchain:
    templates = {"profile": "python {source} {input} {report}", "timing": "simulator", **said}
    return CommandToolchain("toy", ToolchainSpec(**{"run": RUN, **templates}))  # type: ignore[arg-type]


def compiled(chain: CommandToolchain, source: str, workdir: Path) -> Compiled:
    text = READ + textwrap.dedent(source)
    if "np." in source:  # it takes longer to import than most programs run
        text = f"import numpy as np\n{text}"
    return chain.compile(
        Bundle({"k.py": text}, "k.py", "toy", "main"), TARGET, workdir, (CompileCase(ADD),)
    )


def ran(
    source: str, workdir: Path, chain: CommandToolchain | None = None, seconds: float = 20.0
) -> CommandRun:
    chain = chain or toolchain()
    return chain.run(compiled(chain, source, workdir), inputs(), ADD, workdir, seconds)


def test_program_gets_tensors_and_returns_outputs_and_simulated_time(tmp_path: Path) -> None:
    result = ran(GOOD + REPORT + 'print("hello")', tmp_path)
    assert (result.ok, result.message) == (True, "")
    assert torch.equal(result.outputs[0], inputs()[0] + 1)
    assert (result.timing, result.cycles, result.time_us) == ("simulator", 40, 0.5)
    assert result.metrics == {"launches": 1.0} and result.log == "hello"
    assert result.seconds > 0.01


def test_manifest_has_tensors_in_abi_order(tmp_path: Path) -> None:
    ran(GOOD, tmp_path)
    record = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (record["entry"], record["hardware"], record["report"]) == ("main", "toy", "report.json")
    rows = [(row["name"], row["role"], row["shape"], row["file"]) for row in record["tensors"]]
    assert rows == [
        ("x", "input", [2, 3], "000_x.npy"),
        ("layer.weight", "parameter", [3], "001_layer_weight.npy"),
        ("out", "output", [2, 3], "002_out.npy"),
    ]


def test_profiled_hardware_is_not_timed_and_cycles_are_not_a_time(tmp_path: Path) -> None:
    write = "Path(folder, manifest['report']).write_text(json.dumps({TOLD}))"
    wall = toolchain(
        timing="wall", profile="python -c 'raise SystemExit(9)' {source} {input} {report}"
    )
    timed = ran(GOOD + write.replace("TOLD", "'time_us': 7"), tmp_path / "a", wall)
    assert (timed.timing, timed.time_us) == ("measured", 7.0)
    counted = ran(GOOD + write.replace("TOLD", "'cycles': 7"), tmp_path / "b", wall)
    assert (counted.timing, counted.cycles, counted.time_us) == ("none", 7, None)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float64", "int64", "int8", "uint8", "bool"]
)
def test_every_dtype_round_trips_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    given = torch.tensor([[0, 1, 3], [5, 7, 1]]).to(kind)
    signature = Signature(
        (TensorSpec("x", "input", dtype, (2, 3)), TensorSpec("y", "output", dtype, (2, 3)))
    )
    copy = "np.save(folder / t[1]['file'], np.load(folder / t[0]['file']))"
    chain = toolchain()
    made = compiled(chain, copy, tmp_path)
    result = chain.run(made, [given], signature, tmp_path, 20)
    assert result.ok, result.message
    assert result.outputs[0].dtype == kind and torch.equal(result.outputs[0], given)
    row = json.loads((tmp_path / "run" / "manifest.json").read_text())["tensors"][0]
    assert (row["dtype"], row["stored"]) == (dtype, "uint16" if dtype == "bfloat16" else dtype)


def test_scalars_empty_and_strided_tensors(tmp_path: Path) -> None:
    signature = Signature(
        (
            TensorSpec("s", "input", "float64", ()),
            TensorSpec("e", "input", "float32", (0, 4)),
            TensorSpec("m", "input", "float32", (3, 2)),
            TensorSpec("s2", "output", "float64", ()),
            TensorSpec("e2", "output", "float32", (0, 4)),
            TensorSpec("m2", "output", "float32", (3, 2)),
        )
    )
    given = [torch.tensor(2.5, dtype=torch.float64), torch.empty(0, 4)]
    given.append(torch.arange(6.0).reshape(2, 3).T)
    copy = """
    for a, b in zip(t[:3], t[3:]):
        np.save(folder / b["file"], np.array(np.load(folder / a["file"]), order="F"))
    """
    chain = toolchain()
    result = chain.run(compiled(chain, copy, tmp_path), given, signature, tmp_path, 20)
    assert result.ok, result.message
    for output, tensor in zip(result.outputs, given, strict=True):
        assert output.shape == tensor.shape and torch.equal(output, tensor)


OUT = "path = folder / t[-1]['file']\n"
FLAWED = {
    "missing": ("", "output out was not written: there is no 002_out.npy"),
    "shape": ("np.save(path, np.zeros((3, 2), 'f4'))", "has shape (3, 2), expected (2, 3)"),
    "dtype": ("np.save(path, np.zeros((2, 3)))", "has dtype float64, expected float32"),
    "garbled": ("path.write_bytes(b'not an array')", "output out is not a .npy file"),
    "empty": ("path.write_bytes(b'')", "output out is not a .npy file"),
    "cut": (
        "np.save(path, np.zeros((2, 3), 'f4')); os.truncate(path, path.stat().st_size - 4)",
        "holds 20 bytes of data, expected 24",
    ),
    "longer": (
        "np.save(path, np.zeros((2, 3), 'f4')); path.open('ab').write(b'more')",
        "holds more bytes of data, expected 24",
    ),
    "huge": ("path.write_bytes(bytes(1 << 20))", "output out is too large: 1,048,576 bytes"),
    "claims": (
        "np.save(path, np.broadcast_to(np.float32(0), (2, 3)))\n"
        "path.write_bytes(path.read_bytes().replace(b'(2, 3)', b'(2,9e9)'))",
        "output out is not a .npy file",
    ),
    "pickle": (
        "np.save(path, np.array([[{}, 1, 2], [3, 4, 5]], object), allow_pickle=True)",
        "has dtype object, expected float32",
    ),
    "link": ("path.symlink_to('/etc/hostname')", "output out cannot be read"),
    "pipe": ("os.mkfifo(path)", "002_out.npy is not a regular file"),
    "folder": ("path.mkdir()", "002_out.npy is not a regular file"),
    "nested": (
        "h = b'(' * 9000 + b' ' * 50\n"
        "path.write_bytes(b'\\x93NUMPY\\x01\\x00' + len(h).to_bytes(2, 'little') + h)",
        "output out is not a .npy file",
    ),
}


@pytest.mark.parametrize("flaw", FLAWED)
def test_invalid_outputs_are_failures_with_reason(flaw: str, tmp_path: Path) -> None:
    source, message = FLAWED[flaw]
    result = ran(OUT + source + REPORT, tmp_path)
    assert (result.ok, result.failure) == (False, "output")
    assert message in result.message
    assert result.outputs == () and result.timing == "none"


BAD_REPORTS = {
    "nothing": ("", "the report was not written"),
    "garbled": ("'{'", "the report is not JSON"),
    "list": ("'[1]'", "not a JSON object"),
    "nan": ("'{\"cycles\": NaN}'", "NaN is not a JSON number"),
    "infinite": ("'{\"time_us\": 1e999}'", "time_us is 'inf'"),
    "zero": ("'{\"cycles\": 0}'", "cycles is '0', expected a positive number"),
    "text": ('\'{"cycles": "4"}\'', "expected a positive number"),
    "flag": ("'{\"cycles\": true}'", "expected a positive number"),
    "metric": ('\'{"cycles": 4, "metrics": {"a": []}}\'', "metric 'a' is neither"),
    "many": ("json.dumps({'metrics': dict.fromkeys(map(str, range(2000)), 1)})", "at most 1000"),
    "long": ("'[' * 2000000", "the report is too large"),
    "deep": ("'[' * 900000", "the report is not JSON"),
    "silent": ("'{}'", "the report has no time"),
}


@pytest.mark.parametrize("flaw", BAD_REPORTS)
def test_invalid_report_loses_time_not_the_outputs(flaw: str, tmp_path: Path) -> None:
    text, note = BAD_REPORTS[flaw]
    write = f"Path(sys.argv[2]).write_text({text})" if text else ""
    result = ran(GOOD + write, tmp_path)
    assert result.ok and len(result.outputs) == 1
    assert (result.timing, result.time_us) == ("none", None)
    assert len(result.notes) == 1 and note in result.notes[0]


def test_failing_program_has_status_and_last_output(tmp_path: Path) -> None:
    result = ran("print('lots'); sys.exit('trap 7: bad address')", tmp_path)
    assert result.failure == "crashed"
    assert result.message.startswith("the run ended with exit status 1")
    assert "trap 7: bad address" in result.log


def test_program_killed_by_signal_names_it(tmp_path: Path) -> None:
    result = ran("import signal; os.kill(os.getpid(), signal.SIGSEGV)", tmp_path)
    assert (result.failure, result.message) == (
        "crashed",
        "the run was ended by SIGSEGV and printed nothing",
    )


def test_hanging_program_is_stopped_with_its_children(tmp_path: Path) -> None:
    source = """
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (folder / "group").write_text(str(os.getpgrp()))
    time.sleep(60)
    """
    began = time.monotonic()
    result = ran(source, tmp_path, seconds=5)
    assert (result.failure, result.message) == ("timed_out", "the run was stopped after 5 s")
    assert time.monotonic() - began < 40  # the program would sleep for 60
    assert members(int((tmp_path / "run" / "group").read_text())) == ()


def test_file_over_limit_ends_program(tmp_path: Path) -> None:
    result = ran(OUT + "path.open('wb').truncate(1 << 30)" + REPORT, tmp_path)
    assert not result.ok and result.failure in ("crashed", "output")


def test_outputs_of_an_earlier_run_are_not_accepted(tmp_path: Path) -> None:
    assert ran(GOOD, tmp_path).ok
    result = ran("", tmp_path)
    assert result.failure == "output" and "was not written" in result.message


# -- compile and templates

COPY = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[2])"


def test_compiler_output_is_run(tmp_path: Path) -> None:
    chain = toolchain(
        compile=f"python -c '{COPY}' {{source}} {{output}}",
        profile="python {output} {input} {report}",
        suffix=".toy",
    )
    made = compiled(chain, GOOD + REPORT, tmp_path)
    assert made.ok and made.loader is not None and made.loader.kind == "command"
    assert made.command[3:] == ("src/k.toy", "program.out")
    assert chain.run(made, inputs(), ADD, tmp_path / "case", 20).ok


def test_compile_error_is_a_result(tmp_path: Path) -> None:
    fails = toolchain(compile="python -c 'raise SystemExit(\"k.toy:3: no\")' {source} {output}")
    made = compiled(fails, GOOD, tmp_path / "a")
    assert (made.ok, made.loader, made.log) == (False, None, "k.toy:3: no")
    assert fails.run(made, inputs(), ADD, tmp_path / "a", 5).failure == "crashed"
    idle = compiled(toolchain(compile="python -c 0 {source} {output}"), GOOD, tmp_path / "b")
    assert not idle.ok and "wrote no program.out" in idle.log
    silent = toolchain(compile="python -c 'raise SystemExit(4)' {source} {output}")
    assert "exit status 4 and printed nothing" in compiled(silent, GOOD, tmp_path / "c").log


def test_hanging_compiler_is_stopped(tmp_path: Path) -> None:
    template = ToolchainSpec(
        compile="python -c 'while True: pass' {source} {output}", run="python {output} {input}"
    )
    made = compiled(CommandToolchain("toy", template, CommandLimits(seconds=0.5)), GOOD, tmp_path)
    assert made.timed_out and not made.ok and "was stopped after" in made.log


def test_templates_keep_words_with_spaces_and_set_environment(tmp_path: Path) -> None:
    show = "import os, sys; open(sys.argv[2], 'w').write(repr((sys.argv[3:], os.environ['FLAGS'])))"
    template = ToolchainSpec(
        compile=f'python -c "{show}" {{source}} {{output}} "a b {{arch}}" {{{{x}}}} {{hardware}}',
        run="python {output} {input}",
        env={"FLAGS": "--dir={workdir} {arch}"},
    )
    workdir = tmp_path / "with space"
    made = compiled(CommandToolchain("toy", template), GOOD, workdir)
    assert made.ok, made.log
    reported = (workdir / "program.out").read_text()
    assert reported == repr((["a b t1", "{x}", "toy"], f"--dir={workdir} t1"))


def test_missing_tools_are_reported_before_run(tmp_path: Path) -> None:
    assert toolchain().available(TARGET).ok
    missing = toolchain(compile="no-such-cc {source} {output}").available(TARGET)
    assert not missing.ok and missing.reason == "no-such-cc is not installed" and missing.hint
    lost = tmp_path / "sim.py"
    gone = toolchain(profile=f"python {lost} {{source}} {{input}} {{report}}").available(TARGET)
    assert gone.reason == f"{lost} does not exist"
    no_arch = toolchain(run="python {source} {input} {arch}").available(
        EvaluationTarget("toy", ("toy",))
    )
    assert "compute_capability" in no_arch.hint


def test_version_follows_templates_and_tools(tmp_path: Path) -> None:
    tool = tmp_path / "sim.py"
    tool.write_text("print(1)")
    template = f"{sys.executable} {tool} {{source}} {{input}} {{report}}"
    first = toolchain(profile=template).version()
    assert toolchain(profile=template).version() == first
    tool.write_text("print(2)")
    second = toolchain(profile=template).version()
    third = toolchain(profile=template, suffix=".x").version()
    assert len({first, second, third}) == 3


def test_invalid_calls_of_harness_are_refused(tmp_path: Path) -> None:
    chain = toolchain()
    made = compiled(chain, GOOD, tmp_path)
    with pytest.raises(InvalidRequest, match="1 tensors for 2"):
        chain.run(made, inputs()[:1], ADD, tmp_path, 5)
    with pytest.raises(InvalidRequest, match=r"layer\.weight is float64"):
        chain.run(made, [inputs()[0], torch.ones(3, dtype=torch.float64)], ADD, tmp_path, 5)


def test_relative_working_directory_is_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ran(GOOD + REPORT, Path("here")).timing == "simulator"


@pytest.mark.skipif(not can_unshare(), reason="no user namespaces here")
def test_namespaces_have_no_network_and_enforce_deadline(tmp_path: Path) -> None:
    chain = CommandToolchain("toy", ToolchainSpec(run=RUN), level="namespaces")
    show = "import socket; print(sorted(name for _, name in socket.if_nameindex()))\n"
    assert ran(show + GOOD, tmp_path, chain).log == "['lo']"
    assert ran("time.sleep(60)", tmp_path, chain, seconds=1.0).failure == "timed_out"
