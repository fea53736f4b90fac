"""The arguments that a problem file constructs its Model with, made from the file's text in any
process: `get_init_inputs` may return objects that cannot be sent to another one.

Standard library and torch only, since compilers of candidates run it without Kernlore.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "kernlore_arguments"


class EndsProcess(RuntimeError):
    """The file's code ends the process, as `argparse` does."""


class KeywordOnly(TypeError):
    """Arguments that can only be given by name; `names` are theirs."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"keyword-only arguments: {', '.join(names)}")
        self.names = tuple(names)


@contextmanager
def as_script(path: Path | str) -> Iterator[None]:
    """Run a file's code as a script without arguments. Raises EndsProcess."""
    before, sys.argv = sys.argv, [str(path)]
    try:
        yield
    except SystemExit as ended:
        raise EndsProcess(f"it ends the process with {ended.code!r}") from ended
    finally:
        sys.argv = before


def script_module(source: str) -> ModuleType:
    """A new module with a file's code. Raises EndsProcess."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    module = ModuleType(f"kernlore_script_{digest}")
    sys.modules[module.__name__] = module  # dataclasses look a class's module up
    with as_script(module.__name__):
        exec(compile(source, module.__name__, "exec"), module.__dict__)
    return module


def positional(function: Any, returned: Any, skip: int) -> list[Any]:
    """Arguments of `function` as a list, from a list, a dict, [args, kwargs] or a single value,
    without its first `skip` parameters. Raises KeywordOnly, or TypeError for arguments that do not
    fit."""
    if isinstance(returned, dict):
        args, kwargs = [], returned
    elif isinstance(returned, tuple | list) and _is_args_kwargs(returned):
        args, kwargs = list(returned[0]), returned[1]
    elif isinstance(returned, tuple | list):
        return list(returned)
    else:
        return [returned]
    bound = inspect.signature(function).bind(*[None] * skip, *args, **kwargs)
    bound_names = [name in bound.arguments for name in bound.signature.parameters]
    bound.apply_defaults()
    if bound.kwargs:
        raise KeywordOnly(list(bound.kwargs))
    last = max((n for n, known in enumerate(bound_names, 1) if known), default=skip)
    return list(bound.args[skip : max(last, skip + len(args))])


def _is_args_kwargs(returned: Sequence[Any]) -> bool:
    return (
        len(returned) == 2
        and isinstance(returned[0], tuple | list)
        and isinstance(returned[1], dict)
    )


def are_plain(args: Sequence[Any]) -> bool:
    """Whether arguments are the same after they were sent as JSON."""
    try:
        return _same(list(args), json.loads(json.dumps(list(args))))
    except (TypeError, ValueError, RecursionError):
        return False


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other) or one != one


def init_arguments(sent: Mapping[str, Any]) -> list[Any]:
    """The arguments of `sent["init_args"]`, or made by the problem file in `sent["init_source"]`, a
    pair of its text and path."""
    source = sent.get("init_source")
    if source is None:
        return list(sent["init_args"])
    text, path = source
    module = ModuleType(MODULE)
    module.__file__ = path
    sys.modules[MODULE] = module  # dataclasses look a class's module up
    folder = str(Path(path).parent)
    sys.path.insert(0, folder)
    try:
        with as_script(path):
            exec(compile(text, path, "exec"), module.__dict__)
            _seed()
            return positional(module.Model.__init__, module.get_init_inputs(), skip=1)
    finally:
        sys.path.remove(folder)


def _seed() -> None:
    import torch

    torch.manual_seed(0)
    random.seed(0)
    numpys = sys.modules.get("numpy.random")
    if numpys is not None:
        numpys.seed(0)
