"""Set-up of a test session, collection and order. The fixtures shared by all tests are in
`tests/fixtures.py`.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import postgresql, store_servers
from tests.places import ROOT, SHARED

# The fixture of a service and the folder of its conftest, empty for `tests.fixtures`; the group of
# the tests that share it.
SERVICES = {("service_url", ""): "service", ("client", "tests/api"): "application"}
SLOW_FIXTURES = frozenset({"read_builtin"})
SLOW_MODULE = re.compile(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.slow", re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    """Give every worker separate processors, for all its processes, and a folder for temporary
    files, which has the locks of devices. Measurements of one worker then neither wait for another
    nor are disturbed by it: a disturbed one takes longer, is repeated twice, and ends without a
    figure.
    """
    gc.disable()  # until everything is collected, because there is no garbage before
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None or not config.getoption("numprocesses", None):
        # Its imports take seconds, which the process that only distributes tests does not need.
        config.pluginmanager.import_plugin("tests.fixtures")
    if postgresql.EVERYWHERE:
        postgresql.use_everywhere()
    if store_servers.EVERYWHERE:
        store_servers.use_everywhere()
    # The time of an example depends on the machine, not on the tested code.
    hypothesis.settings.register_profile("kernlore", deadline=None)
    hypothesis.settings.load_profile("kernlore")
    # Most tests are not about time. By default a candidate is timed for two seconds, and three
    # times as long on a busy machine. Tests about time set their policy, or `full`.
    os.environ.setdefault("KERNLORE_TIMING", "brief")
    # A first start is the same on every machine.
    os.environ.setdefault("KERNLORE_PREPARED_DIR", str(SHARED / "no prepared store"))
    # Importing litellm would request prices over the network, three times.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    if worker is None or not hasattr(os, "sched_setaffinity"):
        return
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    usable = sorted(os.sched_getaffinity(0))
    # The replacement of a crashed worker has a new number.
    own = usable[int(worker.removeprefix("gw")) % workers :: workers]
    if len(usable) < workers:
        return
    os.sched_setaffinity(0, own)
    if "torch" in sys.modules:  # a later import counts processors itself
        sys.modules["torch"].set_num_threads(len(own))
    folder = SHARED / worker
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # determined again


def pytest_unconfigure() -> None:
    postgresql.stop()
    store_servers.stop()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make quick` does not import modules that are slow as a whole, nor those of the interfaces,
    because the code that they test is slow to import too.
    """
    if config.option.markexpr != "not slow":
        return None
    if collection_path == ROOT / "tests" / "api":
        return True
    if collection_path.suffix != ".py":
        return None
    return bool(SLOW_MODULE.search(collection_path.read_text(encoding="utf-8"))) or None


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name bytes by their length. The bytes of an archive contain the time, so two workers would
    collect tests of different names, which xdist refuses.
    """
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep every module on one worker, so that its fixtures are made once; also the tests that
    share a service. Start the groups that take longest first.
    """
    seconds: Counter[str] = Counter()
    for item in items:
        group = _group(item)
        item.add_marker(pytest.mark.xdist_group(group))
        if postgresql.EVERYWHERE and item.get_closest_marker("embedded"):
            item.add_marker(pytest.mark.skip("it is about SQLite"))
        if store_servers.EVERYWHERE and item.get_closest_marker("in_data_dir"):
            item.add_marker(pytest.mark.skip("it is about files in the data directory"))
        if group in SERVICES.values():
            item.add_marker(pytest.mark.slow)
            seconds[group] = 200
        elif SLOW_FIXTURES & _fixtures(item).keys():
            item.add_marker(pytest.mark.slow)
        for mark in item.iter_markers("slow"):
            assert not mark.args, f"{item.nodeid}: slow(seconds=...)"
            seconds[group] = max(seconds[group], mark.kwargs.get("seconds", 5))
    items.sort(key=lambda item: -seconds[_group(item)])


def pytest_collection_finish() -> None:
    """Exclude imported objects from later garbage collections, of which the last alone took four
    seconds. A collection here took a second and freed almost nothing.
    """
    gc.freeze()
    gc.enable()


def _fixtures(item: pytest.Item) -> Mapping[str, Sequence[pytest.FixtureDef[Any]]]:
    """The fixtures that a test uses, also indirectly, by name."""
    assert isinstance(item, pytest.Function)
    return item._fixtureinfo.name2fixturedefs


def _group(item: pytest.Item) -> str:
    """The name of the service that a test uses, else the name of its module."""
    fixtures = _fixtures(item)
    for (name, folder), group in SERVICES.items():
        if name in fixtures and fixtures[name][-1].baseid == folder:
            return group
    return item.nodeid.partition("::")[0]
