"""A case as tensors: inputs, weights, what the reference computes from them, and what it costs at
least.

Everything is drawn on the CPU from seeds, so that any process makes the same values. Knows nothing
of candidates.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kb.errors import InvalidRequest
from optimizer.evaluation.abi import Role, Signature, TensorSpec
from optimizer.evaluation.problem.bounds import Bound, Pointed, allowed, sensitivity
from optimizer.evaluation.problem.convention import (
    argument_names,
    check_value,
    hidden_tensors,
    positional,
)
from optimizer.evaluation.problem.importing import import_problem, running, substituted
from optimizer.evaluation.problem.input_values import (
    LatestDraw,
    cast,
    distributed,
    lively,
    own_copy,
    replaceable,
    scalar_dtype,
)
from optimizer.evaluation.problem.operators import counted_flops, formula_value
from optimizer.evaluation.problem.outputs import Untouched, keys_of, outputs_of
from optimizer.evaluation.problem.seeds import drawn_apart, seeded
from optimizer.evaluation.problem.spec import Case, OutputKind, Problem

_NUDGE_SEED = 0xE9
_SECOND_DRAW = 0x9E3779B9  # added to a seed for values to replace others with


class _Form(NamedTuple):
    """What get_inputs() makes, without the values."""

    names: tuple[str, ...]
    scalars: tuple[bool, ...]


class Banks(NamedTuple):
    """A second draw of everything a candidate is given."""

    inputs: list[torch.Tensor]
    state: dict[str, torch.Tensor]


def open_case(
    problem: Problem, case: Case, elsewhere: bool = False, device: str = "cpu"
) -> OpenCase:
    """Import the problem file with this case's constants; `device` draws its inputs. Raises
    InvalidRequest for whatever is wrong with it. `elsewhere`: shapes are enough where they tell."""
    return OpenCase(problem, case, elsewhere, device)


class OpenCase:
    """One case of a problem, with its file imported. What that raises is InvalidRequest."""

    def __init__(self, problem: Problem, case: Case, elsewhere: bool, device: str) -> None:
        self.problem = problem
        self.case = case
        # By shapes, on arrays without memory: on a CPU it would take seconds.
        self.imagines = elsewhere or device != "cpu" or not case.fits("cpu")
        self.source = substituted(problem, case.constants)
        self._module = import_problem(problem, case.constants)
        self._dtype = getattr(torch, case.dtype) if case.dtype else None
        self.init_args: list[Any] = self._init_args()
        self._buffers: frozenset[str] = frozenset()  # names, known once a model was built
        self._keys: tuple[str, ...] = ()  # of outputs, known once a result was seen
        self._latest = LatestDraw(device)

    # -- the model

    def _class(self) -> type[torch.nn.Module]:
        model_class = vars(self._module).get("Model")
        if isinstance(model_class, type) and issubclass(model_class, torch.nn.Module):
            return model_class
        raise InvalidRequest(
            f"{self.problem.path.name}: Model is not a class derived from torch.nn.Module",
            hint="Write `class Model(nn.Module)` with a `forward`.",
        )

    def _init_args(self) -> list[Any]:
        """Positional arguments for Model, whatever form get_init_inputs has."""
        make = self._module.__dict__.get("get_init_inputs")
        with running(self.problem, "get_init_inputs()"), seeded(0):
            returned = make() if make is not None else []
        with running(self.problem, "matching get_init_inputs() with Model.__init__"):
            return positional(self._class().__init__, returned, "get_init_inputs()", skip=1)

    def _build(self, seed: int) -> torch.nn.Module:
        with running(self.problem, "Model(...)"), seeded(seed), torch.no_grad():
            model = self._class()(*self.init_args)
        self._buffers = frozenset(name for name, _ in model.named_buffers(remove_duplicate=False))
        return model.eval().requires_grad_(False)

    @cached_property
    def _model(self) -> torch.nn.Module:
        """The model that every reference run copies."""
        model = self._build(0)
        # Random values that are in no state_dict would differ from one process to the next.
        first, other = hidden_tensors(model), hidden_tensors(self._build(1))
        random = sorted(n for n in first if n not in other or not torch.equal(first[n], other[n]))
        if random:
            raise InvalidRequest(
                f"{self.problem.path.name}: Model keeps random values in {', '.join(random)}, "
                "which are neither parameters nor buffers",
                hint="Use nn.Parameter or register_buffer, so that a candidate gets them too.",
            )
        return model

    def attributes(self) -> dict[str, int | float | bool]:
        """Numbers that the Model itself keeps, as `model.NAME`."""
        return {
            f"model.{name}": value
            for name, value in vars(self._model).items()
            if isinstance(value, bool | int | float)
            and not name.startswith("_")
            and name != "training"
        }

    def constants(self) -> dict[str, int | float | bool]:
        """Numbers by plain name: of the file, then Model's arguments (defaults included), then its
        attributes; the later wins."""
        bound = inspect.signature(self._class().__init__).bind(None, *self.init_args)
        bound.apply_defaults()
        attributes = {n.removeprefix("model."): value for n, value in self.attributes().items()}
        named = {**vars(self._module), **bound.arguments, **attributes}
        return {
            name: value
            for name, value in named.items()
            if isinstance(value, bool | int | float) and not name.startswith("_")
        }

    # -- inputs and weights

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of forward's arguments, in order."""
        return self._form.names

    @property
    def scalars(self) -> tuple[bool, ...]:
        """Which inputs are Python numbers for the reference."""
        return self._form.scalars

    @cached_property
    def _form(self) -> _Form:
        """Names and kinds of the inputs."""
        if self.imagines:
            with suppress(InvalidRequest), FakeTensorMode(allow_non_fake_inputs=True):
                return self._form_of(self._values(0))
        return self._form_of(self._drawn(0))

    def _form_of(self, values: list[Any]) -> _Form:
        scalars = tuple(not isinstance(value, torch.Tensor) for value in values)
        return _Form(tuple(argument_names(self._class().forward, len(values))), scalars)

    def _values(self, seed: int) -> list[Any]:
        """What get_inputs() makes, in the order of forward's arguments."""
        apart = drawn_apart(seed, self._module)
        with running(self.problem, "get_inputs()"), seeded(seed), torch.no_grad(), apart:
            returned = self._module.__dict__["get_inputs"]()
            forward = self._class().forward
        with running(self.problem, "matching get_inputs() with Model.forward"):
            values = positional(forward, returned, "get_inputs()", skip=1)
        for number, value in enumerate(values):
            check_value(self.problem, f"input {number}", value)
        return values

    def _drawn(self, seed: int) -> list[Any]:
        return self._latest.of(seed, self._values)

    def inputs(self, seed: int) -> list[torch.Tensor]:
        """Contiguous CPU tensors of their own; a Python number is a tensor without dimensions."""
        values = self._drawn(seed)
        fixed = self.problem.policy.fixed
        return [
            self._input(value, seed + 7919 * number, name in fixed)
            for number, (name, value) in enumerate(zip(self.input_names, values, strict=True))
        ]

    def _input(self, value: Any, seed: int, fixed: bool) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            return torch.tensor(value, dtype=scalar_dtype(value))
        value = value.detach().cpu()
        if value.is_floating_point():
            dtype = self._dtype or value.dtype
            how = "as_given" if fixed else self.case.distribution
            value = distributed(value, how, dtype, seed)
        tensor: torch.Tensor = value
        return tensor.clone(memory_format=torch.contiguous_format)

    def state(self, seed: int) -> dict[str, torch.Tensor]:
        """The model's weights and buffers, in state_dict order."""
        model = self._build(seed)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return {
            name: self._weight(name, value, name in parameters, seed + 104_729 * number)
            for number, (name, value) in enumerate(model.state_dict().items())
        }

    def _weight(
        self, name: str, value: torch.Tensor, is_parameter: bool, seed: int
    ) -> torch.Tensor:
        value = value.detach().cpu()
        if self._varying and name not in self.problem.policy.fixed:
            value = lively(name, value, is_parameter, seed)
        if self._dtype is not None and value.is_floating_point():
            value = value.to(self._dtype)
        return value.clone(memory_format=torch.contiguous_format)

    @property
    def _varying(self) -> bool:
        return self.problem.policy.weights == "varying"

    def banks(self, seed: int) -> Banks:
        """Other values of everything, to replace parts of `inputs(seed)` and `state(seed)` with."""
        other = seed + _SECOND_DRAW
        return Banks(self.inputs(other), self.state(other))

    @cached_property
    def fresh(self) -> tuple[bool, ...]:
        """Which of inputs and weights may be partly replaced between calls."""
        return self.fresh_of(Banks(self.inputs(0), self.state(0)), self.banks(0))

    def fresh_of(self, first: Banks, other: Banks) -> tuple[bool, ...]:
        """As `fresh`, from two draws."""
        policy = self.problem.policy
        known = zip(self.input_names, self.scalars, first.inputs, other.inputs, strict=True)
        fresh = [
            not scalar
            and name not in policy.fixed
            and (name in policy.perturb or replaceable(a, b))
            for name, scalar, a, b in known
        ]
        fresh += [
            self._varying and name not in policy.fixed and replaceable(value, other.state[name])
            for name, value in first.state.items()
        ]
        return tuple(fresh)

    # -- results of the reference

    def reference(
        self,
        inputs: Sequence[torch.Tensor],
        state: Mapping[str, torch.Tensor],
        *,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        noise: int = 0,
    ) -> list[torch.Tensor]:
        """The outputs of Model in eval mode, on copies, on `device`. `dtype` is that of all
        floating values, for a golden result; None leaves them as they are. `noise` seeds what
        forward itself may draw. A golden that does not fit into the device's memory, in which
        float64 takes twice the room, is computed on the CPU.
        """
        try:
            return self._forward(inputs, state, dtype, device, noise)
        except torch.OutOfMemoryError:
            if device == "cpu" or dtype is None:
                raise
            torch.cuda.empty_cache()
            on_host = self._forward(inputs, state, dtype, "cpu", noise)
            return [output.to(device) for output in on_host]

    def _forward(
        self,
        inputs: Sequence[torch.Tensor],
        state: Mapping[str, torch.Tensor],
        dtype: torch.dtype | None,
        device: str,
        noise: int,
    ) -> list[torch.Tensor]:
        model = copy.deepcopy(self._model)
        for_model = dtype or self._dtype
        if for_model is not None:
            model = model.to(for_model)
        model = model.to(device)
        model.load_state_dict(dict(state))
        arguments = [
            tensor.item() if scalar else own_copy(tensor, dtype, device)
            for tensor, scalar in zip(inputs, self.scalars, strict=True)
        ]
        before = torch.get_default_dtype()
        tf32 = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with running(self.problem, "Model.forward"), seeded(noise), torch.no_grad(), tf32:
            try:
                if dtype is not None:
                    torch.set_default_dtype(dtype)  # what forward itself makes is as precise
                untouched = Untouched(self.input_names, arguments)
                result = model(*arguments)
            finally:
                torch.set_default_dtype(before)
        outputs = self._outputs(result)
        untouched.check(self.problem, outputs)
        return outputs

    def _outputs(self, result: Any) -> list[torch.Tensor]:
        self._keys = keys_of(result)
        return outputs_of(self.problem, result)

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The keys of the outputs, in their order, where forward returns a dict; else none."""
        _ = self.signature  # known once the reference ran, or its shapes were found
        return self._keys

    @cached_property
    def signature(self) -> Signature:
        """The arrays that a candidate gets for this case. Runs the reference once."""
        if self.imagines:
            with suppress(InvalidRequest):  # its sizes depend on values: they have to be made
                return self._imagined()
        inputs, state = self.inputs(0), self.state(0)
        return self._signature_of(inputs, state, self.reference(inputs, state))

    def _imagined(self) -> Signature:
        """The signature from shapes and dtypes alone."""
        with FakeTensorMode(allow_non_fake_inputs=True):
            inputs, state, forward = self.imagine()
            tensors = [torch.as_tensor(v, dtype=scalar_dtype(v)) for v in inputs]
            return self._signature_of(tensors, state, self._outputs(forward()))

    def imagine(self) -> tuple[list[Any], dict[str, torch.Tensor], Callable[[], Any]]:
        """Inputs, weights and the reference's run; to be called where tensors have no memory."""
        values, model = self._values(0), self._build(0)
        inputs = [cast(v, self._dtype) if isinstance(v, torch.Tensor) else v for v in values]
        every = {**dict(model.named_buffers()), **model.state_dict()}
        arrays = {name: cast(value, self._dtype) for name, value in every.items()}

        def forward() -> Any:
            with running(self.problem, "Model.forward"), torch.no_grad():
                return torch.func.functional_call(model, arrays, tuple(inputs))

        return inputs, {name: arrays[name] for name in model.state_dict()}, forward

    def _signature_of(
        self,
        inputs: Sequence[torch.Tensor],
        state: Mapping[str, torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> Signature:
        buffers = self._buffers
        specs = [_spec("input", n, v) for n, v in zip(self.input_names, inputs, strict=True)]
        specs += [_spec("buffer" if n in buffers else "parameter", n, v) for n, v in state.items()]
        specs += [_spec("output", f"output{n}", v) for n, v in enumerate(outputs)]
        return Signature(tuple(specs))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the signature."""
        return self.signature.of("output")

    @property
    def kinds(self) -> tuple[OutputKind, ...]:
        """How each output is compared. Raises InvalidRequest where the policy names another number
        of outputs."""
        named, count = self.problem.policy.outputs, len(self.outputs)
        if not named:
            return tuple("float" if "float" in output.dtype else "exact" for output in self.outputs)
        if len(named) not in (1, count):
            raise InvalidRequest(
                f"{self.problem.name}: policy.outputs names {len(named)} kinds, Model has {count} "
                "outputs",
                hint="Give one kind, or one for each output.",
            )
        return named * count if len(named) == 1 else named

    def bounds(
        self,
        inputs: Sequence[torch.Tensor],
        goldens: Sequence[torch.Tensor],
        references: Sequence[torch.Tensor],
        sensitivities: Sequence[float] = (),
        *,
        device: str = "cpu",
    ) -> list[Bound]:
        """The bound of each output. `goldens` and `references` are `reference`'s results for these
        inputs, `sensitivities` what `sensitivities` returned, by default 0. `device` is where an
        index output is compared."""
        length = self.reduction_length()
        relaxed = self.problem.policy.precision == "relaxed"
        return [
            allowed(
                golden,
                reference,
                kind,
                spec.dtype,
                length,
                relaxed=relaxed,
                pointed=self.pointed(inputs, device) if kind == "index" else None,
                name=spec.name,
                sensitivity=moved,
            )
            for spec, kind, golden, reference, moved in zip(
                self.outputs,
                self.kinds,
                goldens,
                references,
                sensitivities or [0.0] * len(self.outputs),
                strict=True,
            )
        ]

    def sensitivities(
        self,
        inputs: Sequence[torch.Tensor],
        state: Mapping[str, torch.Tensor],
        goldens: Sequence[torch.Tensor],
        device: str = "cpu",
    ) -> list[float]:
        """How far each golden moves when the inputs do, by at most one last place of float32; on
        the CPU where the device's memory does not suffice."""
        try:
            return self._moved(inputs, state, goldens, device)
        except torch.OutOfMemoryError:
            if device == "cpu":
                raise
            torch.cuda.empty_cache()
            return self._moved(inputs, state, [golden.cpu() for golden in goldens], "cpu")

    def _moved(
        self,
        inputs: Sequence[torch.Tensor],
        state: Mapping[str, torch.Tensor],
        goldens: Sequence[torch.Tensor],
        device: str,
    ) -> list[float]:
        eps = torch.finfo(torch.float32).eps
        moved = []
        with seeded(_NUDGE_SEED):
            for value in (value.to(device) for value in inputs):
                if value.is_floating_point():
                    nudge = torch.rand(value.shape, dtype=torch.float64, device=device)
                    value = nudge.mul_(2).sub_(1).mul_(eps).add_(1).mul_(value)
                moved.append(value)
        results = self.reference(moved, state, dtype=torch.float64, device=device)
        return [sensitivity(*pair) for pair in zip(goldens, results, strict=True)]

    def pointed(self, inputs: Sequence[torch.Tensor], device: str = "cpu") -> Pointed:
        """The input that index outputs point into, on `device`; by default the last dimension of
        the first input. Raises InvalidRequest where the policy names no input."""
        into = self.problem.policy.index_into
        name, dim = next(iter(into.items()), (self.input_names[0], -1))
        if name not in self.input_names:
            raise InvalidRequest(
                f"{self.problem.name}: policy.index_into names {name!r}",
                hint=f"The inputs are {', '.join(self.input_names)}.",
            )
        return Pointed(inputs[self.input_names.index(name)].to(device), dim)

    # -- what it costs

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of inputs, weights and outputs, each counted once."""
        return self.signature.compulsory_bytes

    def flops(self) -> int:
        """Counted from the operators that the reference runs; 0 where none of them is counted."""
        return self._flops

    @cached_property
    def _flops(self) -> int:
        if self.imagines:
            with suppress(InvalidRequest), FakeTensorMode(allow_non_fake_inputs=True):
                return counted_flops(self.imagine()[2])
        inputs, state = self.inputs(0), self.state(0)
        return counted_flops(lambda: self.reference(inputs, state))

    def reduction_length(self) -> int:
        """Terms in one output element: of the policy, else from counted flops, else from sizes."""
        stated = self.problem.policy.reduction_length
        if isinstance(stated, int):
            return max(1, stated)
        if isinstance(stated, str):
            return formula_value(stated, vars(self._module), self.problem)
        outputs = sum(output.elements for output in self.outputs) or 1
        largest = max((t.elements for t in self.signature.of("input")), default=1)
        return max(1, self.flops() // (2 * outputs), largest // outputs)


def _spec(role: Role, name: str, value: torch.Tensor) -> TensorSpec:
    return TensorSpec(name, role, str(value.dtype).removeprefix("torch."), tuple(value.shape))
