"""A configuration or a rewritten forward as a Python candidate.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.evaluation.bundle import Bundle, Origin
from optimizer.search.records import Value
from optimizer.search.synthesizers.compiler.configurations import EAGER, Options

FILE = "candidate.py"

# A stored candidate may meet another version of torch than the one it was made with.
_COMPILED = '''

import torch._inductor

MODE = {mode!r}
OPTIONS = {options}


def compile_options():
    """What the mode sets and what is changed in it, as far as this torch knows the names."""
    known = set(torch._inductor.list_options())
    chosen = {{**torch._inductor.list_mode_options().get(MODE, {{}}), **OPTIONS}}
    return {{name: value for name, value in chosen.items() if name in known}}


class ModelNew({base}):
    """{summary}"""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.compiled = torch.compile(super().forward, dynamic=False, options=compile_options())

    def forward(self, *inputs):
        return self.compiled(*inputs)
'''
_REWRITTEN = '''

{imports}

{functions}class {name}(Model):
    """{summary}"""

{state}{forward}
'''
_STATE = """    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
{rows}

"""


@dataclass(frozen=True)
class Written:
    """A forward as text, indented as a method, with the imports it needs. `functions` is the text
    before the class; `kept` names the functions whose results `self.NAME` keeps."""

    forward: str
    imports: str
    functions: str = ""
    kept: tuple[str, ...] = ()


def configured_bundle(reference: str, mode: str, options: Options) -> Bundle:
    """A candidate that runs the problem through torch.compile in this mode with these options."""
    text = reference + _compiled("Model", mode, options, "The reference through torch.compile.")
    return _bundle(text, {"mode": mode, **options}, "config")


def rewritten_bundle(
    reference: str,
    text: Written,
    names: tuple[str, ...],
    mode: str = EAGER,
    options: Options | None = None,
) -> Bundle:
    """A candidate with another forward, compiled too unless the mode is EAGER; `names` are the
    rewrites in it."""
    eager = mode == EAGER
    applied = ", ".join(names)
    rows = "\n".join(f"        self.{name} = _Kept({name})" for name in text.kept)
    source = reference + _REWRITTEN.format(
        imports=text.imports,
        functions=f"{text.functions}\n" if text.functions else "",
        name="ModelNew" if eager else "Rewritten",
        summary=f"The reference with its graph rewritten: {applied}.",
        state=_STATE.format(rows=rows) if rows else "",
        forward=text.forward,
    )
    if not eager:
        source += _compiled("Rewritten", mode, options or {}, "The rewritten graph, compiled.")
    return _bundle(source, {"mode": mode, "rewrites": applied, **(options or {})}, "rewrite")


def _compiled(base: str, mode: str, options: Options, summary: str) -> str:
    rows = "".join(f"    {name!r}: {value!r},\n" for name, value in sorted(options.items()))
    table = f"{{\n{rows}}}" if rows else "{}"
    return _COMPILED.format(mode=mode, options=table, base=base, summary=summary)


def _bundle(text: str, values: Mapping[str, Value], origin: Origin) -> Bundle:
    return Bundle({FILE: text}, FILE, "torch", "ModelNew", dict(values), origin)
