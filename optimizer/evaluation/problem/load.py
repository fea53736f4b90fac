"""A problem from a file in the KernelBench convention, with or without a toml beside it, and the
operator that it most likely is.

Nothing of the file is executed here: it is parsed for what it defines and what it calls. How a case
becomes tensors is known to `tensors`.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from pathlib import Path

from kb.errors import InvalidRequest, NotFound, nearest
from optimizer.evaluation.problem.declared import Declaration, read_declaration
from optimizer.evaluation.problem.spec import Case, Policy, Problem

SHIPPED = Path(__file__).parents[2] / "problems"
SOURCE_NAME = "problem.py"
TOML_NAME = "problem.toml"
_CONVENTION = (
    "A problem file defines `class Model(nn.Module)`, `get_inputs()` and, where Model takes "
    "arguments, `get_init_inputs()`; `kernlore problem new NAME` writes one."
)


def shipped_problems() -> list[str]:
    """Names of the built-in problems."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{SOURCE_NAME}"))


def load_problem(path: Path) -> Problem:
    """The problem at a `.py` file, in a folder with a `problem.py`, or built in under this name.
    Raises NotFound where there is none, InvalidRequest where it is not a problem file."""
    file = _file_of(path)
    try:
        source = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InvalidRequest(f"{file} is not UTF-8 text", hint=_CONVENTION) from problem
    constants = _checked(file, source)
    toml = _toml_beside(file)
    text = toml.read_text(encoding="utf-8") if toml else ""
    declaration = read_declaration(toml, text, constants) if toml else Declaration()
    default = file.parent.name if file.name == SOURCE_NAME else file.stem
    return Problem(
        name=declaration.name or default,
        path=file,
        source=source,
        sha256=hashlib.sha256(f"{source}\0{text}".encode()).hexdigest(),
        op=declaration.op or guess_op(source),
        cases=declaration.cases or (Case("declared"),),
        policy=declaration.policy or Policy(),
        declared=toml is not None,
        summary=declaration.summary or _summary(source),
    )


def _file_of(path: Path) -> Path:
    if path.is_dir():
        if (path / SOURCE_NAME).is_file():
            return (path / SOURCE_NAME).resolve()
        raise NotFound(f"{path} has no {SOURCE_NAME}", hint="Give the problem file itself.")
    if path.is_file():
        return path.resolve()
    built_in = SHIPPED / path.name / SOURCE_NAME
    if len(path.parts) == 1 and built_in.is_file():
        return built_in
    near = nearest(path.name, shipped_problems())
    hint = f"Did you mean {', '.join(near)}? " if near else ""
    raise NotFound(
        f"there is no problem {str(path)!r}",
        hint=f"{hint}Give a file, a folder, or a name of `kernlore problem list`.",
    )


def _toml_beside(file: Path) -> Path | None:
    """`<stem>.toml`, else the folder's `problem.toml` where it cannot be about another file."""
    own = file.with_suffix(".toml")
    if own.is_file():
        return own
    shared = file.parent / TOML_NAME
    return shared if shared.is_file() and not (file.parent / SOURCE_NAME).is_file() else None


