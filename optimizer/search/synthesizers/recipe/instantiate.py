"""A candidate from a recipe and chosen values, with the host code that the binary interface needs.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping

from optimizer.evaluation.bundle import Bundle
from optimizer.search.synthesizers.recipe.match import Binding
from optimizer.search.synthesizers.recipe.recipe import Recipe, TensorPattern, Value, filled

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "_Float16",
    "bfloat16": "__bf16",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "bool",
}
C_LIKE = ("cpp", "cuda")
PYTHON = ("torch", "triton")
SUFFIXES = {"cpp": "cpp", "cuda": "cu"}
ENTRY = "kernlore_run"
# A recipe's Python part is a function of tensors; this makes it the problem's Model.
_PYTHON_HOST = '''

{reference}


class ModelNew(Model):
    """The reference's weights with the recipe's kernel."""

    def forward(self, *inputs):
        return run(*inputs, *self.state_dict(keep_vars=True).values())
'''


def instantiate(
    recipe: Recipe, values: Mapping[str, Value], binding: Binding, reference: str
) -> Bundle:
    """reference: source of the problem, whose Model holds the weights of a Python candidate."""
    python = recipe.language in PYTHON
    host = _c_host(recipe) if recipe.language in C_LIKE else ""
    given = {**binding.traits, **values}
    text = filled(recipe.template, given, host, python=python)
    parameters = dict(values)
    if python:
        text += _PYTHON_HOST.format(reference=reference)
        return Bundle(
            {"kernel.py": text}, "kernel.py", recipe.language, "ModelNew", parameters, "recipe"
        )
    # A language that only a chip's own tools know is its own suffix; they may want another.
    name = f"kernel.{SUFFIXES.get(recipe.language, recipe.language)}"
    return Bundle({name: text}, name, recipe.language, ENTRY, parameters, "recipe")


def _c_host(recipe: Recipe) -> str:
    """Typed pointers by the tensors' names and sizes by the dimensions', from `t`."""
    lines: list[str] = []
    seen: set[str] = set()
    for number, pattern in enumerate(recipe.tensors):
        lines += [_pointer(number, pattern), *_sizes(number, pattern, seen)]
    return "\n".join(f"  {line}" for line in lines)


def _pointer(number: int, pattern: TensorPattern) -> str:
    ctype = C_TYPES[pattern.dtypes[0]]
    const = "" if pattern.role == "output" else "const "
    if not pattern.dims:
        return f"{const}{ctype} {pattern.name} = *({const}{ctype} *)t[{number}].data;"
    return f"{const}{ctype} *__restrict__ {pattern.name} = ({const}{ctype} *)t[{number}].data;"


def _sizes(number: int, pattern: TensorPattern, seen: set[str]) -> list[str]:
    starred = next((n for n, dim in enumerate(pattern.dims) if dim.startswith("*")), None)
    behind = 0 if starred is None else len(pattern.dims) - starred - 1
    lines = []
    for place, dim in enumerate(pattern.dims):
        name = dim.lstrip("*")
        if name.isdigit() or name in seen:
            continue
        seen.add(name)
        if place == starred:
            lines.append(f"int64_t {name} = 1;")
            lines.append(
                f"for (int64_t d_ = {place}; d_ < t[{number}].ndim - {behind}; d_++)"
                f" {name} *= t[{number}].shape[d_];"
            )
        else:
            after = starred is not None and place > starred
            back = len(pattern.dims) - place
            where = f"t[{number}].ndim - {back}" if after else str(place)
            lines.append(f"const int64_t {name} = t[{number}].shape[{where}];")
    return [*lines, *(f"(void){dim.lstrip('*')};" for dim in pattern.dims if not dim.isdigit())]
