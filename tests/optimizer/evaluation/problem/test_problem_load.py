"""Problem files of users: what loads, and the errors for what does not."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kb.errors import InvalidRequest, NotFound
from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.problem import open_case
from optimizer.evaluation.problem.load import (
    SHIPPED,
    guess_op,
    load_problem,
    problem_paths,
    shipped_problems,
)
from optimizer.evaluation.problem.open_case import LatestDraw, OpenCase
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.user_code import seeded
from optimizer.search.bench.local import problem_view
from tests.problem_files import model_text

Write = Callable[..., Path]
PLAIN = """
    import torch
    import torch.nn as nn

    rows, cols = 6, 40
    size = (rows, cols)

    class Model(nn.Module):
        '''Adds a bias.'''
        def __init__(self, cols, start=0.5):
            super().__init__()
            self.bias = nn.Parameter(torch.full((cols,), start))
            self.register_buffer("scale", torch.rand(cols))

        def forward(self, x, times):
            return (x + self.bias) * self.scale * times, x.argmax(dim=1)

    def get_inputs():
        return [torch.rand(size), 3]

    def get_init_inputs():
        return [cols]
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(source: str, toml: str = "", name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        if toml:
            path.with_suffix(".toml").write_text(textwrap.dedent(toml), encoding="utf-8")
        return path

    return _write


COUNTED = """
    import torch
    import torch.nn as nn

    drawn = []

    class Model(nn.Module):
        def forward(self, x):
            return x.add_(1)

    def get_inputs():
        drawn.append(1)
        return [torch.rand(4, 8)]
"""


def replaceable(case: OpenCase) -> tuple[bool, ...]:
    return case.replaceable(case.drawn(0), case.second_draw(0))


def test_inputs_are_drawn_once_per_seed_and_copied(write: Write) -> None:
    case = OpenCase(*_with_case(write(COUNTED)))
    first = case.inputs(0)[0]
    stored = first.clone()
    case.reference([first], {})
    first.zero_()
    assert case.signature.of("input")[0].shape == (4, 8) and case.flops == 0
    assert torch.equal(case.inputs(0)[0], stored)
    assert len(case._module.drawn) == 1
    assert not torch.equal(case.inputs(1)[0], stored)
    assert len(case._module.drawn) == 2


def _with_case(path: Path) -> tuple[Problem, Case]:
    problem = load_problem(path)
    return problem, problem.cases[0]


def test_single_file_is_a_problem_with_its_shape(write: Write) -> None:
    problem = load_problem(write(PLAIN))
    assert (problem.name, problem.declared, problem.summary) == ("mine", False, "Adds a bias.")
    assert problem.cases == (Case("declared"),)
    assert problem.op == "reduction"


def test_signature_lists_inputs_weights_and_outputs(write: Write) -> None:
    case = OpenCase(load_problem(write(PLAIN)), Case("declared"))
    reported = [(t.name, t.role, t.dtype, t.shape) for t in case.signature.tensors]
    assert reported == [
        ("x", "input", "float32", (6, 40)),
        ("times", "input", "int64", ()),
        ("bias", "parameter", "float32", (40,)),
        ("scale", "buffer", "float32", (40,)),
        ("output0", "output", "float32", (6, 40)),
        ("output1", "output", "int64", (6,)),
    ]
    assert case.scalars == (False, True)
    assert case.kinds == ("float", "exact")
    assert replaceable(case) == (True, False, True, True)


def test_case_sets_constants_and_derived_values(write: Write) -> None:
    problem = load_problem(write(PLAIN))
    case = OpenCase(problem, Case("small", {"cols": 5}, dtype="bfloat16"))
    assert case.signature.tensors[0].shape == (6, 5)
    assert case.signature.tensors[0].dtype == "bfloat16"
    assert "rows, cols = 6, 5" in case.source


def test_unknown_constant_error_names_known_ones(write: Write) -> None:
    with pytest.raises(InvalidRequest, match="no constant 'row'") as refused:
        OpenCase(load_problem(write(PLAIN)), Case("bad", {"row": 5}))
    assert "Did you mean rows?" in refused.value.hint
    assert "cols, rows, size" in refused.value.hint


def test_draws_depend_only_on_seed(write: Write) -> None:
    case = OpenCase(load_problem(write(PLAIN)), Case("declared"))
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one, again, other = case.inputs(3), case.inputs(3), case.inputs(4)
    assert torch.equal(one[0], again[0]) and not torch.equal(one[0], other[0])
    assert torch.equal(torch.random.get_rng_state(), before)
    state = case.state(3)
    assert not torch.equal(case.second_draw(3).inputs[0], one[0])
    assert len(set(state["bias"].tolist())) > 30  # a constant weight could be ignored unnoticed


def test_golden_is_float64_and_near_reference(write: Write) -> None:
    case = OpenCase(load_problem(write(PLAIN)), Case("declared", dtype="float16"))
    inputs, state = case.inputs(0), case.state(0)
    golden = case.reference(inputs, state, dtype=torch.float64)
    reference = case.reference(inputs, state)
    assert (golden[0].dtype, reference[0].dtype) == (torch.float64, torch.float16)
    torch.testing.assert_close(golden[0], reference[0].double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "given",
    ["{'cols': cols, 'start': 0.5}", "[[], {'cols': cols}]", "[[cols], {}]", "(cols, 0.5)", "cols"],
)
def test_every_form_of_init_inputs(write: Write, given: str) -> None:
    path = write(PLAIN.replace("return [cols]", f"return {given}"))
    case = OpenCase(load_problem(path), Case("declared"))
    assert case.init_args[0] == 40
    assert case.signature.of("parameter")[0].shape == (40,)


def test_problem_without_init_inputs_and_with_named_tensors(write: Write) -> None:
    path = write("""
        import torch
        from torch import nn
        class Model(nn.Module):
            def forward(self, a, b):
                return {"sum": a + b, "product": a * b}
        def get_inputs():
            return {"b": torch.ones(3), "a": torch.arange(3).float()}
    """)
    case = OpenCase(load_problem(path), Case("declared"))
    assert case.init_args == []
    assert [t.name for t in case.signature.of("input")] == ["a", "b"]
    assert len(case.outputs) == 2
    assert replaceable(case) == (False, False)  # equal in every draw: a table, not a sample
    assert load_problem(path).op == "elementwise"


def test_structured_inputs_are_not_replaced_elementwise(write: Write) -> None:
    path = write("""
        import torch
        from torch import nn
        n = 50
        class Model(nn.Module):
            def forward(self, lower, symmetric, borders, plain, which):
                return (lower + symmetric + plain)[which] + borders
        def get_inputs():
            s = torch.randn(n, n)
            return [torch.randn(n, n).tril(), s + s.T, torch.randn(n).sort().values,
                    torch.randn(n, n), torch.randint(0, n, (n,))]
    """)
    case = OpenCase(load_problem(path), Case("declared"))
    assert replaceable(case) == (False, False, False, True, True)


@pytest.mark.parametrize(
    ("drawn", "fresh"),
    [
        ("torch.randint(0, 9, (40,))", True),
        ("torch.randint(0, 9, (2, 40))", True),
        ("torch.randint(0, 9, (40, 2))", True),
        ("torch.rand(40, 40) < 0.5", True),
        ("torch.randint(-9, 9, (40,), dtype=torch.int8)", True),
        ("torch.randperm(40)", False),
        ("torch.randint(0, 9, (40,)).sort().values", False),
        ("torch.stack((torch.randint(0, 9, (40,)).sort().values, torch.arange(40)))", False),
        ("torch.arange(40) < torch.randint(1, 39, (5, 1))", False),
    ],
)
def test_integers_are_replaced_unless_their_order_matters(
    write: Write, drawn: str, fresh: bool
) -> None:
    path = write(model_text("x * 2", drawn))
    assert replaceable(OpenCase(load_problem(path), Case("declared"))) == (fresh,)


def test_integers_that_reference_refuses_are_constant(write: Write) -> None:
    path = write("""
        import torch
        from torch import nn
        class Model(nn.Module):
            def forward(self, x):
                if int(x[0]) != 40:
                    raise ValueError("the first integer is their number")
                return x * 2
        def get_inputs():
            return [torch.cat((torch.tensor([40]), torch.randint(0, 9, (39,))))]
    """)
    case = PreparedCase(load_problem(path), Case("declared"), "cpu")
    assert case.values(0).banks == (None,)


def test_running_statistics_stay_valid(write: Write) -> None:
    path = write(
        model_text("self.norm(x)", "torch.randn(8, 64)", init="self.norm = nn.BatchNorm1d(64)")
    )
    case = OpenCase(load_problem(path), Case("declared"))
    state, bank = case.state(0), case.second_draw(0).state
    for draw in (state, bank):
        assert bool((draw["norm.running_var"] > 0.4).all())
    assert not torch.equal(state["norm.running_var"], bank["norm.running_var"])
    assert replaceable(case) == (True, True, True, True, True, False)


@pytest.mark.parametrize(
    ("distribution", "dtype"),
    [(d, t) for d in ("mean_zero", "offset", "wide") for t in ("float32", "float16", "bfloat16")],
)
def test_distributions(write: Write, distribution: str, dtype: str) -> None:
    case = Case("d", {"rows": 64, "cols": 256}, dtype=dtype, distribution=distribution)  # type: ignore[arg-type]
    x = OpenCase(load_problem(write(PLAIN)), case).inputs(0)[0].double()
    if distribution == "mean_zero":
        assert abs(float(x.mean())) < 0.01 and 0.95 < float(x.std()) < 1.05
    elif distribution == "offset":
        assert float(x.mean()) > 7 * float(x.std()) > 0
    else:
        magnitudes = x.abs().log10()
        assert float(magnitudes.max() - magnitudes.min()) > (5.9 if dtype == "float32" else 2.9)
        assert 0.45 < float((x > 0).double().mean()) < 0.55


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("def get_inputs():\n    return []\n", "does not define Model", "problem new"),
        ("class Model:\n    pass\n", "does not define get_inputs", "problem new"),
        ("class Model(:\n", "line 1", "syntax"),
    ],
)
def test_invalid_problem_file_is_refused(
    write: Write, source: str, message: str, hint: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        load_problem(write(source))
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (("torch.rand(size), 3", "torch.rand(size, device='cuda'), 3"), "get_inputs", "on the CPU"),
        (("torch.rand(size), 3", "[torch.rand(size)], 3"), "input 0 is list", "flat list"),
        (("torch.rand(size), 3", "torch.rand(size).to_sparse(), 3"), "sparse", "by its parts"),
        (("return (x", "return [[x]], (x"), "output 0 is list", "flat tuple"),
        (('self.register_buffer("scale", torch.rand(cols))', "self.scale = torch.rand(cols)"),
         "random values in scale", "register_buffer"),
        (("(nn.Module)", ""), "not a class derived", "class Model"),
        (("return [cols]", "return [cols, 1, 2, 3]"), "Model", "Run `python"),
    ],
)  # fmt: skip
def test_unopenable_problem_has_hint(
    write: Write, change: tuple[str, str], message: str, hint: str
) -> None:
    if "cuda" in change[1] and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path = write(PLAIN.replace(*change))
    with pytest.raises(InvalidRequest, match=message) as refused:
        _ = OpenCase(load_problem(path), Case("declared")).signature
    assert hint in refused.value.hint


