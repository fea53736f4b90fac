"""Constructor arguments of any type in a dispatch table: equal ones compare equal after JSON."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from optimizer.search.output.shipped.table import comparable, plain


class Kind(Enum):
    WIDE = 1
    NARROW = 2


@dataclass
class Config:
    width: int
    dtype: torch.dtype = torch.float32
    kind: Kind = Kind.WIDE


def inner(width: int, p: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.Dropout(p))


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (Config(3), Config(3), Config(4)),
        (Config(3), Config(3), Config(3, kind=Kind.NARROW)),
        (SimpleNamespace(a=(1, 2)), SimpleNamespace(a=(1, 2)), SimpleNamespace(a=(1, 3))),
        (torch.float16, torch.float16, torch.float32),
        (inner(4), inner(4), inner(5)),
        (inner(4), inner(4), inner(4, 0.25)),
        ([Config(3)], [Config(3)], [Config(3), Config(3)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_equal_arguments_compare_equal(one: Any, same: Any, other: Any) -> None:
    stored = json.loads(json.dumps(plain(one)))
    assert comparable(stored)
    assert plain(same) == stored and plain(other) != stored


@pytest.mark.parametrize(
    "value", [lambda x: x, torch.ones(2), object(), torch.relu, type("L", (list,), {})()]
)
def test_object_with_hidden_state_is_not_compared(value: Any) -> None:
    parts = plain(SimpleNamespace(part=value))
    assert comparable(parts) == isinstance(value, list)
    assert comparable(plain(OrderedDict(a=1)))
