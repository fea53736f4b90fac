"""An exported package alone: with torch and without this repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.evaluation.abi import DTYPE_CODES
from optimizer.evaluation.bundle import Bundle
from optimizer.search.confirm import CaseFigure, RunOutcome
from optimizer.search.output.module import package_name, write_module
from optimizer.search.output.shipped import kernels
from tests.optimizer.search.output.output_runs import (
    FIGURES,
    SOURCE,
    TOML,
    cpp_bundle,
    interval,
    no_gain_run,
    problem_in,
    torch_bundle,
    winner_run,
)

pytestmark = [
    pytest.mark.slow(seconds=12),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

HEAD = """
import sys, warnings
for name in ("optimizer", "kb"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported")
warnings.simplefilter("always")
import torch
from scaled_rows_kernel import Model, ModelNew

def pair(width, **more):
    torch.manual_seed(3)
    new, old = ModelNew(width, **more).eval(), Model(width, **more).eval()
    assert list(new.state_dict()) == list(old.state_dict())
    state = {name: torch.randn_like(value) for name, value in old.state_dict().items()}
    old.load_state_dict(state)
    new.load_state_dict(state)
    return new, old

def by_kernel(new, old, x):
    "Whether the mark of the kernel is there; everything else must be the reference's."
    with torch.no_grad():
        got, want = new(x), old(x)
    marked = bool(got.flatten()[-1] > want.flatten()[-1] + 900)
    got = got.clone()
    got.view(-1)[-1] -= 1000.0 * marked
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-5)
    with torch.no_grad():
        chosen = new.dispatch(x)
    assert chosen.which == ("kernel" if marked else "reference"), chosen
    print(chosen.which, chosen.case, chosen.why)
    return marked
