"""Loads a problem from a file in the KernelBench convention, with or without a toml, and guesses
its operator. The file is parsed, not executed.
"""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest, NotFound, nearest
from kb.problem_terms import canonical_dtype, canonical_op
from optimizer.evaluation.problem.spec import (
    DISTRIBUTIONS,
    OUTPUT_KINDS,
    Case,
    Problem,
    ProblemPolicy,
)

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


def problem_named(name: str) -> Problem:
    """A shipped problem. Unlike `load_problem`, does not accept paths."""
    if name not in shipped_problems():
        near = nearest(name, shipped_problems())
        raise NotFound(
            f"there is no shipped problem {name[:200]!r}",
            hint=(f"Did you mean {', '.join(near)}? " if near else "")
            + f"Give one of {', '.join(shipped_problems())} (`kernlore problem list`) or a source.",
            details={"nearest": near},
        )
    return load_problem(SHIPPED / name)


def load_problem(path: Path) -> Problem:
    """The problem at a `.py` file, in a folder with a `problem.py`, or built in under this name.
    Raises NotFound, or InvalidRequest for a file that is no problem."""
    file = _file_of(path)
    try:
        source = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InvalidRequest(f"{file} is not UTF-8 text", hint=_CONVENTION) from problem
    constants = _checked(file, source)
    toml = _toml_of(file)
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
        policy=declaration.policy or ProblemPolicy(),
        declared=toml is not None,
        summary=declaration.summary or _summary(source),
    )


def problem_paths(names: Sequence[Path | str]) -> list[Path]:
    """The problems of these names: a folder without a `problem.py` means the problem files and
    problem folders in it, by name. Files that define no `Model` and `get_inputs` are left out.
    Raises NotFound for a folder without any."""
    paths: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir() and not (path / SOURCE_NAME).is_file():
            paths += _problems_in(path)
        else:
            paths.append(path)
    return list(dict.fromkeys(paths))


def problems_to_check(path: Path) -> list[Path]:
    """As `problem_paths` of one name, with files of a folder that may be meant as problems: they
    cannot be parsed, or define only one of `Model` and `get_inputs` and no `ModelNew`."""
    if path.is_dir() and not (path / SOURCE_NAME).is_file():
        return _problems_in(path, _may_be_problem)
    return [path]


def _problems_in(folder: Path, taken: Callable[[Path], bool] | None = None) -> list[Path]:
    taken = taken or _is_problem
    entries = sorted(folder.iterdir())
    found = [
        entry
        for entry in entries
        if (entry / SOURCE_NAME).is_file() or (entry.suffix == ".py" and taken(entry))
    ]
    if found:
        return found
    files = sum(entry.suffix == ".py" for entry in entries)
    raise NotFound(
        f"{folder} has no problem: {files} Python files, none of which defines Model and"
        " get_inputs",
        hint=_CONVENTION,
    )


def _is_problem(file: Path) -> bool:
    try:
        _checked(file, file.read_text(encoding="utf-8"))
    except (InvalidRequest, UnicodeDecodeError):
        return False
    return True


def _may_be_problem(file: Path) -> bool:
    try:
        defined = _defined(ast.parse(file.read_text(encoding="utf-8")))
    except (SyntaxError, ValueError):  # the latter also for text that is not UTF-8
        return True
    shared = defined & {"Model", "get_inputs"}
    return len(shared) == 2 or (len(shared) == 1 and "ModelNew" not in defined)


def _file_of(path: Path) -> Path:
    if path.is_dir():
        if (path / SOURCE_NAME).is_file():
            return (path / SOURCE_NAME).resolve()
        inside = _problems_in(path)
        if len(inside) == 1:
            return _file_of(inside[0])
        names = ", ".join(entry.name for entry in inside[:5])
        more = f" and {len(inside) - 5} more" if len(inside) > 5 else ""
        raise InvalidRequest(
            f"{path} holds {len(inside)} problems, and one is needed: {names}{more}",
            hint=f"Name one, such as {inside[0]}.",
        )
    if path.is_file():
        return path.resolve()
    built_in = SHIPPED / path.name / SOURCE_NAME
    if len(path.parts) == 1 and built_in.is_file():
        return built_in
    near = nearest(path.name, shipped_problems())
    hint = f"Did you mean {', '.join(near)}? " if near else ""
    raise NotFound(
        f"there is no problem {str(path)!r}",
        hint=f"{hint}Give a file, a folder, or one of {', '.join(shipped_problems())}"
        " (`kernlore problem list`).",
    )


