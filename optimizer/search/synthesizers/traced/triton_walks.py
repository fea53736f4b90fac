"""A launch as a Triton kernel: with rows at hand, or, where they are too long to stay in registers,
in walks along them, each with the stages that need no other's result. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import isclose

from optimizer.search.records import Value
from optimizer.search.synthesizers.traced import triton_operators as operators
from optimizer.search.synthesizers.traced.expression import Expression, renamed
from optimizer.search.synthesizers.traced.launches import Launch, Placed, every_load, neutral
from optimizer.search.synthesizers.traced.program import Buffer
from optimizer.search.synthesizers.traced.triton_kernel import Kernel, Written, tile_of

# -- moments: Reductions of a kernel that need fewer walks along its rows: a sum that is there twi

Terms = tuple[tuple[int, Expression], ...]  # with their signs


@dataclass(frozen=True)
class Together:
    """Reductions that one walk makes, by the buffer of the one that the others need."""

    squares: Mapping[str, str] = field(default_factory=dict)  # about the mean, by the sum
    powers: Mapping[str, str] = field(default_factory=dict)  # sums of exp(x - maximum)
    # Sums of x - maximum, with what is added to every term besides and does not change along a row.
    differences: Mapping[str, tuple[str, Terms]] = field(default_factory=dict)

    @property
    def followers(self) -> dict[str, tuple[str, ...]]:
        """The reductions that are made beside each first one."""
        result: dict[str, tuple[str, ...]] = {}
        for first, name in (*self.squares.items(), *self.powers.items()):
            result[first] = (name,)
        for first, (name, _) in self.differences.items():
            result[first] = (*result[first], name)
        return result

    @property
    def allowed(self) -> set[tuple[str, str]]:
        """Pairs of which the second may need the first and stand in the same walk."""
        return {
            (before, name)
            for first, names in self.followers.items()
            for number, name in enumerate(names)
            for before in (first, *names[:number])
        }


def together(launch: Launch) -> Together:
    """What a walk along the rows of this kernel makes together."""
    return Together(_squares_about_means(launch), *_softmax_sums(launch))


def without_twins(launch: Launch) -> Launch:
    """The kernel without reductions of the same values in the same way, but for the first of each
    and those that are stored."""
    first: dict[object, str] = {}
    names: dict[str, str] = {}
    kept: list[Placed] = []
    for part in launch.placed:
        part = replace(part, body=renamed(part.body, names))
        if part.role == "reduce":
            key = (part.body, part.combine, part.out.dtype, part.place)
            earlier = first.setdefault(key, part.out.name)
            if earlier != part.out.name and part.out.name not in launch.stored:
                names[part.out.name] = earlier
                continue
        kept.append(part)
    return replace(launch, placed=tuple(kept))


def _softmax_sums(launch: Launch) -> tuple[dict[str, str], dict[str, tuple[str, Terms]]]:
    """Sums of exp(x - maximum) by the buffer of the maximum of x, and sums of what is x - maximum
    but for terms that do not change along a row."""
    made = {part.out.name for part in launch.placed}
    reduced = [p for p in launch.placed if p.role == "reduce" and p.body.dtype == "float32"]
    maxima = {part.out.name: part.body for part in reduced if part.combine == "max"}
    sums = [part for part in reduced if part.combine == "sum"]
    powers: dict[str, str] = {}
    for part in sums:
        if part.body.name == "exp":
            most = _maximum(part.body.args[0], maxima)
            if most is not None:
                powers.setdefault(most, part.out.name)
    differences: dict[str, tuple[str, Terms]] = {}
    for part in sums:
        body, terms = part.body, []
        most = _maximum(body, maxima)
        while most is None and body.name in ("sub", "add"):
            sign = -1 if body.name == "sub" else 1
            body, term = body.args
            terms.append((sign, term))
            most = _maximum(body, maxima)
        if most not in powers:
            continue
        known = {most, powers[most]}
        fixed = all(launch.axes.c not in term.variables for _, term in terms)
        if fixed and not {str(e.value) for _, t in terms for e in every_load(t)} & made - known:
            differences.setdefault(most, (part.out.name, tuple(terms)))
    return powers, differences


def _maximum(of: Expression, maxima: Mapping[str, Expression]) -> str | None:
    """The buffer of the maximum of x, where this is x - maximum."""
    if of.name != "sub" or of.args[1].name != "load":
        return None
    name = str(of.args[1].value)
    return name if maxima.get(name) is of.args[0] else None


def _squares_about_means(launch: Launch) -> dict[str, str]:
    """Sums of squares about a mean, by the buffer of the sum that the mean is of; each has the
    same values as that sum, which nothing outside of the kernel reads."""
    sums = {
        part.out.name: part
        for part in launch.placed
        if part.role == "reduce" and part.combine == "sum" and part.body.dtype == "float32"
    }
    pairs: dict[str, str] = {}
    for name, part in sums.items():
        mean = _about(part.body)
        total = _sum_of_mean(mean[1], launch.axes.length) if mean is not None else None
        if mean is None or total not in sums or total in launch.stored or total in pairs:
            continue
        if sums[total].body is mean[0]:
            pairs[total] = name
    return pairs


def beside(parts: Sequence[Placed], followers: Mapping[str, Sequence[str]]) -> list[Placed]:
    """The stages with those that are made beside another one right behind it."""
    by_name = {part.out.name: part for part in parts}
    moved = {name for names in followers.values() for name in names}
    ordered: list[Placed] = []
    for part in parts:
        if part.out.name not in moved:
            ordered += [part, *(by_name[name] for name in followers.get(part.out.name, ()))]
    return ordered


def _about(body: Expression) -> tuple[Expression, Expression] | None:
    """The value and what is taken from it, of the square of a difference."""
    if body.name == "square":
        (difference,) = body.args
    elif body.name == "mul" and body.args[0] is body.args[1]:
        difference = body.args[0]
    else:
        return None
    return (difference.args[0], difference.args[1]) if difference.name == "sub" else None


def _sum_of_mean(mean: Expression, terms: int) -> str | None:
    """The buffer that a mean of so many terms is computed from."""
    if mean.name not in ("mul", "div") or mean.args[0].name != "load":
        return None
    factor = mean.args[1]
    if factor.name != "literal" or isinstance(factor.value, str):
        return None
    right = 1 / terms if mean.name == "mul" else terms
    return str(mean.args[0].value) if isclose(factor.value, right, rel_tol=1e-12) else None


LEAST = -3.4028234663852886e38  # of float32; unlike infinity, it may be taken from itself


def write_kernel(
    name: str, launch: Launch, buffers: Mapping[str, Buffer], values: Mapping[str, Value]
) -> Written:
    """The kernel of a launch. Raises NotWritten."""
    launch = without_twins(launch)
    tile = tile_of(launch, values)
    written = WalkingKernel if tile.chunked else Kernel
    return written(name, launch, buffers, tile).written()


@dataclass
class WalkingKernel(Kernel):
    """Goes along the rows of a tile in chunks of columns."""

    together: Together = field(default_factory=Together)
    followers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def written(self) -> Written:
        """The kernel."""
        self.together = together(self.launch)
        self.followers = self.together.followers
        self._axes()
        placed = beside(self.launch.placed, self.followers)
        for phase in _phases(placed, self.made, self.together.allowed):
            self._phase(phase)
        return self._finished()

    def _follows(self, name: str) -> bool:
        return any(name in names for names in self.followers.values())

    def _phase(self, phase: Sequence[Placed]) -> None:
        """Stages that one walk along the rows does; or one of the rows alone."""
        if len(phase) == 1 and phase[0].role == "row":
            self._stage(phase[0])
            return
        walked = self._walked(phase)
        if not walked:
            return
        totals = self._begun(walked)
        length, step = self.launch.axes.length, self.tile.columns
        with self._block(f"for first in range(0, {length}, {step}):"):
            self._columns("first", step)
            for part in walked:
                self._step(part, totals, part in phase)
        for part in walked:
            if part.out.name in self.together.squares:
                self._moments(part, totals)
            elif part.out.name in self.together.powers:
                self._softmax_totals(part, totals)
            elif part.role == "reduce" and part.combine and part.out.name not in self.results:
                total = self._reduced(totals[part.out.name], part.combine, part.body.dtype)
                name = self._assign(total)
                self.results[part.out.name] = name
                self._store(part, name)

    def _step(self, part: Placed, totals: Mapping[str, str], own: bool) -> None:
        """What one step of a walk does for a stage; `own` where it belongs to the walk."""
        name = part.out.name
        if part.role == "scan":
            self._scan(part, totals[name], stored=own)
        elif name in self.together.squares:
            self._update(part, totals)
        elif name in self.together.powers:
            self._softmax_update(part, totals)
        elif part.combine is None:
            self._store(part, self._value(part.body))
        elif not self._follows(name):
            term = self._as_term(part, self._value(part.body), whole=False)
            combined = self._combined(totals[name], term, part.combine, part.body.dtype)
            self._line(f"{totals[name]} = {combined}")

    def _begun(self, walked: Sequence[Placed]) -> dict[str, str]:
        """What is written before a walk: what does not change along it, and what its reductions
        and scans start with, by their buffers."""
        for part in walked:
            if not self._follows(part.out.name):
                self._hoisted(part.body)
        totals = {}
        for part in walked:
            if part.combine is not None:
                first = part.out.name in self.together.powers
                least = LEAST if first else neutral(part.combine, part.body.dtype)
                start = operators.number(least, part.body.dtype)
                kind = operators.TYPES[part.body.dtype]
                shape = list(self.ends if part.role == "scan" else self.shape)
                totals[part.out.name] = self._assign(f"tl.full({shape}, {start}, {kind})")
                if part.combine == "logaddexp":
                    self._line(f"{totals[part.out.name]}_powers = tl.zeros({shape}, {kind})")
        return totals

    def _update(self, part: Placed, totals: Mapping[str, str]) -> None:
        """Welford's update of the mean of each place of the tile, and of its squares about it."""
        mean, squares = totals[part.out.name], totals[self.together.squares[part.out.name]]
        value, mask = self._value(part.body), self.masks.get("c")
        if mask is not None:
            value = self._assign(f"tl.where({mask}, {value}, {mean})")
        apart = self._assign(f"{value} - {mean}")
        share = self._assign(f"1.0 / (first // {self.tile.columns} + 1)")
        self._line(f"{mean} += {apart} * {share}")
        self._line(f"{squares} += {apart} * ({value} - {mean})")

    def _moments(self, part: Placed, totals: Mapping[str, str]) -> None:
        """The sum and the sum of squares, of what each place of the tile has of them."""
        length = self.launch.axes.length
        mean, squares = totals[part.out.name], totals[self.together.squares[part.out.name]]
        counts = self._counts()
        total = self._assign(f"tl.sum({mean} * {counts}, {self.axis}, keep_dims=True)")
        spread = self._assign(f"{mean} - {total} * {1 / length!r}")
        whole = f"{squares} + {counts} * ({spread} * {spread})"
        self.results[part.out.name] = total
        name = self._assign(f"tl.sum({whole}, {self.axis}, keep_dims=True)")
        self.results[self.together.squares[part.out.name]] = name
        self._store(self.made[self.together.squares[part.out.name]], name)

    def _counts(self) -> str:
        """How many elements of a row each place of the tile has had after a walk."""
        walks, rest = divmod(self.launch.axes.length, self.tile.columns)
        if not rest:
            return f"{walks}.0"
        # Places behind the end took no part in the last step.
        lanes = f"tl.arange(0, {self.tile.columns}){'[:, None]' if self.across else '[None, :]'}"
        return self._assign(f"tl.where({lanes} < {rest}, {walks + 1}.0, {walks}.0)")

    def _softmax_update(self, part: Placed, totals: Mapping[str, str]) -> None:
        """The maximum of each place of the tile, and its sums about it, moved to a new maximum."""
        most, powers = totals[part.out.name], totals[self.together.powers[part.out.name]]
        value, mask = self._value(part.body), self.masks.get("c")
        if mask is not None:
            value = self._assign(f'tl.where({mask}, {value}, float("-inf"))')
        top = self._assign(self._combined(most, value, "max", part.body.dtype))
        self._line(f"{powers} = {powers} * tl.exp({most} - {top}) + tl.exp({value} - {top})")
        if part.out.name in self.together.differences:
            differences = totals[self.together.differences[part.out.name][0]]
            apart = f"{value} - {top}"
            if mask is not None:
                apart = f"tl.where({mask}, {apart}, 0.0)"
            # The first maximum may be too far below for a float32.
            fall = f"tl.maximum({most} - {top}, {LEAST})"
            moved = f"{fall} * (first // {self.tile.columns})"
            self._line(f"{differences} += {moved} + {apart}")
        self._line(f"{most} = {top}")

    def _softmax_totals(self, part: Placed, totals: Mapping[str, str]) -> None:
        """The maximum of a row and the sums about it, of those of each place of the tile."""
        name = part.out.name
        most, powers = totals[name], totals[self.together.powers[name]]
        top = self._assign(self._reduced(most, "max", part.body.dtype))
        total = self._assign(
            f"tl.sum({powers} * tl.exp({most} - {top}), {self.axis}, keep_dims=True)"
        )
        sums = {name: top, self.together.powers[name]: total}
        self.results |= sums
        if name in self.together.differences:
            second, terms = self.together.differences[name]
            moved = f"({most} - {top}) * {self._counts()}"
            whole = self._assign(f"tl.sum({totals[second]} + {moved}, {self.axis}, keep_dims=True)")
            for sign, term in terms:
                added = f"{sign * self.launch.axes.length}.0 * {self._value(term)}"
                whole = self._assign(f"{whole} + {added}")
            sums[second] = whole
            self.results[second] = whole
        for out, value in sums.items():
            self._store(self.made[out], value)

    def _walked(self, phase: Sequence[Placed]) -> list[Placed]:
        """What a walk computes for these stages: a scan of an earlier walk once more."""
        stored = self.launch.stored
        walked = [p for p in phase if p.role == "reduce" or p.out.name in stored]
        needed = {name for part in walked for name in _needed(part, self.made)}
        walked = [p for p in phase if p in walked or (p.role == "scan" and p.out.name in needed)]
        every = self.launch.placed
        again = [p for p in every if p.role == "scan" and p.out.name in needed and p not in phase]
        return [*self._walked(again), *walked] if again else walked


def _phases(
    parts: Sequence[Placed], made: Mapping[str, Placed], pairs: Set[tuple[str, str]]
) -> list[list[Placed]]:
    """Stages that can share a walk along the rows: none of them needs the result of another, but
    in one of the pairs."""
    phases: list[list[Placed]] = []
    walk: list[Placed] = []
    for part in parts:
        needed = _needed(part, made)
        before = [p.out.name for p in walk if p.role == "reduce"]
        if part.role == "row" or any(
            name in needed and (name, part.out.name) not in pairs for name in before
        ):
            if walk:
                phases.append(walk)
            walk = []
        if part.role == "row":
            phases.append([part])
        else:
            walk.append(part)
    return [*phases, walk] if walk else phases


def _needed(part: Placed, made: Mapping[str, Placed]) -> set[str]:
    """The stages of the kernel that a stage needs, those behind values that it computes again
    included."""
    names: set[str] = set()
    for element in every_load(part.body):
        name = str(element.value)
        if name in made and name not in names:
            names.add(name)
            if made[name].role == "full":
                names |= _needed(made[name], made)
    return names
