"""How a session of tests begins, what is collected, and in which order. The fixtures that all tests
share are in `tests/fixtures.py`.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

from tests import postgresql, store_servers
from tests.places import ROOT, SHARED

# The fixture of a service and the folder of its conftest, none for `tests.fixtures`; the group of
# the tests that share it.
SERVICES = {("service_url", ""): "service", ("client", "tests/api"): "application"}
SLOW_MODULE = re.compile(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.slow", re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    """Every worker has processors of its own, with all that it starts, and a folder for temporary
    files, where the locks of devices are. So what one measures does not wait for what another
    does, and is not disturbed by it: a measurement that is goes on longer, is repeated twice, and
    has no result in the end.
    """
    gc.disable()  # until everything is collected, of which nothing is garbage
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None or not config.getoption("numprocesses", None):
        # Its imports take seconds, which the process that only hands out tests does without.
        config.pluginmanager.import_plugin("tests.fixtures")
    if postgresql.EVERYWHERE:
        postgresql.use_everywhere()
    if store_servers.EVERYWHERE:
        store_servers.use_everywhere()
    # How long an example takes says something about the machine, not about what is tested.
    hypothesis.settings.register_profile("kernlore", deadline=None)
    hypothesis.settings.load_profile("kernlore")
    # Of most tests time is not the subject. By default a candidate is timed for two seconds, and
    # thrice as long where the machine is busy. Tests about time name their policy, or `full`.
    os.environ.setdefault("KERNLORE_TIMING", "brief")
    # Importing litellm would ask the network for prices, three times.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    if worker is None or not hasattr(os, "sched_setaffinity"):
        return
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    usable = sorted(os.sched_getaffinity(0))
    # One that takes the place of a crashed worker has a number of its own.
    own = usable[int(worker.removeprefix("gw")) % workers :: workers]
    if len(usable) < workers:
        return
    os.sched_setaffinity(0, own)
    if "torch" in sys.modules:  # imported from here on, it counts them itself
        sys.modules["torch"].set_num_threads(len(own))
    folder = SHARED / worker
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # found out anew


def pytest_unconfigure() -> None:
    postgresql.stop()
    store_servers.stop()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make quick` does not even import modules that are slow as a whole, nor those of the
    interface: what they test is slow to import too.
    """
    if config.option.markexpr != "not slow":
        return None
    if collection_path == ROOT / "tests" / "api":
        return True
    if collection_path.suffix != ".py":
        return None
    return bool(SLOW_MODULE.search(collection_path.read_text(encoding="utf-8"))) or None


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes are named by their length. An archive's bytes hold the time of its making, so two
    workers would collect tests of different names, which xdist refuses.
    """
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every module stays on one worker, so that its fixtures are made once; so do the tests that
    share a service. The groups that take longest come first, and nothing long is left at the end.
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
        for mark in item.iter_markers("slow"):
            assert not mark.args, f"{item.nodeid}: slow(seconds=...)"
            seconds[group] = max(seconds[group], mark.kwargs.get("seconds", 5))
    items.sort(key=lambda item: -seconds[_group(item)])


def pytest_collection_finish() -> None:
    """What is imported by now stays: no later collection of garbage walks through it, of which the
    last alone took four seconds. Nor does one here, which took a second for next to no garbage.
    """
    gc.freeze()
    gc.enable()


def _group(item: pytest.Item) -> str:
    """The name of the service that a test uses, else that of its module."""
    assert isinstance(item, pytest.Function)
    fixtures = item._fixtureinfo.name2fixturedefs
    for (name, folder), group in SERVICES.items():
        if name in fixtures and fixtures[name][-1].baseid == folder:
            return group
    return item.nodeid.partition("::")[0]
