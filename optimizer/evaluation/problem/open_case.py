"""A case as tensors: inputs, weights, the outputs of the reference, and its least cost.

Everything is drawn from seeds, so that any process makes the same values. Does not know candidates.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from kb.errors import InvalidRequest
from optimizer.evaluation.abi import Role, Signature, TensorSpec
from optimizer.evaluation.problem.bounds import Bound, Pointed, allowed, sensitivity
from optimizer.evaluation.problem.operators import ReferenceCost, formula_value, reference_cost
from optimizer.evaluation.problem.slices import Sliced, first_rows, golden_in_slices
from optimizer.evaluation.problem.spec import Case, Distribution, OutputKind, Problem
from optimizer.evaluation.problem.user_code import (
    InputVersions,
    argument_names,
    check_value,
    differentiates,
    differs_in_training,
    drawn_apart,
    hidden_tensors,
    import_problem,
    keys_of,
    outputs_of,
    positional,
    running,
    seeded,
    substituted,
)
from optimizer.evaluation.runner.constructor import are_plain
from optimizer.evaluation.runner.kernels import DrawnOnGpu, require_gradients

T = TypeVar("T")

_NUDGE_SEED = 0xE9
# The model of the latest case, by its text: initialising the weights of a large one takes seconds.
_LATEST_MODEL: dict[str, _BuiltModel] = {}
_SECOND_DRAW = 0x9E3779B9  # added to a seed for the values that replace others


class _InputForm(NamedTuple):
    """Names of the inputs of get_inputs(), and which are Python numbers."""

    names: tuple[str, ...]
    scalars: tuple[bool, ...]


class _BuiltModel(NamedTuple):
    """A model with values that are computed once: names of its buffers, and of modules that
    compute something else in train mode."""

    model: torch.nn.Module
    buffers: frozenset[str]
    trained: tuple[str, ...]


class DrawnValues(NamedTuple):
    """One draw of everything that a candidate gets."""

    inputs: list[torch.Tensor]
    state: dict[str, torch.Tensor]


class OpenCase:
    """One case of a problem, with its file imported. Every method raises InvalidRequest for
    mistakes in the file."""

    def __init__(
        self, problem: Problem, case: Case, *, shapes_only: bool = False, device: str = "cpu"
    ) -> None:
        """`device` draws the inputs. `shapes_only`: shapes are inferred without computing, where
        they do not depend on values."""
        self.problem = problem
        self.case = case
        # On a CPU, computing a case for a GPU would take seconds.
        self.infers = shapes_only or device != "cpu" or not case.fits("cpu")
        self.source = substituted(problem, case.constants)
        self._module = import_problem(problem, case.constants)
        self._dtype = getattr(torch, case.dtype) if case.dtype else None
        self._device = device
        self.init_args: list[Any] = DrawPlace(device).make(0, self._init_args, lambda args: args)
        # The file's text and path, from which another process makes arguments that are not plain.
        self.init_source: tuple[str, str] | None = None
        if not are_plain(self.init_args):
            self.init_source = (self.source, str(problem.path))
            if device != "cpu":  # they hold the device's memory, and processes make their own
                self.init_args = self._init_args(0)
        self._gradients = False  # once forward was found to differentiate
        self._overwritten: tuple[str, ...] = ()  # inputs, once forward ran
        self._shared: frozenset[int] = frozenset()  # outputs, once forward ran
        self._buffers: frozenset[str] = frozenset()  # names, once a model was built
        self._trained: tuple[str, ...] = ()  # the same
        self._keys: tuple[str, ...] = ()  # of outputs, once there was a result
        # Inputs that are cut and rows of a slice, once a golden was computed by slices.
        self._rows: tuple[tuple[int, ...], int] | None = None
        self._latest = LatestDraw(device)
        self._weights_place = DrawPlace(device)

    # -- the model

    def _class(self) -> type[torch.nn.Module]:
        model_class = vars(self._module).get("Model")
        if isinstance(model_class, type) and issubclass(model_class, torch.nn.Module):
            return model_class
        raise InvalidRequest(
            f"{self.problem.path.name}: Model is not a class derived from torch.nn.Module",
            hint="Write `class Model(nn.Module)` with a `forward`.",
        )

    def _init_args(self, seed: int) -> list[Any]:
        """Positional arguments for Model."""
        make = self._module.__dict__.get("get_init_inputs")
        with running(self.problem, "get_init_inputs()"), seeded(seed):
            returned = make() if make is not None else []
        with running(self.problem, "matching get_init_inputs() with Model.__init__"):
            return positional(self._class().__init__, returned, "get_init_inputs()", skip=1)

    def _build(self, seed: int) -> torch.nn.Module:
        # Objects like modules become parts of the model, so that each model gets its own.
        args = self._init_args(seed) if self.init_source else self.init_args
        on_gpu = self._device != "cpu" and torch.cuda.is_available()
        drawing = DrawnOnGpu() if on_gpu else nullcontext()
        with running(self.problem, "Model(...)"), seeded(seed), torch.no_grad(), drawing:
            model = self._class()(*args)
        self._buffers = frozenset(name for name, _ in model.named_buffers(remove_duplicate=False))
        self._trained = tuple(
            f"{name} ({type(module).__name__})"
            for name, module in model.named_modules()
            if module.training and differs_in_training(module)
        )
        return model.eval().requires_grad_(False)

    @cached_property
    def _model(self) -> torch.nn.Module:
        """The model that every reference run copies, also those of the same case opened again."""
        key = hashlib.sha256(f"{self.problem.path}\0{self.source}".encode()).hexdigest()
        if key in _LATEST_MODEL:
            model, self._buffers, self._trained = _LATEST_MODEL[key]
            return model
        model = self._build(0)
        # Random values outside the state_dict would differ between processes.
        first = hidden_tensors(model)
        other = hidden_tensors(self._build(1)) if first else {}
        random = sorted(n for n in first if n not in other or not torch.equal(first[n], other[n]))
        if random:
            raise InvalidRequest(
                f"{self.problem.path.name}: Model keeps random values in {', '.join(random)}, "
                "which are neither parameters nor buffers",
                hint="Use nn.Parameter or register_buffer, so that a candidate gets them too.",
            )
        _LATEST_MODEL.clear()
        _LATEST_MODEL[key] = _BuiltModel(model, self._buffers, self._trained)
        return model

    @property
    def trained_otherwise(self) -> tuple[str, ...]:
        """Modules of the model that compute something else in train mode, which the file's Model
        is in before the harness changes it to eval mode, as `d (Dropout)`."""
        _ = self._model
        return self._trained

    def attributes(self) -> dict[str, int | float | bool]:
        """Numeric attributes of the Model, as `model.NAME`."""
        return {
            f"model.{name}": value
            for name, value in vars(self._model).items()
            if isinstance(value, bool | int | float)
            and not name.startswith("_")
            and name != "training"
        }

    def constants(self) -> dict[str, int | float | bool]:
        """Numbers by plain name: of the file, overridden by Model's arguments (with defaults) and
        its attributes."""
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
        """Whether each input is a Python number for the reference."""
        return self._form.scalars

    @cached_property
    def _form(self) -> _InputForm:
        if self.infers:
            with suppress(InvalidRequest), FakeTensorMode(allow_non_fake_inputs=True):
                return self._form_of(self._values(0))
        return self._form_of(self._drawn(0))

    def _form_of(self, values: list[Any]) -> _InputForm:
        scalars = tuple(not isinstance(value, torch.Tensor) for value in values)
        return _InputForm(tuple(argument_names(self._class().forward, len(values))), scalars)

    def _values(self, seed: int) -> list[Any]:
        """Values of get_inputs(), in the order of forward's arguments."""
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
        """New contiguous CPU tensors; a Python number is a tensor without dimensions."""
        return [value.cpu() for value in self._inputs_in_place(seed)]

    def _inputs_in_place(self, seed: int) -> list[torch.Tensor]:
        values = self._drawn(seed)
        fixed = self.problem.policy.fixed
        return [
            self._input(value, seed + 7919 * number, name in fixed)
            for number, (name, value) in enumerate(zip(self.input_names, values, strict=True))
        ]

    def _input(self, value: Any, seed: int, fixed: bool) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            return torch.tensor(value, dtype=scalar_dtype(value))
        value = value.detach()
        if value.is_floating_point():
            dtype = self._dtype or value.dtype
            how = "as_given" if fixed else self.case.distribution
            value = distributed(value, how, dtype, seed)
        tensor: torch.Tensor = value
        return tensor.clone(memory_format=torch.contiguous_format)

    def state(self, seed: int) -> dict[str, torch.Tensor]:
        """The model's weights and buffers on the CPU, in state_dict order."""
        return {name: value.cpu() for name, value in self._state_in_place(seed).items()}

    def _state_in_place(self, seed: int) -> dict[str, torch.Tensor]:
        model = self._built(seed)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return {
            name: self._weight(name, value, name in parameters, seed + 104_729 * number)
            for number, (name, value) in enumerate(model.state_dict().items())
        }

    def _built(self, seed: int) -> torch.nn.Module:
        """A model for its weights alone: a large one is built where inputs are drawn."""
        if not self._large:
            return self._build(seed)
        return self._weights_place.make(
            seed, self._build, lambda model: model.state_dict().values()
        )

    @cached_property
    def _large(self) -> bool:
        return self.infers and _bytes_of(self._model.state_dict().values()) > BUILT_ON_CPU

    def _weight(
        self, name: str, value: torch.Tensor, is_parameter: bool, seed: int
    ) -> torch.Tensor:
        value = value.detach()
        if self._varying and name not in self.problem.policy.fixed:
            value = varied_constant(name, value, is_parameter, seed)
        if self._dtype is not None and value.is_floating_point():
            value = value.to(self._dtype)
        return value.clone(memory_format=torch.contiguous_format)

    @property
    def _varying(self) -> bool:
        return self.problem.policy.weights == "varying"

    def drawn(self, seed: int) -> DrawnValues:
        """`inputs` and `state` of a seed."""
        return DrawnValues(self.inputs(seed), self.state(seed))

    def drawn_in_place(self, seed: int) -> DrawnValues:
        """The values of `drawn`, each on the device that draws it: moving gigabytes to the host
        takes longer than drawing them."""
        return DrawnValues(self._inputs_in_place(seed), self._state_in_place(seed))

    def second_draw(self, seed: int) -> DrawnValues:
        """Other values of everything, to replace parts of `drawn(seed)`."""
        return self.drawn(seed + _SECOND_DRAW)

    def second_draw_in_place(self, seed: int) -> DrawnValues:
        """The values of `second_draw`, as `drawn_in_place`."""
        return self.drawn_in_place(seed + _SECOND_DRAW)

    def replaceable(self, first: DrawnValues, other: DrawnValues) -> tuple[bool, ...]:
        """Whether each input and weight may be partly replaced between calls, from two draws."""
        policy = self.problem.policy
        known = zip(self.input_names, self.scalars, first.inputs, other.inputs, strict=True)
        fresh = [
            not scalar
            and name not in policy.fixed
            and (name in policy.perturb or may_replace(a, b))
            for name, scalar, a, b in known
        ]
        fresh += [
            self._varying and name not in policy.fixed and may_replace(value, other.state[name])
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
        floating values, for a golden result; None leaves them unchanged. `noise` seeds what forward
        may draw. A golden that does not fit into the device's memory, in which float64 takes twice
        the space, is computed by slices, or on the CPU where the rows of its outputs depend on
        each other."""
        try:
            if self._rows is None or dtype is None or device == "cpu":
                return self._forward(inputs, state, dtype, device, noise)
        except torch.OutOfMemoryError:
            if device == "cpu" or dtype is None:
                raise
        torch.cuda.empty_cache()
        sliced = self._in_slices(inputs, state, device, noise) if dtype == torch.float64 else None
        if sliced is not None:
            self._rows = sliced.cut, sliced.rows
            return sliced.goldens
        from_host = self._forward(inputs, state, dtype, "cpu", noise)
        return [output.to(device) for output in from_host]

    def _in_slices(
        self,
        inputs: Sequence[torch.Tensor],
        state: Mapping[str, torch.Tensor],
        device: str,
        noise: int,
    ) -> Sliced | None:
        def run(part: Sequence[torch.Tensor], dtype: torch.dtype | None) -> list[torch.Tensor]:
            return self._forward(part, state, dtype, device, noise)

        try:
            whole = run(inputs, None)
            return golden_in_slices(run, inputs, whole, self.reduction_length())
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return None

    def _forward(
        self,
        inputs: Sequence[torch.Tensor],
        state: Mapping[str, torch.Tensor],
        dtype: torch.dtype | None,
        device: str,
        noise: int,
    ) -> list[torch.Tensor]:
        try:
            return self._called(inputs, state, dtype, device, noise)
        except InvalidRequest as error:
            if self._gradients or not differentiates(error):
                raise
        self._gradients = True
        return self._called(inputs, state, dtype, device, noise)

    def _called(
        self,
        inputs: Sequence[torch.Tensor],
        state: Mapping[str, torch.Tensor],
        dtype: torch.dtype | None,
        device: str,
        noise: int,
    ) -> list[torch.Tensor]:
        model = self._loaded(state, dtype, device)
        require_gradients(model, self._gradients)
        arguments = [
            tensor.item() if scalar else own_copy(tensor, dtype, device)
            for tensor, scalar in zip(inputs, self.scalars, strict=True)
        ]
        tf32 = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with running(self.problem, "Model.forward"), seeded(noise), self._recording(), tf32:
            before = torch.get_default_dtype()
            try:
                if dtype is not None:
                    torch.set_default_dtype(dtype)  # for tensors that forward makes
                versions = InputVersions(self.input_names, arguments)
                result = model(*arguments)
            finally:
                torch.set_default_dtype(before)
        outputs = self._outputs(result)
        if dtype is None:  # in float64, conversions copy what they return as it is otherwise
            weights = model.state_dict(keep_vars=True).values()
            self._shared = sharing(outputs, [*arguments, *weights])
        versions.check(self.problem, outputs)
        self._overwritten = versions.changed
        return outputs

    def _recording(self) -> AbstractContextManager[None]:
        return torch.enable_grad() if self._gradients else torch.no_grad()

    def _loaded(
        self, state: Mapping[str, torch.Tensor], dtype: torch.dtype | None, device: str
    ) -> torch.nn.Module:
        """A copy of the model with this state."""
        for_model = dtype or self._dtype
        # The arrays of the state are put into the copy, not copied into arrays of the copy.
        own = self._model.state_dict(keep_vars=True)
        put = {}
        for name, tensor in own.items():
            value = own_copy(state[name], for_model or tensor.dtype, device)
            is_weight = type(tensor) is torch.nn.Parameter
            put[name] = torch.nn.Parameter(value, tensor.requires_grad) if is_weight else value
        model = copy.deepcopy(self._model, {id(own[name]): value for name, value in put.items()})
        if for_model is not None:
            model = model.to(for_model)
        model = model.to(device)
        loaded = model.state_dict(keep_vars=True)
        if any(loaded[name] is not value for name, value in put.items()):
            model.load_state_dict(dict(state))  # weights that it shares or computes
        return model

    def differentiable(
        self, values: DrawnValues, device: str
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """The outputs with their autograd graph, and the inputs and weights that they can be
        differentiated by, in the order of the ABI; None for a Python number."""
        model = self._loaded(values.state, None, device)
        weights = model.state_dict(keep_vars=True)
        leaves: list[torch.Tensor | None] = [
            None if scalar else own_copy(tensor, None, device)
            for tensor, scalar in zip(values.inputs, self.scalars, strict=True)
        ]
        arguments: list[Any] = []
        for leaf, tensor in zip(leaves, values.inputs, strict=True):
            # A copy, because forward may change an input in place, but not a leaf.
            differs = leaf is not None and leaf.is_floating_point()
            arguments.append(tensor.item() if leaf is None else leaf)
            if leaf is not None and differs:
                arguments[-1] = leaf.requires_grad_().clone()
        for weight in weights.values():
            weight.requires_grad_(weight.is_floating_point())
        tf32 = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with running(self.problem, "Model.forward"), seeded(0), torch.enable_grad(), tf32:
            result = model(*arguments)
        several = list(result.values()) if isinstance(result, dict) else result
        outputs = list(several) if isinstance(several, tuple | list) else [several]
        return outputs, [*leaves, *(weights[name] for name in values.state)]

    def _outputs(self, result: Any) -> list[torch.Tensor]:
        self._keys = keys_of(result)
        return outputs_of(self.problem, result)

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The keys of the outputs, in order, if forward returns a dict; else empty."""
        _ = self.signature  # runs the reference, or infers its shapes
        return self._keys

    @cached_property
    def signature(self) -> Signature:
        """The arrays that a candidate gets for this case. Runs the reference once."""
        if self.infers:
            with suppress(InvalidRequest):  # its sizes depend on values, which must be drawn
                return self._inferred()
        inputs, state = self.drawn_in_place(0)
        outputs = self.reference(inputs, state, device=self._latest.device)
        return self._signature_of(inputs, state, outputs)

    def _inferred(self) -> Signature:
        """The signature from shapes and dtypes alone."""
        with FakeTensorMode(allow_non_fake_inputs=True):
            inputs, state, forward = self.fake_run()
            tensors = [torch.as_tensor(v, dtype=scalar_dtype(v)) for v in inputs]
            outputs = self._outputs(forward())
            self._shared = sharing(outputs, [*inputs, *state.values()])
            return self._signature_of(tensors, state, outputs)

    def fake_run(self) -> tuple[list[Any], dict[str, torch.Tensor], Callable[[], Any]]:
        """Inputs, weights and the reference's run, for a context in which tensors have no
        memory."""
        values, model = self._values(0), self._fake_model()
        inputs = [cast(v, self._dtype) if isinstance(v, torch.Tensor) else v for v in values]
        every = {**dict(model.named_buffers()), **model.state_dict()}
        arrays = {name: cast(value, self._dtype) for name, value in every.items()}

        input_names = self.input_names  # drawing them is no part of the run

        def forward() -> Any:
            names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
            versions = InputVersions(input_names, inputs)
            with running(self.problem, "Model.forward"), seeded(0), self._recording():
                if self._gradients:
                    for name in names:
                        value = arrays[name].detach()
                        arrays[name] = value.requires_grad_(value.is_floating_point())
                result = torch.func.functional_call(model, arrays, tuple(inputs))
            self._overwritten = versions.changed
            return result

        def forward_or_differentiate() -> Any:
            try:
                return forward()
            except InvalidRequest as error:
                if self._gradients or not differentiates(error):
                    raise
            self._gradients = True
            return forward()

        state = {name: arrays[name] for name in model.state_dict()}
        return inputs, state, forward_or_differentiate

    def _fake_model(self) -> torch.nn.Module:
        """A model without memory, or one whose arrays are replaced by such arrays where its
        constructor needs memory, as for conversions (`Linear(...).bfloat16()`)."""
        try:
            return self._build(0)
        except InvalidRequest:
            mode = torch._guards.detect_fake_mode()
            if mode is None:
                raise
            with unset_fake_temporarily():
                model = copy.deepcopy(self._model)
            for name, tensor in model.state_dict(keep_vars=True).items():
                path, _, last = name.rpartition(".")
                fake = mode.from_tensor(tensor, static_shapes=True)
                setattr(model.get_submodule(path), last, fake)
            return model

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
        return self.signature.of("output")

    @property
    def gradients(self) -> bool:
        """Whether forward differentiates, so that weights must require gradients."""
        _ = self.signature  # runs the reference, or infers its shapes
        return self._gradients

    @property
    def overwritten(self) -> tuple[str, ...]:
        """Names of the inputs that forward changes in place."""
        _ = self.signature
        return self._overwritten

    @property
    def shared(self) -> frozenset[int]:
        """Numbers of the reference's outputs that share memory with an input, a weight or another
        output."""
        _ = self.signature
        return self._shared

    def calling_convention(self) -> dict[str, Any]:
        """The arguments to construct and call a candidate for this case in another process, as
        JSON."""
        return {
            "init_args": None if self.init_source else self.init_args,
            "init_source": self.init_source,
            "gradients": self.gradients,
            "overwritten": [self.input_names.index(name) for name in self.overwritten],
            "dtype": self.case.dtype,
            "scalars": list(self.scalars),
            "state": [t.name for t in self.signature.of("parameter", "buffer")],
            "expected": [[t.dtype, list(t.shape)] for t in self.outputs],
            "keys": list(self.output_keys),
            "shared": sorted(self.shared),
        }

    @property
    def kinds(self) -> tuple[OutputKind, ...]:
        """How each output is compared."""
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
        """The bound of each output. `goldens` and `references` are results of `reference` for these
        inputs, `sensitivities` those of `sensitivities`, by default 0. `device` is where an index
        output is compared."""
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
                product=self.flops > 0,  # only operators of products are counted
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
        """How far each golden moves when the inputs move by at most one last place of float32: of
        the first slice if it was computed by slices, and on the CPU if the device's memory does
        not suffice."""
        if self._rows is not None:
            cut, rows = self._rows
            inputs = first_rows(inputs, cut, 0, rows)
            goldens = [golden[:rows] for golden in goldens]
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
        results = self._forward(moved, state, torch.float64, device, 0)
        return [sensitivity(*pair) for pair in zip(goldens, results, strict=True)]

    def pointed(self, inputs: Sequence[torch.Tensor], device: str = "cpu") -> Pointed:
        """The input that index outputs point into, on `device`; by default the last dimension of
        the first input."""
        into = self.problem.policy.index_into
        name, dim = next(iter(into.items()), (self.input_names[0], -1))
        if name not in self.input_names:
            raise InvalidRequest(
                f"{self.problem.name}: policy.index_into names {name!r}",
                hint=f"The inputs are {', '.join(self.input_names)}.",
            )
        return Pointed(inputs[self.input_names.index(name)].to(device), dim)

    # -- cost

    @cached_property
    def cost(self) -> ReferenceCost:
        """Cost of the reference by the formulas of the operators that it runs."""
        if self.infers:
            with suppress(InvalidRequest), FakeTensorMode(allow_non_fake_inputs=True):
                return reference_cost(self.fake_run()[2])
        inputs, state = self.drawn_in_place(0)
        device = self._latest.device
        return reference_cost(lambda: self.reference(inputs, state, device=device))

    @property
    def flops(self) -> int:
        """Counted from the operators that the reference runs; 0 if none of them is counted."""
        return self.cost.flops

    def reduction_length(self) -> int:
        """Terms in one output element, by the policy, else by counted flops, sizes and the length
        of scans, whose last elements have as many terms."""
        stated = self.problem.policy.reduction_length
        if isinstance(stated, int):
            return max(1, stated)
        if isinstance(stated, str):
            return formula_value(stated, vars(self._module), self.problem)
        outputs = sum(output.elements for output in self.outputs) or 1
        largest = max((t.elements for t in self.signature.of("input")), default=1)
        return max(1, self.flops // (2 * outputs), largest // outputs, self.cost.scanned)


def sharing(outputs: Sequence[torch.Tensor], given: Sequence[Any]) -> frozenset[int]:
    """Numbers of the outputs that share memory with a given tensor or another output."""
    own = [output.untyped_storage()._cdata for output in outputs]
    held = {t.untyped_storage()._cdata for t in given if isinstance(t, torch.Tensor)}
    return frozenset(n for n, at in enumerate(own) if at in held or own.count(at) > 1)


def _spec(role: Role, name: str, value: torch.Tensor) -> TensorSpec:
    return TensorSpec(name, role, str(value.dtype).removeprefix("torch."), tuple(value.shape))


# -- values of tensors

# Mean of `offset` in standard deviations: large enough to cancel badly, small enough that the
# dtype resolves a deviation in eight steps or more.
_OFFSETS = {torch.float64: 1e6, torch.float32: 1e3, torch.float16: 32.0, torch.bfloat16: 8.0}
_DECADES = {torch.float64: 6.0, torch.float32: 6.0, torch.float16: 3.0, torch.bfloat16: 3.0}
_SPREAD_SEED = 0x5EED
CACHED_SHARE = 1 / 8  # of free memory, which a cached draw takes at most
ALWAYS_CACHED = 256 * 2**20  # bytes of a draw that is cached in any case
DRAWN_SHARE = 1 / 8  # of a GPU's memory, which inputs drawn there take at most
BUILT_ON_CPU = 16 * 2**20  # bytes of weights, up to which a model is built on the CPU in any case


def cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """The tensor in this dtype if it is floating and the dtype is not None."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def own_copy(tensor: torch.Tensor, dtype: torch.dtype | None, device: str) -> torch.Tensor:
    """A copy on the device, as `cast`; only one, because arrays may fill a device's memory."""
    moved = cast(tensor.to(device), dtype)  # a device casts large arrays quickly
    return moved.clone() if moved.data_ptr() == tensor.data_ptr() else moved


def scalar_dtype(value: Any) -> torch.dtype | None:
    """The dtype of a tensor for a Python number that torch would not choose itself."""
    return torch.float64 if isinstance(value, float) else None


class DrawPlace:
    """The device that makes random values: the wanted one, or the CPU for values that would take
    more than DRAWN_SHARE of its memory, or that cannot be made there, such as a sum with a numpy
    array. Decided at the first draw, so that a seed always has the same values."""

    def __init__(self, device: str = "cpu") -> None:
        self.device: str | None = None  # None before the first draw
        self._wanted = device

    def make(self, seed: int, make: Callable[[int], T], tensors: Callable[[T], Iterable[Any]]) -> T:
        """What `make` makes for the seed, on this device; `tensors` are those in it."""
        if self.device is None:
            self.device = "cpu"
            if self._wanted != "cpu":
                with suppress(Exception):  # the CPU draws the values, or reports the error
                    made = _made_on(self._wanted, seed, make)
                    memory = torch.cuda.get_device_properties(self._wanted).total_memory
                    if _bytes_of(tensors(made)) <= DRAWN_SHARE * memory:
                        self.device = self._wanted
                        return made
                    del made
                torch.cuda.empty_cache()
        return _made_on(self.device, seed, make)


class LatestDraw:
    """Cache of the last draw. Drawing a gigabyte on a CPU takes seconds, and opening a case needs
    the values of one seed six times. On a GPU it takes milliseconds."""

    def __init__(self, device: str = "cpu") -> None:
        self._place = DrawPlace(device)
        self._seed: int | None = None
        self._values: list[Any] = []

    @property
    def device(self) -> str:
        """The device of the values, the CPU before the first draw."""
        return self._place.device or "cpu"

    def of(self, seed: int, draw: Callable[[int], list[Any]]) -> list[Any]:
        """Values of `draw` for the seed, on the device that draws them. Those on a GPU, and those
        that would take too much free memory, are drawn each time."""
        if seed == self._seed:
            return self._values
        self._seed, self._values = None, []
        values = self._place.make(seed, draw, lambda made: made)
        fits = _bytes_of(values) <= max(ALWAYS_CACHED, CACHED_SHARE * free_memory())
        if self._place.device == "cpu" and fits:
            self._seed, self._values = seed, values
        return values


def _bytes_of(values: Iterable[Any]) -> int:
    return sum(v.nbytes for v in values if isinstance(v, torch.Tensor))


def free_memory() -> int:
    """Bytes that the system could provide; 0 if unknown."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in text.splitlines())
    return int(lines.get("MemAvailable", "0 kB").split()[0]) << 10


def _made_on(device: str, seed: int, make: Callable[[int], T]) -> T:
    if device == "cpu":
        return make(seed)
    with torch.device(device), torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        return make(seed)


def distributed(
    values: torch.Tensor, distribution: Distribution, dtype: torch.dtype, seed: int
) -> torch.Tensor:
    """Floating values drawn from, or moved to, a distribution, as `dtype`."""
    if distribution == "as_given" or not values.numel():
        return values.to(dtype)
    if distribution == "wide":
        return _wide(values.shape, _DECADES.get(dtype, 3.0), seed).to(dtype)
    wide = values.double() if dtype == torch.float64 else values.float()
    deviation, mean = torch.std_mean(wide, correction=0)
    centred = (wide - mean) / deviation if deviation > 0 else wide - mean
    if distribution == "offset":
        centred += _OFFSETS.get(dtype, 8.0)
    return centred.to(dtype)


def _wide(shape: torch.Size, decades: float, seed: int) -> torch.Tensor:
    """Random signs; magnitudes log-uniform around 1."""
    source = torch.Generator().manual_seed(seed ^ _SPREAD_SEED)
    spread = torch.rand(shape, generator=source)
    sign = torch.randint(0, 2, shape, generator=source, dtype=torch.int8) * 2 - 1
    return torch.pow(10.0, (spread - 0.5) * decades) * sign


def varied_constant(name: str, value: torch.Tensor, is_parameter: bool, seed: int) -> torch.Tensor:
    """Other values for a weight that starts as one constant (a norm's scale of ones, its bias of
    zeros, running statistics), so that a kernel that ignores it is wrong."""
    statistic = name.rpartition(".")[2] in ("running_mean", "running_var")
    if not (is_parameter or statistic) or not value.is_floating_point() or value.numel() < 2:
        return value
    first = value.view(-1)[0]
    if not bool((value == first).all()):
        return value
    source = torch.Generator().manual_seed(seed)
    noise = torch.rand(value.shape, generator=source, dtype=torch.float32, device="cpu")
    noise = noise.to(value.device)
    return (noise - 0.5 if first == 0 else first * (noise + 0.5)).to(value.dtype)


SMALL_ROW = 16  # numbers, which may be sorted by chance


def may_replace(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether stretches of a tensor may be replaced by stretches of a second draw of it from other
    positions.

    Not if both draws are equal (a table, not a sample), or share a structure that a candidate may
    rely on: the same zeros, symmetry, sorted rows; of integers, any sorted row, and rows that hold
    the same numbers in another order.
    """
    if first.is_complex() or not first.numel() or torch.equal(first, other):
        return False
    if not first.is_floating_point() and _ordered(first, other):
        return False
    zeros = first == 0
    if bool(zeros.any()) and torch.equal(zeros, other == 0):
        return False
    if first.dim() >= 2 and first.shape[-1] == first.shape[-2] > 1 and torch.equal(first, first.mT):
        return False
    if not first.is_floating_point():
        return True
    return not (first.dim() and first.shape[-1] > 2 and bool((first.diff(dim=-1) >= 0).all()))


def _ordered(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether integers or booleans have an order that means something: offsets, the segments of a
    sorted input, permutations, masks that begin with ones."""
    if not first.dim() or first.shape[-1] < 3:
        return bool(first.dim()) and first.dim() > 1 and _ordered(first.mT, other.mT)
    rows, others = first.reshape(-1, first.shape[-1]).long(), other.reshape(-1, first.shape[-1])
    steps = rows.diff(dim=-1)
    sorted_rows = (steps >= 0).all(dim=-1) | (steps <= 0).all(dim=-1)
    varied = (steps != 0).any(dim=-1)
    if bool((sorted_rows & varied).any()) and first.shape[-1] > SMALL_ROW:
        return True
    if bool(sorted_rows.all()):
        return True
    return torch.equal(rows.sort(dim=-1).values, others.long().sort(dim=-1).values)
