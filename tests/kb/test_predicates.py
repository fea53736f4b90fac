"""The predicate language against plain Python, Kleene's tables and malformed text."""

import ast
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.errors import InvalidPredicate
from kb.predicates import (
    MAX_DEPTH,
    MAX_LENGTH,
    Bindings,
    Names,
    compile_expression,
    compile_predicate,
)

NAMES = ("a", "b", "c")
numbers = st.one_of(st.integers(-50, 50), st.floats(-50, 50).map(lambda x: round(x, 3)))


def arithmetic(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(children, st.sampled_from(["+", "-", "*", "/", "//", "%"]), children).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), children, children).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        st.tuples(st.sampled_from(["abs", "ceil", "floor", "-"]), children).map(
            lambda t: f"{t[0]}({t[1]})"
        ),
    )


terms = st.recursive(
    st.one_of(st.sampled_from(NAMES), st.integers(0, 9).map(str)), arithmetic, max_leaves=6
)
comparisons = st.one_of(
    st.tuples(terms, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), terms).map(
        lambda t: f"{t[0]} {t[1]} {t[2]}"
    ),
    st.tuples(terms, terms, terms).map(lambda t: f"{t[0]} <= {t[1]} < {t[2]}"),
    st.tuples(terms, st.sampled_from(["in", "not in"])).map(lambda t: f"{t[0]} {t[1]} [1, 2, -3]"),
)
conditions = st.recursive(
    comparisons,
    lambda c: st.one_of(
        st.tuples(c, st.sampled_from(["and", "or"]), c).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        c.map(lambda t: f"not ({t})"),
    ),
    max_leaves=5,
)


def python_value(text: str, values: dict[str, float]) -> object:
    scope = {"ceil": math.ceil, "floor": math.floor, **values}
    return eval(text, {"__builtins__": {"min": min, "max": max, "abs": abs}}, scope)


@given(conditions, st.fixed_dictionaries({name: numbers for name in NAMES}))
def test_known_values_evaluate_as_in_python(text: str, values: dict[str, float]) -> None:
    outcome = compile_predicate(text).evaluate(Bindings(parameters=values))
    try:
        expected = python_value(text, values)
    except ZeroDivisionError:
        # Kleene logic may decide despite the missing value.
        assert outcome.value is not None or outcome.reasons
        return
    assert outcome.value is expected
    assert outcome.missing == ()


@given(conditions, st.dictionaries(st.sampled_from(NAMES), numbers), numbers, numbers, numbers)
def test_decided_result_does_not_depend_on_missing_values(
    text: str, values: dict[str, float], a: float, b: float, c: float
) -> None:
    predicate = compile_predicate(text)
    partial = predicate.evaluate(Bindings(parameters=values))
    full = predicate.evaluate(Bindings(parameters={"a": a, "b": b, "c": c} | values))
    if partial.value is None:
        assert partial.missing or partial.reasons
    elif full.value is not None:
        assert partial.value is full.value
        assert partial.missing == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true_ and x", None),
        ("false_ and x", False),
        ("true_ or x", True),
        ("false_ or x", None),
        ("not x", None),
        ("x and x", None),
        ("x == x", None),
        ("x in [1]", None),
        ("known(x)", False),
        ("known(true_)", True),
        ("1 < x < 0", None),
        ("2 < 1 < x", False),
        ("max(1, x) > 0", None),
    ],
)
def test_kleene_tables(text: str, value: bool | None) -> None:
    bindings = Bindings(parameters={"true_": True, "false_": False, "x": None})
    assert compile_predicate(text).evaluate(bindings).value is value


def test_evidence_holds_only_deciding_values() -> None:
    predicate = compile_predicate("metrics.x > 1 and (metrics.y > 5 or metrics.z > 1)")
    outcome = predicate.evaluate(Bindings(metrics={"x": 0, "y": 9}))
    assert [(used.name, used.value, used.test) for used in outcome.used] == [
        ("metrics.x", 0, "metrics.x > 1")
    ]
    outcome = predicate.evaluate(Bindings(metrics={"x": 2, "y": 9}))
    assert outcome.value is True
    assert [used.name for used in outcome.used] == ["metrics.x", "metrics.y"]
    outcome = predicate.evaluate(Bindings(metrics={"x": 2, "y": 1}))
    assert (outcome.value, outcome.missing) == (None, ("metrics.z",))