def test_all_errors_of_a_toml_are_reported_together(write: Write) -> None:
    toml = """
        naem = "x"
        [policy]
        precision = "strickt"
        outputs = ["floats"]
        [[cases]]
        name = "a"
        constants = {row = 3}
        dtype = "float33"
        distribution = "offsets"
        timed = 1
        [[cases]]
        name = "a"
        shape = [3]
    """
    with pytest.raises(InvalidRequest) as refused:
        load_problem(write(PLAIN, toml))
    problems = refused.value.details["problems"]
    for part in (
        "unknown key 'naem', did you mean name?",
        "'strickt' is not one of strict, relaxed, did you mean strict?",
        "'floats' is not one of float, exact, index",
        "no constant 'row', did you mean rows?",
        "'float33' is not one of",
        "did you mean offset?",
        "timed: must be bool, is 1",
        "unknown key 'shape'",
        "two cases are called 'a'",
    ):
        assert any(part in problem for problem in problems), part


def test_toml_settings_apply(write: Write) -> None:
    toml = """
        op = "GEMM"
        [policy]
        reduction_length = "4 * cols"
        [[cases]]
        name = "small"
        constants = {rows = 2, cols = 8}
        dtype = "bf16"
        devices = ["cpu"]
        [[cases]]
        name = "later"
        held_out = true
    """
    problem = load_problem(write(PLAIN, toml))
    assert problem.declared and problem.op == "matmul"
    assert [c.name for c in problem.searched] == ["small"]
    assert problem.cases[0].dtype == "bfloat16" and not problem.cases[0].fits("cuda")
    assert OpenCase(problem, problem.cases[0]).reduction_length() == 32


