"""A C function as a candidate: the problem that it solves, and the call that maps the problem's
arrays to its arguments.

Names of functions and arguments only order the attempts: the judge decides whether the results are
right. Nothing runs here.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import permutations
from pathlib import Path

from kb.candidate_abi import C_TYPES
from optimizer.evaluation.bundle import Bundle, default_entry
from optimizer.evaluation.evaluate import problem_from_text
from optimizer.evaluation.problem.spec import Problem
from skills.lineage.functions import CFunction, CParameter

FLOATS = ("float32", "float64")
ENTRY = default_entry("kernel.cpp")
ORIGINAL = "original"
# Sizes of a case that kernels of multiples are right for: on a CPU or an emulator, and on a GPU.
CHECKED = (48, 96, 144, 192)
TILES = (256, 384, 512, 128)
ODD = (37, 67, 129, 53)
MOST_TRIED = 16  # calls of one reference
# Numbers that a call passes for arguments of these names.
NUMBERS: Mapping[str, str] = {
    "alpha": "1",
    "beta": "1",
    "scale": "1",
    "eps": "1e-5f",
    "epsilon": "1e-5f",
}
FLAGS = {
    "0": re.compile(r"^t[ab]$|^trans\w*$", re.IGNORECASE),
    "1": re.compile(r"^inc\w$", re.I),
    "256": re.compile(r"^(?:block|thread)s?_?(?:size|dim|per_block)?$", re.I),
    "16": re.compile(r"^sqrt_block_?size$", re.I),
}
CPU, EMULATOR, GPU = range(3)  # where a timed case runs: columns of `sizes` in references.toml
_WORDS = {
    "output": ("y", "out", "o", "dst", "r", "result", "c", "dest", "output"),
    "input": ("x", "in", "inp", "input", "src", "a", "v1", "inp1"),
}
# Headers that compilers bring, without a C library.
_FREESTANDING = r"std(?:int|def|bool|arg)|limits|float|arm_|riscv_|altivec|vecintrin|hexagon_|hvx_"
# Headers of libraries that a candidate is not linked with; a function that uses one is refused.
_LIBRARIES = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(?:cublas|cudnn|cusparse|nvtx|nccl|mpi).*$", re.M
)
_LEADING = re.compile(r"^ld_?(\w+)$|^(\w+?)_?(?:ld|stride|pitch)$", re.IGNORECASE)


@dataclass(frozen=True)
class Reference:
    """A row of references.toml: PyTorch code with its arrays by dimensions. `sizes` are those of
    the timed case on a CPU and on an emulator."""

    name: str
    op: str
    forward: str
    inputs: Mapping[str, Sequence[str]]
    outputs: Mapping[str, Sequence[str]]
    sizes: Mapping[str, Sequence[int]]
    loop: str = ""
    reduction: str = ""
    functions: Sequence[str] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    swap: Mapping[str, str] = field(default_factory=dict)

    @property
    def arrays(self) -> dict[str, Sequence[str]]:
        return {**self.inputs, **self.outputs}

    def problem(
        self, element: str, *, device: int, odd: bool, sizes: Mapping[str, int] | None = None
    ) -> tuple[str, str]:
        """The text of a problem file and of its toml. `device` is CPU, EMULATOR or GPU. `odd`: with
        a case of odd sizes; `sizes` replace those of the timed case."""
        timed = {dim: each[device] for dim, each in self.sizes.items()}
        timed |= {dim: size for dim, size in (sizes or {}).items() if dim in timed}
        cases = [("main", timed, "")]
        checked = TILES if device == GPU else CHECKED
        cases.append(("other", self._spread(checked[::-1], device), "timed = false"))
        cases += [("odd", self._spread(ODD, device), "timed = false")] if odd else []
        return self._source(timed), self._toml(element, cases)

    def check(self, element: str, *, odd: bool, device: int = CPU) -> Problem:
        """The problem with one small case, which is not timed."""
        sizes = self._spread(ODD if odd else TILES if device == GPU else CHECKED, device)
        case = ("checked", sizes, "timed = false")
        return problem_from_text(self._source(sizes), self._toml(element, [case]))

    def _spread(self, sizes: Sequence[int], device: int) -> dict[str, int]:
        chosen = dict(zip(self.sizes, sizes, strict=False))
        most = GPU if device == GPU else CPU
        return {
            dim: 1 if dim == "one" else min(chosen[dim], each[most])
            for dim, each in self.sizes.items()
        }

    def _source(self, sizes: Mapping[str, int]) -> str:
        constants = "\n".join(f"{dim} = {size}" for dim, size in sizes.items() if dim != "one")
        arguments = ", ".join(f"{name}: torch.Tensor" for name in self.inputs)
        drawn = ", ".join(f"torch.randn({', '.join(dims)})" for dims in self.inputs.values())
        return (
            f'"""{self.name[0].upper()}{self.name[1:]}."""\n\nimport torch\nimport torch.nn as nn\n'
            f"\n{constants}\n\n\nclass Model(nn.Module):\n    def forward(self, {arguments}):\n"
            f"        return {self.forward}\n\n\ndef get_inputs():\n    return [{drawn}]\n\n\n"
            "def get_init_inputs():\n    return []\n"
        )

    def _toml(self, element: str, cases: Sequence[tuple[str, Mapping[str, int], str]]) -> str:
        slug = re.sub(r"[^a-z0-9]+", "_", self.name.lower()).strip("_")
        lines = [f"name = {json.dumps(slug)}", f"op = {json.dumps(self.op)}", "", "[policy]"]
        length = json.dumps(self.reduction) if self.reduction else "1"
        lines += [f"reduction_length = {length}"]
        for name, sizes, more in cases:
            constants = ", ".join(f"{d} = {s}" for d, s in sizes.items() if d != "one")
            lines += ["", "[[cases]]", f'name = "{name}"', f"constants = {{{constants}}}"]
            lines += [f'dtype = "{element}"', *([more] if more else [])]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class BoundCall:
    """Statements that call the function `name` over `t`, the problem's arrays."""

    name: str
    reference: Reference
    element: str
    statements: str
    score: float = 0.0

    def of(self, function: CFunction) -> BoundCall:
        """The same call of another function with the same parameters."""
        text = self.statements.replace(f"{self.name}(", f"{function.name}(")
        return replace(self, name=function.name, statements=text)


