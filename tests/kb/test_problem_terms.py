"""The words of a problem: aliases lead to ids, ids to families."""

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
def test_an_operator_is_known_by_its_other_names(given: str, op: str, family: str) -> None:
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
def test_a_dtype_has_torchs_name(given: str, dtype: str) -> None:
    assert canonical_dtype(given) == dtype


def test_no_alias_is_an_id_or_leads_to_two() -> None:
    terms = problem_terms()
    assert not set(terms.op_aliases) & set(terms.ops)
    assert not set(terms.dtype_aliases) & set(terms.dtypes)
    assert set(terms.dtype_aliases.values()) <= set(terms.dtypes)