def test_shared_key_heads_count_for_every_query_head(write: Write) -> None:
    key = "torch.randn(2, 2, 24, 16)"
    text = model_text(
        "F.scaled_dot_product_attention(q, k, v, enable_gqa=True)",
        f"torch.randn(2, 8, 24, 16), {key}, {key}",
        takes="q, k, v",
    )
    case = OpenCase(load_problem(write(text)), Case("declared"))
    assert case.flops == 2 * 2 * 8 * 24 * 24 * (16 + 16)


def test_length_and_flops_follow_from_operators(write: Write) -> None:
    path = write(model_text("a @ b", "torch.randn(3, 70), torch.randn(70, 5)", takes="a, b"))
    case = OpenCase(load_problem(path), Case("declared"))
    assert case.flops == 2 * 3 * 70 * 5
    assert case.reduction_length() == 70
    assert case.signature.compulsory_bytes == 4 * (3 * 70 + 70 * 5 + 15)


@pytest.mark.parametrize("call", ["torch.cumsum(x, -1)", "x.cumsum(dim=1) + 1", "x.t().cumsum(0)"])
def test_scan_has_as_many_terms_as_it_is_long(write: Write, call: str) -> None:
    path = write(model_text(call, "torch.randn(9, 70)"))
    assert OpenCase(load_problem(path), Case("declared")).reduction_length() == 70