"""


# Each request is code for a fork that has imported only torch.
FORKS = """
import json, os, sys, traceback
import torch
torch.testing.assert_close(1, 1)  # it imports much when first called
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    code = 1
    try:
        exec(compile(request["code"], "test", "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:  # a fork reports whatever ends the code, SystemExit too, by its exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
"""
Run = Callable[..., None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs code in a process that finds only the package and torch; torch takes seconds to import,
    so it is imported once.
    """
    home = tmp_path_factory.mktemp("lone")
    lone = home / "site"
    lone.mkdir()
    site = next(p for p in sys.path if p.endswith("site-packages"))
    for path in Path(site).iterdir():  # all but the editable install of this repository
        if not (path.suffix == ".pth" or path.name.startswith(("__editable__", "kernlore"))):
            (lone / path.name).symlink_to(path)
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": str(lone)}
    forks = subprocess.Popen(
        [sys.executable, "-S", "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=plain,
        cwd=home,
    )
    assert forks.stdin is not None and forks.stdout is not None
    talk, answers = forks.stdin, forks.stdout

    def run(folder: Path, code: str, **environment: str) -> None:
        """`folder` holds the package and is the working directory."""
        own = {**plain, "KERNLORE_KERNEL_CACHE": str(folder / "cache"), **environment}
        request = {"folder": str(folder), "environment": own, "code": HEAD + code}
        talk.write(json.dumps(request) + "\n")
        talk.flush()
        assert answers.readline() == "0\n", (home / "log").read_text()[-3000:]

    with forks:
        yield run
        talk.close()


@pytest.fixture(scope="module")
def cpp_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the C++ kernel and its problem, for copies."""
    folder = tmp_path_factory.mktemp("cpp")
    write(folder, cpp_bundle())
    return folder


@pytest.fixture
def cpp_package(tmp_path: Path, cpp_files: Path) -> Path:
    """The package of the C++ kernel, in the test's folder."""
    shutil.copytree(cpp_files, tmp_path, dirs_exist_ok=True)
    return tmp_path / "scaled_rows_kernel"


def write(folder: Path, bundle: Bundle) -> Path:
    _, tree, outcome = winner_run(bundle)
    return write_module(tree, outcome, problem_in(folder / "problem"), folder)


def test_cpp_kernel_accepts_only_measured_inputs(
    tmp_path: Path, run: Run, cpp_package: Path
) -> None:
    assert cpp_package.name == "scaled_rows_kernel"
    names = {path.name for path in cpp_package.iterdir()}
    own = [*(cpp_package / "_dispatch").glob("*.py"), cpp_package / "__init__.py"]
    assert len(own) > 5 and not any("optimizer" in path.read_text() for path in own)
    assert {"kernel.cpp", "kernel.so", "kernlore_abi.h", "build.json", "dispatch.json"} <= names
    code = """
new, old = pair(32)
x = torch.randn(16, 32)
assert by_kernel(new, old, x)
assert by_kernel(new, old, torch.randn(32, 16).t())          # not contiguous: copied
assert by_kernel(new, old, torch.randn(16 * 32 + 1)[1:].view(16, 32))  # not aligned: copied
assert not by_kernel(new, old, torch.randn(17, 32))          # another shape
assert by_kernel(*pair(48), torch.randn(24, 48))             # held out
assert not by_kernel(*pair(5), torch.randn(3, 5))            # measured, does not win
assert not by_kernel(*pair(9), torch.randn(7, 9))            # other constants in the Model
assert not by_kernel(*pair(32, times=2), x)                  # other constructor arguments
assert not by_kernel(*[m.double() for m in pair(32)], x.double())
with torch.no_grad():                                        # weights are looked up at each call
    for model in (new, old):
        model.scale.mul_(3.0)
assert by_kernel(new, old, x)
new.scale = torch.nn.Parameter(old.scale.detach().clone())
assert by_kernel(new, old, x)
import copy, pickle
assert by_kernel(copy.deepcopy(new), old, x)
assert by_kernel(pickle.loads(pickle.dumps(new)), old, x)
"""
    run(tmp_path, code)


def test_gradients_and_training_use_reference(tmp_path: Path, run: Run, cpp_package: Path) -> None:
    code = """
new, old = pair(32)
x = torch.randn(16, 32)
assert "requires a gradient" in new.dispatch(x).why           # of its weights
new(x).sum().backward()
assert new.scale.grad is not None
for p in new.parameters():
    p.requires_grad_(False)
assert new.dispatch(x).which == "kernel"
y = x.clone().requires_grad_()
assert "input requires a gradient" in new.dispatch(y).why
new(y).sum().backward()
assert y.grad is not None
with torch.no_grad():
    assert "training" in new.train().dispatch(x).why
    torch.testing.assert_close(new(x), old(x))
    new.eval()
    assert new.dispatch(x=x).which == "kernel"                # by name
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert new.dispatch(x).which == "reference"
import inspect
assert list(inspect.signature(ModelNew).parameters) == ["width", "times"]
"""
    run(tmp_path, code)


@pytest.mark.parametrize("damage", ["garbage", "truncated", "missing", "other_machine"])
def test_unsuitable_library_is_rebuilt(
    tmp_path: Path, damage: str, run: Run, cpp_package: Path
) -> None:
    spoil(cpp_package, damage)
    code = """
with warnings.catch_warnings(record=True) as seen:
    assert by_kernel(*pair(32), torch.randn(16, 32))
assert len(seen) == 1 and "built anew" in str(seen[0].message), [str(s.message) for s in seen]
"""
    run(tmp_path, code)
    built = list((tmp_path / "cache").rglob("kernel.so"))
    assert len(built) == 1
    again = code.replace("len(seen) == 1 and", "not seen or").replace("built anew", "nothing")
    run(tmp_path, again)  # from the cache, without output


def spoil(package: Path, damage: str) -> None:
    library = package / "kernel.so"
    if damage == "garbage":
        library.write_bytes(b"no library")
    elif damage == "truncated":
        library.write_bytes(library.read_bytes()[:5000])
    elif damage == "missing":
        library.unlink()
    else:
        record = json.loads((package / "build.json").read_text())
        record["built_on"]["instructions"].append("avx4096f")
        (package / "build.json").write_text(json.dumps(record))


def test_missing_compiler_gives_reference_and_warning(
    tmp_path: Path, run: Run, cpp_package: Path
) -> None:
    spoil(cpp_package, "garbage")
    empty = tmp_path / "bin"
    empty.mkdir()
    code = """
new, old = pair(32)
with warnings.catch_warnings(record=True) as seen:
    assert not by_kernel(new, old, torch.randn(16, 32))
    assert not by_kernel(new, old, torch.randn(16, 32))
assert len(seen) == 1, [str(s.message) for s in seen]
assert "install g++" in str(seen[0].message) and "runs the reference" in str(seen[0].message)
assert "g++ is not installed" in new.eval().requires_grad_(False).dispatch(torch.randn(16, 32)).why
"""
    run(tmp_path, code, PATH=str(empty))


@pytest.mark.parametrize(
    ("file", "language", "change", "reported"),
    [
        ("k.cpp", "cpp", ("return 0;", "return 5;"), "returned 5"),
        ("c.py", "torch", ("self.scale", "self.other"), "cannot take the reference's"),
        (
            "c.py",
            "triton",
            ("import torch\n", "import no_such_package\n"),
            "pip install no_such_package",
        ),
    ],
)
def test_unusable_kernel_is_reported_and_replaced_by_reference(
    tmp_path: Path, run: Run, file: str, language: str, change: tuple[str, str], reported: str
) -> None:
    right = cpp_bundle() if language == "cpp" else torch_bundle()
    source = right.source.replace(*change)
    write(tmp_path, Bundle({file: source}, file, language, right.entry, {}, "llm"))
    code = f"""
with warnings.catch_warnings(record=True) as seen:
    assert not by_kernel(*pair(32), torch.randn(16, 32))
assert {reported!r} in str(seen[0].message)
"""
    run(tmp_path, code)


def test_torch_winner_uses_callers_weights(tmp_path: Path, run: Run) -> None:
    package = write(tmp_path, torch_bundle())
    assert (package / "kernel.py").is_file()
    code = """
new, old = pair(32)
x = torch.randn(16, 32)
assert by_kernel(new, old, x)
with torch.no_grad():
    for model in (new, old):
        model.scale.add_(1.0)
assert by_kernel(new, old, x)
assert list(new.state_dict()) == ["scale"] and len(list(new.modules())) == 1
assert not by_kernel(new, old, torch.randn(15, 32))
"""
    run(tmp_path, code)


def test_kernels_with_packed_weights_restart_with_other_weights(tmp_path: Path, run: Run) -> None:
    packing = cpp_bundle().source.replace(
        "*scale = (const float *)t[1].data;",
        "*given = (const float *)t[1].data; static float scale[64]; static int packed;",
    )
    loop = "for (int64_t i"
    pack = "if (!packed++) for (int64_t j = 0; j < width; j++) scale[j] = given[j];"
    packing = packing.replace(loop, f"{pack}\n  {loop}", 1)
    _, tree, outcome = winner_run(Bundle({"k.cpp": packing}, "k.cpp", "cpp", "kernlore_run", {}))
    toml = TOML + '\n[policy]\nweights = "frozen"\n'
    write_module(tree, outcome, problem_in(tmp_path / "problem", toml=toml), tmp_path)
    code = """
new, old = pair(32)
x = torch.randn(16, 32)
assert by_kernel(new, old, x)
with torch.no_grad():
    for model in (new, old):
        model.scale.mul_(3.0)
assert by_kernel(new, old, x)
torch.manual_seed(9)
assert by_kernel(*pair(32), x)
"""
    run(tmp_path, code)


def test_modules_next_to_problem_are_included(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "problem"
    folder.mkdir()
    (folder / "my_shift.py").write_text("from my_half import half\nshift = half\n")
    (folder / "my_half.py").write_text("half = 0.5\n")
    source = SOURCE.replace("shift = 0.5\n", "from my_shift import shift\n")
    toml = TOML.replace(", shift = 2.0", "")
    _, tree, outcome = winner_run(cpp_bundle())
    write_module(tree, outcome, problem_in(folder, source, toml), tmp_path)
    run(tmp_path, "assert by_kernel(*pair(32), torch.randn(16, 32))")


def test_package_without_winner_is_the_reference(tmp_path: Path, run: Run) -> None:
    _, tree, outcome = no_gain_run()
    package = write_module(tree, outcome, problem_in(tmp_path / "problem"), tmp_path)
    assert "no gain" in (package / "__init__.py").read_text()
    code = """
new, old = pair(32)
assert not by_kernel(new, old, torch.randn(16, 32))
assert "no gain" in new.dispatch(torch.randn(16, 32)).why
"""
    run(tmp_path, code)


def test_shape_of_a_lost_case_uses_reference(tmp_path: Path, run: Run) -> None:
    """Two cases may have equal shapes and differ only in values."""
    _, tree, _ = winner_run(cpp_bundle())
    toml = TOML + (
        '\n[[cases]]\nname = "wide"\nconstants = {rows = 16, width = 32}\ndtype = "float32"\n'
        'distribution = "wide"\n'
    )
    figures = (*FIGURES, CaseFigure("wide", False, interval(0.9), 10.0, 9.0))
    outcome = RunOutcome(2, interval(1.5), "", None, figures)
    write_module(tree, outcome, problem_in(tmp_path / "problem", toml=toml), tmp_path)
    run(tmp_path, "assert not by_kernel(*pair(32), torch.randn(16, 32))")


def test_table_has_every_measured_case_with_its_interval(cpp_package: Path) -> None:
    table = json.loads((cpp_package / "dispatch.json").read_text())
    cases = {row["case"]: row for row in table["cases"]}
    assert {name: row["wins"] for name, row in cases.items()} == {
        "main": True, "slow": False, "shifted": False, "held": True
    }  # fmt: skip
    assert all(set(row["speedup"]) == {"value", "low", "high", "n"} for row in cases.values())
    assert cases["main"]["inputs"] == [{"name": "x", "dtype": "float32", "shape": [16, 32]}]
    assert "another Model" in cases["shifted"]["why"]


def test_rewriting_replaces_package(tmp_path: Path, cpp_package: Path) -> None:
    (cpp_package / "old.txt").write_text("old")
    assert (cpp_package / "kernel.so").exists()
    assert write(tmp_path, torch_bundle()) == cpp_package
    assert not (cpp_package / "old.txt").exists() and not (cpp_package / "kernel.so").exists()


@pytest.mark.parametrize(
    ("problem", "name"),
    [("softmax", "softmax_kernel"), ("1_Square-matmul", "problem_1_Square_matmul_kernel")],
)
def test_package_names_are_identifiers(problem: str, name: str) -> None:
    assert package_name(problem) == name and name.isidentifier()


def test_shipped_dtype_codes_equal_those_of_abi() -> None:
    assert {str(d).removeprefix("torch."): n for d, n in kernels.DTYPE_CODES.items()} == dict(
        DTYPE_CODES
    )
