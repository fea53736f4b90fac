"""The vocabulary of problems: aliases resolve to ids, ids to families."""

from __future__ import annotations

import pytest

from kb.problem_terms import canonical_dtype, canonical_op, op_family, problem_terms


@pytest.mark.parametrize(
    ("given", "op", "family"),
    [
        ("GEMM", "matmul", "matmul"),
        ("layer_norm", "layernorm", "norm"),
        ("Flash-Attention", "attention", "attention"),
        ("embedding bag", "embedding_bag", "gather"),
        ("my_op", "my_op", "my_op"),
    ],
)
def test_operator_aliases_resolve_to_family(given: str, op: str, family: str) -> None:
    assert canonical_op(given) == op
    assert op_family(given) == family


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ("bf16", "bfloat16"),
        ("torch.float16", "float16"),
        ("tl.float32", "float32"),
        ("half", "float16"),
        ("posit16", "posit16"),
    ],
)
def test_dtype_has_name_of_torch(given: str, dtype: str) -> None:
    assert canonical_dtype(given) == dtype


def test_aliases_are_unique_and_differ_from_ids() -> None:
    terms = problem_terms()
    assert not set(terms.op_aliases) & set(terms.ops)
    assert not set(terms.dtype_aliases) & set(terms.dtypes)
    assert set(terms.dtype_aliases.values()) <= set(terms.dtypes)