def test_every_namespace_is_read_and_reported() -> None:
    predicate = compile_predicate(
        "signals.memory_bound and problem.op in ['gemm', 'bmm'] "
        "and tile_m * tile_k * element <= facts.shared_memory_per_block and known(metrics.ipc)"
    )
    assert predicate.names() == Names(
        ("memory_bound",),
        ("ipc",),
        ("shared_memory_per_block",),
        ("op",),
        ("element", "tile_k", "tile_m"),
    )
    bindings = Bindings(
        signals={"memory_bound"},
        metrics={"ipc": 1.5},
        facts={"shared_memory_per_block": 65536},
        problem={"op": "gemm"},
        parameters={"tile_m": 128, "tile_k": 64, "element": 2},
    )
    assert predicate.evaluate(bindings).value is True


def test_signals_are_unknown_without_verdict_and_false_with_one() -> None:
    predicate = compile_predicate("signals.memory_bound")
    assert predicate.evaluate(Bindings()).value is None
    assert predicate.evaluate(Bindings(signals=())).value is False


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x / 0 > 1", "division by zero"),
        ("log2(0 * x) > 1", "math domain error"),
        ("sqrt(-x) > 1", "math domain error"),
        ("x == 'fp16'", "cannot compare a number with a text"),
        ("word > 1", "cannot compare a text with a number"),
        ("x and true_", "neither true nor false"),
        ("word + 1 > 0", "needs numbers"),
        ("bad > 1", "not finite"),
        ("x * 1e29 * 10 > 1", "out of range"),
        ("rows > 1", "is a list"),
    ],
)
def test_unsuitable_values_are_unknown_with_reason(text: str, reason: str) -> None:
    values = {"x": 3, "word": "fp16", "true_": True, "bad": float("nan"), "rows": [1]}
    outcome = compile_predicate(text).evaluate(Bindings(parameters=values))  # type: ignore[arg-type]
    assert outcome.value is None
    assert any(reason in given for given in outcome.reasons)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a >",
        "__import__('os').system('true')",
        "a.b.c > 1",
        "().__class__",
        "metrics._private > 1",
        "[x for x in (1, 2)]",
        "lambda: 1",
        "a if b else c",
        "a ** b > 1",
        "a << 2 > 1",
        "a is b",
        "open('x') == 1",
        "f'{a}' == 'b'",
        "'a' + 'b' == 'c'",
        "facts.compute_capability >= '9.0'",
        "metrics.ipc and true_",
        "metrics.ipc + 1",
        "signals.x + 1 > 0",
        "a in b",
        "a in []",
        "a in [1, 'x']",
        "metrics in [1]",
        "known(a + 1)",
        "min(a) > 0",
        "max(a, key=b) > 0",
        "a == None",
        "a == 1e400",
        "a == 1j",
        "a == '\\n'",
        "\x00",
        "-" * 1500 + "1 > 0",
        "(" * 300 + "1" + ")" * 300 + " > 0",
        "not " * (MAX_DEPTH + 2) + "True",
        "a > " + "1" * (MAX_LENGTH + 1),
    ],
)
def test_invalid_text_is_refused_with_position_and_hint(text: str) -> None:
    with pytest.raises(InvalidPredicate) as caught:
        compile_predicate(text)
    assert caught.value.hint
    assert caught.value.details["column"] >= 1


@given(st.text(max_size=80))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        outcome = compile_predicate(text).evaluate(Bindings())
    except InvalidPredicate:
        return
    assert outcome.value in (True, False, None)
    ast.parse(" ".join(text.split("\n")).strip(), mode="eval")


def test_compiled_formula_can_be_pickled() -> None:
    formula = compile_expression("100 * metrics.hits / (metrics.hits + metrics.misses)")
    sent = pickle.loads(pickle.dumps(formula))
    bindings = Bindings(metrics={"hits": 30, "misses": 10})
    assert sent.compute(bindings).value == formula.compute(bindings).value == 75
    assert sent == formula