def _toml_of(file: Path) -> Path | None:
    """`<stem>.toml`, else the folder's `problem.toml` if it cannot be about another file."""
    own = file.with_suffix(".toml")
    if own.is_file():
        return own
    shared = file.parent / TOML_NAME
    return shared if shared.is_file() and not (file.parent / SOURCE_NAME).is_file() else None


def _checked(file: Path, source: str) -> frozenset[str]:
    """The module-level names that a case may set. Raises InvalidRequest for a file that is no
    problem."""
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


# operator -> names that a source calls. The first that occurs decides, so specific operators come
# before those that many files use.
_CALLS = {
    "recurrent": "LSTM GRU RNN LSTMCell GRUCell RNNCell lstm gru rnn_tanh rnn_relu",
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
    """Whether a loop over positions carries a value from one to the next, as a scan does."""
    loops = [node for node in ast.walk(scope) if isinstance(node, ast.For)]
    return any(_reads_its_position(loop) and _carries(loop) for loop in loops)


def _reads_its_position(loop: ast.For) -> bool:
    over_a_range = isinstance(loop.iter, ast.Call) and _name_of(loop.iter.func) == "range"
    parts = [n for n in ast.walk(loop) if isinstance(n, ast.Subscript)]
    indices = [part.slice for part in parts if isinstance(part.value, ast.Name)]  # no module list
    return over_a_range and any(_reads(loop.target, index) for index in indices)


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
    """Whether a product has a softmax among its factors, directly or by name."""
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


# -- the toml, in which every mistake is reported at once

DTYPES = ("float32", "float64", "float16", "bfloat16")
DEVICES = ("cpu", "cuda")
_TOP = ("name", "op", "summary", "policy", "cases")


@dataclass(frozen=True)
class Declaration:
    """The contents of the toml; a missing part is None or empty."""

    name: str = ""
    op: str = ""
    summary: str = ""
    policy: ProblemPolicy | None = None
    cases: tuple[Case, ...] = ()


def read_declaration(path: Path, text: str, constants: Collection[str]) -> Declaration:
    """Read the toml. `constants` are the names that a case of this problem file may set. Raises
    InvalidRequest with every mistake."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{path.name}: {error}", hint="Correct the TOML syntax.") from error
    reader = _DeclarationReader()
    top = reader.table(raw, _TOP, path.name)
    cases = top.get("cases", [])
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        reader.problems.append("cases: must be written as [[cases]] tables")
        cases = []
    policy = reader.policy(top.get("policy", {}))
    declared = tuple(reader.case(row, n, constants) for n, row in enumerate(cases, 1))
    reader.whole(declared)
    declaration = Declaration(
        name=reader.value(top, "name", str, "", "name"),
        op=canonical_op(reader.value(top, "op", str, "", "op")),
        summary=reader.value(top, "summary", str, "", "summary"),
        policy=policy,
        cases=declared,
    )
    if reader.problems:
        raise InvalidRequest(
            f"{path.name}: " + "; ".join(reader.problems),
            hint=f"Correct {'this' if len(reader.problems) == 1 else 'these'} in {path}.",
            details={"problems": reader.problems},
        )
    return declaration


class _DeclarationReader:
    """Takes values out of tables and collects mistakes."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def table(self, raw: Any, keys: Collection[str], where: str) -> Mapping[str, Any]:
        if not isinstance(raw, dict):
            self.problems.append(f"{where}: must be a table")
            return {}
        for key in raw:
            if key not in keys:
                near = nearest(key, keys, 1)
                guess = f", did you mean {near[0]}?" if near else f"; known: {', '.join(keys)}"
                self.problems.append(f"{where}: unknown key {key!r}{guess}")
        return raw

    def value(
        self, row: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any, at: str
    ) -> Any:
        if key not in row:
            return default
        value = row[key]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(k.__name__ for k in kinds)
            self.problems.append(f"{at}: must be {names}, is {value!r}")
            return default
        return value

    def choice(
        self, row: Mapping[str, Any], key: str, allowed: Collection[str], default: Any, at: str
    ) -> Any:
        choice = self.value(row, key, str, default, at)
        if choice is not default and choice not in allowed:
            near = nearest(choice, allowed, 1)
            guess = f", did you mean {near[0]}?" if near else ""
            self.problems.append(f"{at}: {choice!r} is not one of {', '.join(allowed)}{guess}")
            return default
        return choice

    def names(self, row: Mapping[str, Any], key: str, at: str) -> tuple[str, ...]:
        names = self.value(row, key, list, [], at)
        if not all(isinstance(part, str) for part in names):
            self.problems.append(f"{at}: must be a list of names")
            return ()
        return tuple(names)

    def policy(self, raw: Any) -> ProblemPolicy:
        row = self.table(raw, tuple(ProblemPolicy.__dataclass_fields__), "policy")
        outputs = self.names(row, "outputs", "policy.outputs")
        for kind in outputs:
            if kind not in OUTPUT_KINDS:
                self.problems.append(
                    f"policy.outputs: {kind!r} is not one of {', '.join(OUTPUT_KINDS)}"
                )
        into = self.value(row, "index_into", dict, {}, "policy.index_into")
        if not all(isinstance(dim, int) for dim in into.values()):
            self.problems.append("policy.index_into: write {input = dimension}")
        length = self.value(row, "reduction_length", (int, str), None, "policy.reduction_length")
        return ProblemPolicy(
            precision=self.choice(
                row, "precision", ("strict", "relaxed"), "strict", "policy.precision"
            ),
            library=self.choice(
                row, "library", ("allowed", "forbidden"), "allowed", "policy.library"
            ),
            weights=self.choice(row, "weights", ("varying", "frozen"), "varying", "policy.weights"),
            outputs=tuple(kind for name in outputs for kind in OUTPUT_KINDS if kind == name),
            index_into=into,
            reduction_length=length,
            perturb=self.names(row, "perturb", "policy.perturb"),
            fixed=self.names(row, "fixed", "policy.fixed"),
        )

    def case(self, raw: Mapping[str, Any], number: int, constants: Collection[str]) -> Case:
        label = raw.get("name") if isinstance(raw.get("name"), str) else f"number {number}"
        at = f"case {label}"
        row = self.table(raw, tuple(Case.__dataclass_fields__), at)
        if "name" not in row:
            self.problems.append(f"{at}: has no name")
        values = self.value(row, "constants", dict, {}, f"{at}.constants")
        for name in values:
            if name not in constants:
                near = nearest(name, constants, 1)
                guess = f", did you mean {near[0]}?" if near else ""
                self.problems.append(
                    f"{at}: the file has no constant {name!r}{guess} "
                    f"(it has {', '.join(sorted(constants)) or 'none'})"
                )
        dtype = self.value(row, "dtype", str, None, f"{at}.dtype")
        devices = self.names(row, "devices", f"{at}.devices")
        for device in devices:
            if device not in DEVICES:
                self.problems.append(f"{at}.devices: {device!r} is not one of {', '.join(DEVICES)}")
        weight = float(self.value(row, "weight", (int, float), 1.0, f"{at}.weight"))
        if weight < 0:
            self.problems.append(f"{at}.weight: must not be negative")
        return Case(
            name=str(label),
            constants=values,
            dtype=self._dtype(dtype, at),
            distribution=self.choice(
                row, "distribution", DISTRIBUTIONS, "as_given", f"{at}.distribution"
            ),
            weight=weight,
            timed=self.value(row, "timed", bool, True, f"{at}.timed"),
            held_out=self.value(row, "held_out", bool, False, f"{at}.held_out"),
            devices=devices,
        )

    def _dtype(self, dtype: str | None, at: str) -> str | None:
        if dtype is None:
            return None
        canonical = canonical_dtype(dtype)
        if canonical not in DTYPES:
            self.problems.append(f"{at}.dtype: {dtype!r} is not one of {', '.join(DTYPES)}")
            return None
        return canonical

    def whole(self, cases: tuple[Case, ...]) -> None:
        names = [case.name for case in cases]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.problems.append(f"two cases are called {name!r}")
        if cases and all(case.held_out for case in cases):
            self.problems.append("every case is held out: a search would see none")