@lru_cache(maxsize=1)
def references() -> tuple[Reference, ...]:
    text = Path(__file__).with_name("references.toml").read_text(encoding="utf-8")
    return tuple(Reference(**row) for row in tomllib.loads(text)["references"])


def calls_of(function: CFunction) -> list[BoundCall]:
    """The calls to try, the likeliest first: those of references that the function's name suggests,
    then of others with the same number of arrays."""
    name = function.name.lower()
    if function.language == "triton":
        return list(_python_calls(function))
    found: list[tuple[bool, BoundCall]] = []
    for reference in references():
        named = any(word in name for word in reference.functions)
        calls = sorted(_calls(function, reference), key=lambda call: -call.score)
        found += [(named, call) for call in calls[:MOST_TRIED]]
    ordered = sorted(found, key=lambda pair: -pair[1].score)
    named_calls = [call for named, call in ordered if named]
    others = [call for named, call in ordered if not named]
    return (named_calls or others)[: 2 * MOST_TRIED]


def bundle_of(function: CFunction, call: str, chip: str = "") -> Bundle:
    """The function with a call as a candidate. `chip` is the language of an emulated chip whose
    kernels get `chip.h`, empty for C and C++ on a CPU."""
    if function.language == "triton":
        return _python_bundle(function, call)
    suffix = ".c" if chip or function.suffix in (".c", ".h") else ".cpp"
    text, language = function.text, chip or function.language
    if language == "cuda":
        text = _LIBRARIES.sub("", text)
        suffix, head = (
            ".cu",
            '#include "kernlore_abi.h"\n#include <cassert>\n#include <cmath>\n#include <cstdio>\n',
        )
        signature = f"KERNLORE_EXPORT int {ENTRY}(const kernlore_tensor *t,"
        signature += " const kernlore_counts *counts)"
        result = "  (void)counts;\n  return cudaGetLastError() == cudaSuccess ? 0 : 1;\n"
    elif chip:
        hosted = rf"^[ \t]*#[ \t]*include[ \t]*<(?!{_FREESTANDING})[^>\n]*>.*$"
        text = re.sub(hosted, "", text, flags=re.M)
        head, result = '#include "chip.h"\n', ""
        signature = f"void {ENTRY}(const tensor *t)"
    else:
        # What most files include somewhere; a cut one may have lost the include.
        names = ["math", "stdint", "stdlib", "string"]
        names += ["immintrin"] if re.search(r"\b__m(?:128|256|512)|\b_mm\d*_", text) else []
        head = "".join(f"#include <{name}.h>\n" for name in names)
        head = f'#include "kernlore_abi.h"\n{head}'
        signature = f"KERNLORE_EXPORT int {ENTRY}(const kernlore_tensor *t,"
        signature += " const kernlore_counts *counts)"
        result = "  (void)counts;\n  return 0;\n"
    main = f'{head}#include "{ORIGINAL}{suffix}"\n\n{signature} {{\n{call}{result}}}\n'
    files = {f"{ORIGINAL}{suffix}": text, f"kernel{suffix}": main}
    return Bundle(files, f"kernel{suffix}", language, ENTRY)