def test_unknown_name_has_nearest() -> None:
    with pytest.raises(NotFound) as refused:
        load_problem(Path("softmx"))
    assert "softmax" in refused.value.hint


def test_case_for_another_device_is_described_without_memory() -> None:
    problem = load_problem(Path("layernorm"))
    gpu = next(case for case in problem.cases if case.name == "gpu")
    case = OpenCase(problem, gpu)
    assert case.signature.compulsory_bytes > 1 << 30
    assert case.signature.of("output")[0].shape == (32768, 4096)


def test_remote_view_makes_no_arrays(write: Write) -> None:
    path = write(model_text("torch.softmax(x, 0)[::2]", "torch.randn(1 << 30, 1 << 10)"))  # 4 TiB
    (case,) = problem_view(load_problem(path), "cuda", remote=True).cases
    assert case.signature.of("output")[0].shape == (1 << 29, 1 << 10)
    assert case.traits["_softmax.dim"] == 0
    assert dict(case.kinds) == {"other": 1}


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize(
    "name", ["softmax", "layernorm", "max_pool3d", "embedding_bag_sum", "attention"]
)
def test_view_from_shapes_equals_view_from_run(name: str) -> None:
    problem = load_problem(Path(name))
    assert problem_view(problem, "cpu", remote=True) == problem_view(problem, "cpu")


def test_numbers_and_buffers_have_dtypes_of_a_run(write: Write) -> None:
    path = write(
        model_text(
            "self.table * scale",
            "torch.randn(4), 2.5",
            takes="x, scale",
            init='self.register_buffer("table", torch.ones(4), persistent=False)',
        )
    )
    problem = load_problem(path)
    for case in (Case("declared"), Case("half", dtype="float16")):
        seen = OpenCase(problem, case, shapes_only=True).signature
        assert seen == OpenCase(problem, case).signature


def test_value_dependent_case_is_run(write: Write) -> None:
    path = write(model_text("x[: int(x.abs().sum().clamp(1, 2))]", "torch.ones(5)"))
    (case,) = problem_view(load_problem(path), "cpu", remote=True).cases
    assert case.signature.of("output")[0].shape == (2,)


