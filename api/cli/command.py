"""Typer commands, made from functions and from operations.

The name of a function's first parameter selects the target of its command: `target` is the
service of `--url` or of the data directory, else this process; `local` is this process; `services`
are those of this process. A function without one of them opens nothing. `--data-dir`, `--url` and
`--json` are added as needed; the value that the function returns is printed.

A parameter with `Doc` is an option, as in operations: `Annotated[int, Doc("..."), Ge(1)]`. Options
under further names are `typer.Option`, positional arguments `typer.Argument`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from annotated_types import Ge

from api.cli.output import show
from api.cli.target import login, open_target, opened
from api.operations import Input
from kb.errors import InvalidRequest
from kb.plain import Doc

DataDir = Annotated[
    Path | None, Doc("Data directory. Default: KERNLORE_DATA_DIR from the environment, or ./data.")
]
Url = Annotated[
    str | None,
    Doc(
        "URL of a service to use. Default: KERNLORE_URL from the environment, or the service"
        " that runs on the data directory, or none."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as one line of JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Actor = Annotated[str | None, Doc("Who decides. Default: your login name.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="A new or empty folder.")]
ProblemPath = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM", help="A problem file, folder or the name of a built-in problem."
    ),
]
DeviceHardware = Annotated[str, Doc("Hardware id; auto: the hardware of this machine.")]
Ray = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of a Ray cluster whose nodes do the work, or auto for the one on this"
        " machine.",
        show_default=False,
    ),
]
Seed = Annotated[int, Doc("Random seed.")]
Models = Annotated[
    str,
    Doc(
        "Language models that propose candidates too, by their litellm names, with optional"
        " weights: a=2,b."
    ),
]
ApiBase = Annotated[
    str | None, Doc("Address of an OpenAI-compatible server. Default: that of the provider.")
]
# Of a run that continues: the default is the value that the run had.
ContextTokensOfRun = Annotated[
    int | None,
    Doc("Most tokens of knowledge in a prompt. Default: that of the run, or 48,000."),
    Ge(1_000),
]
Reader = Annotated[
    str,
    Doc(
        "Class of the models as readers of knowledge: strong, small, full for everything that"
        " fits, or auto for that of their names."
    ),
]
ModelSeconds = Annotated[float, Doc("Longest time of one call of a model, in seconds."), Ge(1)]
ModelSecondsOfRun = Annotated[
    float | None,
    Doc("Longest time of one call of a model, in seconds. Default: that of the run, or 300."),
    Ge(1),
]


Wait = Annotated[
    float,
    typer.Option(
        "--wait-idle",
        "--wait",
        metavar="MINUTES",
        help="Wait at most this long until other work leaves enough processors to time anything.",
        min=0,
    ),
]


def wait_for_processors(minutes: float) -> None:
    """Wait at most `minutes` until other work leaves enough processors, and print the busy
    processes. Returns at once without other work or minutes."""
    from api.cli.output import note
    from optimizer.evaluation.isolation.machine import usable_processors, wait_until_quiet

    if minutes and not wait_until_quiet(usable_processors(), 60 * minutes, note):
        note(f"other work did not end within {minutes:g} minutes")


def switched_on(word: str) -> bool:
    """Whether `--knowledge` is on. Raises InvalidRequest for a word other than on and off."""
    if word not in ("on", "off"):
        raise InvalidRequest(f"--knowledge is {word!r}", hint="Give on or off.")
    return word == "on"


if TYPE_CHECKING:
    from api.operations import Operation

F = TypeVar("F", bound=Callable[..., Any])
PLACES = ("target", "local", "services")
COMMON = {
    name: inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
    for name, default, annotation in (
        ("data_dir", None, DataDir),
        ("url", None, Url),
        ("as_json", False, AsJson),
    )
}


def command(
    app: typer.Typer | None = None,
    name: str = "",
    *,
    text: Callable[[Any], str] | None = None,
    failed: Callable[[Any], int] | None = None,
    after: Callable[[Any], None] | None = None,
) -> Callable[[F], F]:
    """Make a function a command of `app`, or a command by itself.

    `text` renders the returned value for people; without it, the function prints its answer and
    returns the exit code, 0 for None. The command exits with 1 where `failed` is true of
    the value, or with the code that `failed` gives; `after` prints remarks about it. The function
    gets `data_dir` and `as_json` if it has these parameters.
    """

    def decorate(function: F) -> F:
        own = list(inspect.signature(function).parameters.values())
        place = own.pop(0).name if own and own[0].name in PLACES else ""
        names = {p.name for p in own}

        def run(**given: Any) -> int:
            passed = {name: given[name] for name in names}
            with _opened(place, given.get("data_dir"), given.get("url")) as first:
                value = function(*first, **passed)
            if text is None:
                return int(value or 0)
            show(value, given["as_json"], text)
            if after is not None:
                after(value)
            return 0 if failed is None else int(failed(value))

        common = names | ({"as_json"} if text else set()) | ({"data_dir"} if place else set())
        common |= {"url"} if place == "target" else set()
        shown = [p for p in own if p.name not in COMMON]
        shown += [p for p in COMMON.values() if p.name in common]
        parameters = [
            p.replace(kind=p.KEYWORD_ONLY, annotation=_resolved(p, function)) for p in shown
        ]
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        if app is None:
            return run  # type: ignore[return-value]
        app.command(name or None)(run)
        return function

    return decorate


def operation_command(
    app: typer.Typer | None,
    name: str,
    operation: Operation[Any, Any],
    *,
    text: Callable[[Any], str],
    help: str = "",
    parameters: Mapping[str, Any] | None = None,
    options: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
    pick: str = "",
    failed: Callable[[Any], int] | None = None,
    after: Callable[[Any], None] | None = None,
) -> Callable[..., Any]:
    """A command that carries out one operation and prints its output, or the field `pick` of it.

    parameters: annotations of positional arguments, and of options that need their own.
    options: further parameters of the operation; their types, bounds and help texts are its own.
    defaults: defaults other than those of the operation. fixed: values that are no options.

    The actor is the login name where the operation has one and the user gives none.
    """
    inputs = {i.name: i for i in operation.inputs}
    annotations = dict(parameters or {}) | {name: _option(inputs[name]) for name in options}
    given = {name: inputs[name].default for name in annotations} | dict(defaults or {})
    if "actor" in given:
        given["actor"] = None

    def run(target: Any, **values: Any) -> Any:
        values |= fixed or {}
        if "actor" in inputs and values.get("actor") is None:
            values["actor"] = login()
        output = target.call(operation, **values)
        return output[pick] if pick else output

    run.__name__, run.__doc__ = operation.name, help or f"{operation.summary}."
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("target", inspect.Parameter.POSITIONAL_ONLY)]
        + [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotations[name]
            )
            for name, default in given.items()
        ]
    )
    return command(app, name, text=text, failed=failed, after=after)(run)


@contextmanager
def _opened(place: str, data_dir: Any, url: str | None) -> Iterator[tuple[Any, ...]]:
    """The first argument of the function, if it has one."""
    if not place:
        yield ()
    elif place == "target":
        with open_target(data_dir, url) as target:
            yield (target,)
    else:
        with opened(data_dir) as local:
            yield (local if place == "local" else local.services,)


def _resolved(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    """The annotation of a parameter, with a Typer option in place of its documentation."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        annotation = eval(annotation, function.__globals__)
    given = Input(parameter.name, "query", annotation, parameter.default)
    if not given.description:
        return annotation
    # A named flag has no `--no-` twin.
    names = [f"--{given.name.replace('_', '-')}"] if given.type is bool else []
    return Annotated[given.type, typer.Option(*names, help=given.description, **_bounds(given))]


# -- options of operations


def _option(given: Input) -> Any:
    """The annotation of an option for a parameter of an operation."""
    kind, choices = _plain_type(given.type)
    help = f"{given.description} One of {', '.join(choices)}." if choices else given.description
    return Annotated[kind, typer.Option(help=help, **_bounds(given))]


def _bounds(given: Input) -> dict[str, Any]:
    """The bounds of a parameter in Typer's names."""
    return {
        end: value
        for bound in given.bounds
        for end, attribute in (("min", "ge"), ("max", "le"))
        if (value := getattr(bound, attribute, None)) is not None
    }


def _plain_type(kind: Any) -> tuple[Any, Sequence[str]]:
    """A type that Typer takes, and the choices of a literal, which the operation itself checks."""
    parts = [part for part in get_args(kind) if part is not NoneType]
    if get_origin(kind) is Literal:
        return str, parts
    if not parts:
        return kind, ()
    inner, choices = _plain_type(parts[0])
    if get_origin(kind) is list:
        return list[inner], choices  # type: ignore[valid-type]
    return (inner | None if NoneType in get_args(kind) else inner), choices