def _python_bundle(function: CFunction, call: str) -> Bundle:
    """A Python function as a module class; the call is an expression over `t`."""
    head = function.text if re.search(r"^import torch$", function.text, re.M) else ""
    head = head or _after_future(function.text, "import torch\n")
    expression = call.strip()
    main = (
        f"{head}\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, *t):\n"
        f"        return {expression}\n"
    )
    return Bundle({**function.files, "kernel.py": main}, "kernel.py", "triton", "ModelNew")


def _after_future(text: str, line: str) -> str:
    """The text with a line before its first statement that is no import from the future."""
    place = re.match(r"(?:from __future__ import .*\n+)*", text)
    return text[: place.end()] + line + text[place.end() :] if place else line + text


def _python_calls(function: CFunction) -> Iterator[BoundCall]:
    """Calls with a reference's inputs in order, of references that the name suggests."""
    elements = ("float16", "float32") if "float16" in function.text else ("float32",)
    name = function.name.lower()
    for reference in references():
        if len(reference.inputs) == len(function.parameters) and any(
            word in name for word in reference.functions
        ):
            given = ", ".join(f"t[{n}]" for n in range(len(reference.inputs)))
            for element in elements:
                yield BoundCall(function.name, reference, element, f"{function.name}({given})")


# -- the calls of one reference


def _calls(function: CFunction, reference: Reference) -> Iterator[BoundCall]:
    pointers = [p for p in function.parameters if p.pointer]
    elements = {p.element for p in pointers}
    element = next(iter(elements), "")
    if len(elements) != 1 or element not in FLOATS:
        return
    scalar = bool(function.returns)
    if scalar != ("one" in reference.sizes and list(reference.outputs.values()) == [["one"]]):
        return
    for arrays in _arrays(pointers, reference, scalar):
        rows = reference.loop and function.language != "cuda"
        for loop in (False, True) if rows else (False,):
            dims = [d for d in reference.sizes if d != "one" and not (loop and d == reference.loop)]
            for sizes in _sizes(function.parameters, dims, reference, arrays):
                total = _score(arrays, sizes, reference, {})
                if reference.swap:
                    total = max(total, _score(arrays, sizes, reference, reference.swap) - 0.25)
                for zeroed in _zeroed(function, arrays, reference):
                    text = _statements(
                        function, reference, element, arrays, sizes, loop=loop, zeroed=zeroed
                    )
                    yield BoundCall(
                        function.name,
                        reference,
                        element,
                        text,
                        total - (0.5 if loop or zeroed else 0),
                    )


# name of a pointer -> (input whose values it has before or "", output that it is or "")
_Arrays = Mapping[str, tuple[str, str]]


def _arrays(
    pointers: Sequence[CParameter], reference: Reference, scalar: bool
) -> Iterator[_Arrays]:
    inputs = [(name, "") for name in reference.inputs]
    outputs = [] if scalar else [("", name) for name in reference.outputs]
    choices: list[list[tuple[str, str]]] = []
    if len(pointers) == len(inputs) + len(outputs):
        choices.append([*inputs, *outputs])
    if len(outputs) == 1 and len(pointers) == len(inputs):
        dims = reference.outputs[outputs[0][1]]
        for name, _ in inputs:
            if reference.inputs[name] == dims:
                rest = [pair for pair in inputs if pair[0] != name]
                choices.append([*rest, (name, outputs[0][1])])
    for choice in choices:
        for order in permutations(choice):
            pairs = list(zip(pointers, order, strict=True))
            if not any(p.const and output for p, (_, output) in pairs):
                yield {p.name: pair for p, pair in pairs}


def _sizes(
    parameters: Sequence[CParameter],
    dims: Sequence[str],
    reference: Reference,
    arrays: _Arrays,
) -> Iterator[dict[str, str]]:
    """Name of a number -> its dimension, or the number itself."""
    fixed: dict[str, str] = {}
    free: list[str] = []
    shapes = reference.arrays
    lowered = {name.lower(): name for name in arrays}
    for parameter in parameters:
        name = parameter.name.lower()
        if parameter.pointer:
            continue
        flag = next((value for value, form in FLAGS.items() if form.match(name)), "")
        leading = _LEADING.match(name)
        of = lowered.get((leading[1] or leading[2] or "") if leading else "")
        if not parameter.size:
            if name not in NUMBERS:
                return
            fixed[parameter.name] = NUMBERS[name]
        elif flag:
            fixed[parameter.name] = flag
        elif of is not None:
            source, output = arrays[of]
            fixed[parameter.name] = shapes[output or source][-1]
        else:
            free.append(parameter.name)
    if len(free) == len(dims):
        for chosen in permutations(dims):
            yield {**fixed, **dict(zip(free, chosen, strict=True))}


