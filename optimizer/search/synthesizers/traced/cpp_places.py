"""Stages whose places are data: orders of elements, and elements that go where a tensor says."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.evaluation.abi import ITEM_BYTES
from optimizer.search.synthesizers.traced.cpp_writer import Writer
from optimizer.search.synthesizers.traced.index import Var, index
from optimizer.search.synthesizers.traced.program import Stage

LEAST_TILE = 64  # neighbouring places that a thread puts
TILES = 16


class Placing(Writer):
    """Writes such stages."""

    def ordered(self, stage: Stage, parallel: bool) -> None:
        """The places along a variable in the order of their elements."""
        order = stage.order
        assert order is not None
        along = order.along
        wide = ITEM_BYTES[stage.body.dtype] == 8
        key, kind = ("uint64_t", "kl_wide") if wide else ("uint32_t", "uint64_t")
        others = [v for v in stage.space if v is not along]
        shared = "#pragma omp parallel for schedule(static)" if parallel and others else ""
        with self._loops(others, shared), self._block(""):
            self._line(f"{kind} *keys = kl_places<{kind}>(2 * {along.extent});")
            with self._loops([along]):
                value = f"kl_key({self._value(stage.body)})"
                value = f"~{value}" if order.descending else value
                self._line(f"keys[{along.name}] = kl_placed(({key}){value}, {along.name});")
            self._line(f"kl_ordered(keys, {along.extent}, {order.first});")
            with self._loops([Var(along.name, order.first)]):
                self._store(stage, stage.out, f"kl_place(keys[{along.name}])")

    def put(self, stage: Stage, parallel: bool) -> None:
        """Elements at places that tensors hold, in turn: threads share places that differ."""
        assert stage.at is not None
        apart = [v for v in stage.space if any(place == index(v) for place in stage.at)]
        rest = [v for v in stage.space if v not in apart[-1:]]
        pragma = "#pragma omp parallel for schedule(static)"
        if not (parallel and apart):
            with self._loops(stage.space):
                self._put_one(stage)
        elif apart[0] is stage.space[0]:
            with self._loops(stage.space, pragma):
                self._put_one(stage)
        else:
            self._in_tiles(stage, apart[-1], rest, pragma)

    def _in_tiles(self, stage: Stage, lane: Var, rest: Sequence[Var], pragma: str) -> None:
        tile = max(LEAST_TILE, -(-lane.extent // TILES))
        step = f"for (int64_t from = 0; from < {lane.extent}; from += {tile})"
        with self._block(step, pragma):
            end = f"from + {tile} < {lane.extent} ? from + {tile} : {lane.extent}"
            self._line(f"const int64_t to = {end};")
            head = f"for (int64_t {lane.name} = from; {lane.name} < to; {lane.name}++)"
            with self._loops(rest), self._block(head):
                self._put_one(stage)

    def _put_one(self, stage: Stage) -> None:
        assert stage.at is not None
        value = self._value(stage.body)
        place = self._element(stage.out, stage.at)
        before = f"kl_read({place})"
        forms = {
            None: value,
            "sum": f"{before} + {value}",
            "prod": f"{before} * {value}",
            "max": f"kl_max({before}, {value})",
            "min": f"kl_min({before}, {value})",
        }
        self._line(f"kl_write(&{place}, {forms[stage.combine]});")
