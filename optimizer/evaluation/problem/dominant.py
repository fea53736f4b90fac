"""Which kind of operator most of a reference's work is in. A file's name for itself, guessed from
what it calls, may stand for a small part of it: a vote is counted by a scatter, after distances
that are all of the work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from kb.problem_terms import op_family

FLOPS_A_BYTE = 10.0  # about what processors can do while a byte comes from memory
MOST = 0.6  # of the work is in what a reference is about
LITTLE = 0.2  # of the work is in what it is not about
FUSED = 0.2  # of the work of elementwise operators, from which on something else takes them in
# What often stands at the edge of other work; a product or a norm does not.
INCIDENTAL = frozenset(
    ("embedding_bag", "embedding", "bucketize", "sort", "scatter", "gather", "elementwise")
)
UNKNOWN = "unknown"  # what a file is called that calls nothing known
# Operator (of kb/problem_terms.toml) -> how names of torch's operators begin.
_BEGINNINGS = {
    "attention": ("_scaled_dot_product", "_flash_attention", "_efficient_attention"),
    "conv": ("convolution", "_convolution", "conv"),
    "bmm": ("bmm", "baddbmm"),
    "matmul": ("mm", "addmm", "mv", "addmv", "dot", "_cdist", "cdist", "linear"),
    "softmax": ("_softmax", "_log_softmax", "logsumexp"),
    "layernorm": ("native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm"),
    "loss": ("nll_loss", "mse_loss", "smooth_l1_loss", "huber_loss"),
    "pooling": ("max_pool", "avg_pool", "adaptive_", "_adaptive_"),
    "scan": ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "_cummax", "_cummin"),
    "bucketize": ("bucketize", "searchsorted"),
    "sort": ("sort", "topk", "argsort", "kthvalue", "median", "mode", "unique"),
    "scatter": ("scatter", "index_add", "index_put", "_index_put", "index_copy", "bincount"),
    "embedding": ("embedding", "_embedding_bag"),
    "gather": ("gather", "index_select", "index", "take"),
    "reduction": (
        *("sum", "mean", "amax", "amin", "aminmax", "max", "min", "prod", "var", "std", "argmax"),
        *("argmin", "norm", "linalg_vector_norm", "any", "all", "count_nonzero"),
    ),
}


def operator_of(func: Any, name: str) -> str:
    """The operator, of kb/problem_terms.toml, that one of torch's is; "" for one of none."""
    for operator, beginnings in _BEGINNINGS.items():
        if name.startswith(beginnings):
            return operator
    return "elementwise" if torch.Tag.pointwise in func.tags else ""


def work_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> float:
    """Bytes that a call reads and writes, or as many as its operations take the time of."""
    tensors = [*_tensors(args), *_tensors(list(kwargs.values())), *_tensors([result])]
    moved = float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return moved
    try:
        return max(moved, float(formula(*args, **kwargs, out_val=result)) / FLOPS_A_BYTE)
    except (TypeError, ValueError, AssertionError, IndexError):  # a form that torch does not count
        return moved


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    parts = [v if isinstance(v, list | tuple) else [v] for v in values]
    return [value for part in parts for value in part if isinstance(value, torch.Tensor)]


def dominant(work: Mapping[str, float], op: str) -> str:
    """The operator that most of the work is in, where that is not `op`, which a name of the file
    suggests; "" where `op` has its share, is about all of a file anyway, or nothing has most.
    Elementwise operators have it only where `op` is not known: they are done with what they feed.

    `work` is by operator, "" for what has none.
    """
    total = sum(work.values())
    if op not in (*INCIDENTAL, UNKNOWN) or not total:
        return ""
    share = {name: amount / total for name, amount in work.items() if name}
    alone = share.pop("elementwise", 0.0)
    families: dict[str, float] = defaultdict(float)
    for name, part in share.items():
        families[op_family(name)] += part
    own = families.pop(op_family(op), 0.0)
    first = max(families, key=lambda family: families[family], default="")
    if not first or families[first] < FUSED * alone:
        return "elementwise" if op == UNKNOWN and alone > MOST else ""
    if own >= LITTLE or families[first] + alone <= MOST:
        return ""
    return max((n for n in share if op_family(n) == first), key=lambda name: share[name])