def _score(
    arrays: _Arrays, sizes: Mapping[str, str], reference: Reference, swap: Mapping[str, str]
) -> float:
    """How well the names of arguments fit. `swap` renames what they stand for."""
    score = 0.0
    for name, dim in sizes.items():
        if dim in reference.sizes and not _LEADING.match(name):
            near = [d for d in reference.sizes if name.lower() in reference.words.get(d, (d,))]
            score += 2 if swap.get(dim, dim) in near else -1 if near else 0
    for name, (source, output) in arrays.items():
        kind = "output" if output else "input" if source == next(iter(reference.inputs)) else ""
        array = swap.get(output or source, output or source)
        words = reference.words.get(array) or _WORDS.get(kind, (array,))
        score += 2 if name.lower() in words else 0
    ends = list(arrays.values())
    return score + (0.5 if ends[0][1] or ends[-1][1] else 0)


def _zeroed(function: CFunction, arrays: _Arrays, reference: Reference) -> tuple[bool, ...]:
    """Whether outputs are set to zero before the call: never where they hold an input, else also if
    the function adds to them."""
    plain = [output for source, output in arrays.values() if output and not source]
    if not plain:
        return (False,)
    if any(p.name.lower() == "beta" for p in function.parameters):
        return (True,)
    adds = re.search(r"\+=|\+\s*\w+\s*\[|_mm\w*_load|_mm\w*_add", function.text)
    return (True, False) if adds and reference.op == "matmul" else (False,)


@dataclass(frozen=True)
class _Writer:
    """Writes C over `t`, the arrays of a reference in their order. `row`: the reference's loop is
    left to the caller."""

    reference: Reference
    ctype: str
    row: bool
    cuda: bool

    def extent(self, dim: str) -> str:
        shapes = self.reference.arrays
        name = next(n for n, dims in shapes.items() if dim in dims)
        return f"{self.array(name)}.shape[{list(shapes[name]).index(dim)}]"

    def array(self, name: str) -> str:
        return f"t[{list(self.reference.arrays).index(name)}]"

    def elements(self, name: str, without: str = "") -> str:
        dims = (d for d in self.reference.arrays[name] if d not in ("one", without))
        return " * ".join(["(long)1", *map(self.extent, dims)])

    def data(self, name: str) -> str:
        base, loop = f"({self.ctype} *){self.array(name)}.data", self.reference.loop
        if self.row and loop in self.reference.arrays[name]:
            return f"({base} + row * ({self.elements(name, loop)}))"
        return base

    def filled(self, output: str, source: str) -> str:
        """Set an output to an input, or to zero."""
        if self.cuda:
            count = f"{self.elements(output)} * sizeof({self.ctype})"
            target, end = f"{self.array(output)}.data", f"{count}, (cudaStream_t)counts->stream);"
            if not source:
                return f"  cudaMemsetAsync({target}, 0, {end}"
            copied = f"{self.array(source)}.data, {count}, cudaMemcpyDeviceToDevice"
            return f"  cudaMemcpyAsync({target}, {copied}, (cudaStream_t)counts->stream);"
        value = f"((const {self.ctype} *){self.array(source)}.data)[n]" if source else "0"
        target = f"(({self.ctype} *){self.array(output)}.data)[n]"
        return f"  for (long n = 0; n < {self.elements(output)}; n++) {target} = {value};"

    def argument(self, parameter: CParameter, arrays: _Arrays, sizes: Mapping[str, str]) -> str:
        if parameter.pointer:
            source, output = arrays[parameter.name]
            return self.data(output or source)
        value = sizes[parameter.name]
        return self.extent(value) if value in self.reference.sizes else value


def _statements(
    function: CFunction,
    reference: Reference,
    element: str,
    arrays: _Arrays,
    sizes: Mapping[str, str],
    *,
    loop: bool,
    zeroed: bool,
) -> str:
    writer = _Writer(reference, C_TYPES[element], loop, function.language == "cuda")
    lines = [
        writer.filled(output, source)
        for source, output in arrays.values()
        if output and (source or zeroed)
    ]
    arguments = [writer.argument(p, arrays, sizes) for p in function.parameters]
    call = f"{function.name}({', '.join(arguments)})"
    if function.returns:
        result = next(iter(reference.outputs))
        call = f"*({writer.ctype} *){writer.array(result)}.data = {call}"
    if loop:
        lines.append(f"  for (long row = 0; row < {writer.extent(reference.loop)}; row++)")
        call = f"  {call}"
    return "\n".join([*lines, f"  {call};"]) + "\n"