def _checked(file: Path, source: str) -> frozenset[str]:
    """The module-level names that a case may set; InvalidRequest for what is no problem file."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None) or 1
        raise InvalidRequest(
            f"{file.name}, line {line}: {problem}", hint="Correct the syntax; it must import."
        ) from problem
    defined = _defined(tree)
    missing = [name for name in ("Model", "get_inputs") if name not in defined]
    if missing:
        names = ", ".join(sorted(defined)) or "nothing"
        raise InvalidRequest(
            f"{file.name} does not define {' and '.join(missing)} (it defines {names})",
            hint=_CONVENTION,
        )
    return assigned(tree)


def _defined(tree: ast.Module) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names | assigned(tree)


def assigned(tree: ast.Module) -> frozenset[str]:
    """Names that the module assigns at its top level."""
    names: set[str] = set()
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            names |= {part.id for part in parts if isinstance(part, ast.Name)}
    return frozenset(names)


def _summary(source: str) -> str:
    """First line of the docstring of the module, else of Model."""
    tree = ast.parse(source)
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    for node in (tree, model):
        text = ast.get_docstring(node) if node is not None else None
        if text:
            return text.splitlines()[0].strip()
    return ""


# operator -> what a source calls. The first that occurs decides, so what marks a file as something
# particular stands before what many files use.
_CALLS = {
    "attention": "scaled_dot_product_attention MultiheadAttention",
    "conv_transpose": "ConvTranspose1d ConvTranspose2d ConvTranspose3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d",
    "conv": "Conv1d Conv2d Conv3d conv1d conv2d conv3d",
    "embedding_bag": "EmbeddingBag embedding_bag",
    "embedding": "Embedding embedding",
    "loss": "cross_entropy CrossEntropyLoss mse_loss MSELoss nll_loss NLLLoss kl_div KLDivLoss "
    "smooth_l1_loss SmoothL1Loss HuberLoss cosine_embedding_loss TripletMarginLoss",
    "linear": "Linear linear",
    "bmm": "bmm baddbmm",
    "matmul": "matmul mm einsum addmm mv @",
    "layernorm": "LayerNorm layer_norm",
    "rmsnorm": "RMSNorm rms_norm",
    "batchnorm": "BatchNorm1d BatchNorm2d BatchNorm3d batch_norm",
    "groupnorm": "GroupNorm group_norm InstanceNorm1d InstanceNorm2d instance_norm",
    "softmax": "softmax Softmax log_softmax LogSoftmax logsumexp",
    "pooling": "MaxPool1d MaxPool2d MaxPool3d max_pool1d max_pool2d max_pool3d "
    "AvgPool1d AvgPool2d AvgPool3d avg_pool1d avg_pool2d avg_pool3d",
    "scan": "cumsum cumprod logcumsumexp",
    "bucketize": "bucketize searchsorted",
    "sort": "sort topk argsort",
    "scatter": "scatter_add scatter_add_ index_add index_add_ scatter_reduce",
    "gather": "gather index_select take",
    "reduction": "sum mean amax amin argmax argmin max min prod var std norm",
    "elementwise": "relu ReLU gelu GELU sigmoid Sigmoid tanh Tanh silu SiLU exp elu ELU selu "
    "softplus hardtanh leaky_relu LeakyReLU clamp mul add + * - /",
}
_PRODUCTS = ("@", "matmul", "mm", "bmm", "einsum", "baddbmm")
_OPERATORS = {ast.MatMult: "@", ast.Add: "+", ast.Mult: "*", ast.Sub: "-", ast.Div: "/"}


def guess_op(source: str) -> str:
    """The operator that a source most likely is: an id of kb/problem_terms.toml, or "unknown".
    Model is read first, then the whole file."""
    tree = ast.parse(source)
    model = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"]
    for scope in (*model, tree):
        called = _called(scope)
        if sum(called[name] for name in _PRODUCTS) > 1 and _weighs_by_softmax(scope):
            return "attention"  # written out
        for op, names in _CALLS.items():
            if any(called[name] for name in names.split()) or (op == "scan" and _recurs(scope)):
                return op
    return "unknown"


def _recurs(scope: ast.AST) -> bool:
    """Whether a loop over positions carries a value from one to the next: a scan, spelt out."""
    loops = [node for node in ast.walk(scope) if isinstance(node, ast.For)]
    return any(_reads_its_position(loop) and _carries(loop) for loop in loops)


def _reads_its_position(loop: ast.For) -> bool:
    over_a_range = isinstance(loop.iter, ast.Call) and _name_of(loop.iter.func) == "range"
    parts = [n for n in ast.walk(loop) if isinstance(n, ast.Subscript)]
    places = [part.slice for part in parts if isinstance(part.value, ast.Name)]  # of no module list
    return over_a_range and any(_reads(loop.target, place) for place in places)


def _carries(loop: ast.For) -> bool:
    return any(
        _reads(target, node.value)
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


def _reads(name: ast.AST, value: ast.AST) -> bool:
    """Whether an expression reads this name."""
    return isinstance(name, ast.Name) and any(
        isinstance(node, ast.Name) and node.id == name.id for node in ast.walk(value)
    )


def _weighs_by_softmax(scope: ast.AST) -> bool:
    """Whether a product has a softmax among its factors, or a name that stands for one."""
    weights = {
        target.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and _called(node.value)["softmax"]
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(scope):
        factors: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            factors = [node.left, node.right]
        elif isinstance(node, ast.Call) and _name_of(node.func) in _PRODUCTS:
            factors = list(node.args)
        named = {factor.id for factor in factors if isinstance(factor, ast.Name)}
        if named & weights or any(_called(factor)["softmax"] for factor in factors):
            return True
    return False


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _called(scope: ast.AST) -> Counter[str]:
    names: Counter[str] = Counter()
    for node in ast.walk(scope):
        if isinstance(node, ast.BinOp):
            names[_OPERATORS.get(type(node.op), "")] += 1
        if isinstance(node, ast.Call):
            names[_name_of(node.func)] += 1
    return names