@pytest.mark.parametrize(
    ("body", "op"),
    [
        ("(q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v", "attention"),
        ("torch.bmm(F.softmax(torch.bmm(q, k), dim=-1), v)", "attention"),
        ("(q @ k).softmax(-1)", "matmul"),
        ("(q @ k) @ v", "matmul"),
        ("(torch.relu(q @ k) @ v).softmax(-1)", "matmul"),
        ("(q @ k).softmax(-1), q @ v", "matmul"),
        ("F.scaled_dot_product_attention(q, k, v)", "attention"),
        ("q.softmax(-1)", "softmax"),
    ],
)
def test_operator_is_guessed_from_calls(body: str, op: str) -> None:
    source = (
        f"class Model(torch.nn.Module):\n    def forward(self, q, k, v):\n        return {body}\n"
    )
    assert guess_op(source) == op


def test_twenty_four_problems_are_shipped() -> None:
    assert len(shipped_problems()) == 24


def test_default_of_forward_is_not_an_input(write: Write) -> None:
    path = write("""
        import torch
        from torch import nn
        class Model(nn.Module):
            def forward(self, x, scale=2.0, mask=None):
                return x * scale
        def get_inputs():
            return {"x": torch.randn(4)}
    """)
    case = OpenCase(load_problem(path), Case("declared"))
    assert [t.name for t in case.signature.of("input")] == ["x"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about what a GPU cannot draw")
def test_inputs_that_gpu_cannot_draw_are_drawn_on_cpu() -> None:
    """Also if get_inputs converts numpy arrays; decided once."""
    draws: list[int] = []

    def draw(seed: int) -> list[torch.Tensor]:
        draws.append(seed)
        with seeded(seed):
            return [torch.randn(3)]

    latest, expected = LatestDraw("cuda"), draw(1)
    for seed in (1, 1, 2):
        values = latest.of(seed, draw)
        assert values[0].device.type == "cpu"
        assert torch.equal(values[0], expected[0]) == (seed == 1)
    assert draws == [1, 1, 2]  # cached for the same seed


def test_draw_of_most_free_memory_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_case, "ALWAYS_CACHED", 0)
    draws: list[int] = []

    def draw(seed: int) -> list[torch.Tensor]:
        draws.append(seed)
        return [torch.ones(3)]

    latest = LatestDraw()
    for share in (1 / 8, 0):
        monkeypatch.setattr(open_case, "CACHED_SHARE", share)
        latest.of(1 if share else 2, draw)
        latest.of(1 if share else 2, draw)
    assert draws == [1, 2, 2]


@pytest.mark.parametrize(
    ("line", "op"),
    [
        ("state = k * state + q[:, t]", "scan"),
        ("state += q[t]", "reduction"),
        ("q = self.layers[t](q)", "reduction"),
        ("rows.append(q[t] * k)", "reduction"),
        ("state = torch.matmul(state, k) + q[t]", "matmul"),
    ],
)
def test_loop_that_carries_value_is_a_scan(line: str, op: str) -> None:
    source = (
        "class Model(torch.nn.Module):\n    def forward(self, q, k, state):\n"
        f"        for t in range(9):\n            {line}\n        return q.amax()\n"
    )
    assert guess_op(source) == op


def test_folder_means_its_problems(tmp_path: Path) -> None:
    source = (SHIPPED / "softmax" / "problem.py").read_text(encoding="utf-8")
    for name in ("b.py", "a.py"):
        (tmp_path / name).write_text(source, encoding="utf-8")
    (tmp_path / "helper.py").write_text("WIDTH = 3\n", encoding="utf-8")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "problem.py").write_text(source, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    found = problem_paths([tmp_path, "softmax", inner])
    assert [path.name for path in found] == ["a.py", "b.py", "inner", "softmax"]
    assert [load_problem(path).name for path in found[:3]] == ["a", "b", "inner"]
    with pytest.raises(InvalidRequest, match=r"holds 3 problems.*a\.py, b\.py, inner"):
        load_problem(tmp_path)
    (inner / "only.py").write_text(source, encoding="utf-8")
    (inner / "problem.py").unlink()
    assert load_problem(inner).name == "only"
    with pytest.raises(NotFound, match="has no problem"):
        problem_paths([tmp_path / "empty"])
