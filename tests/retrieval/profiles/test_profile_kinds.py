"""The kind of a profile is recognised, and a request gets its metrics."""

from __future__ import annotations

import json

import pytest

from kb.errors import InvalidRequest
from retrieval.diagnose.given_profile import with_known_counters
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.rules import load_rules
from retrieval.pasted import pasted
from retrieval.profiles.reader import read_profile
from retrieval.profiles.tool_logs import read_monitor
from retrieval.request import RetrieveRequest, check_request
from retrieval.request_body import read_body, request_of

TREE = [{"frame": {"name": "add"}, "metrics": {"count": 4, "time (ns)": 8000.0}, "children": []}]
NEURON = {"total_time": 0.5, "hbm_read_bytes": 7, "mfu_estimated_percent": 0.5}
ROCPROF = "Index,KernelName,VALUBusy,BeginNs,EndNs\n0,mm,20,1000,3000\n"
NCU = (
    '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","k","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","20.5"\n'
    '"0","k","acme__pipe.sum","","3"\n'
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (NCU, "ncu"),
        ("\ufeff" + NCU, "ncu"),
        (ROCPROF, "rocprof"),
        ("Metric,Avg,Unit\nL2 Cache Hit Rate,35,Pct\n", "rocprof-compute"),
        ("4000,,cycles,2000000,100.00,,\n", "perf"),
        ('{"counter-value" : "4000", "unit" : "", "event" : "cycles"}', "perf"),
        (json.dumps(TREE), "proton"),
        (json.dumps({"a1": NEURON}), "neuron-profile"),
        ('level=info msg="reading"\n' + json.dumps({"a1": NEURON}), "neuron-profile"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "dur": 3}]}',
            "torch_profiler",
        ),
    ],
)
def test_profile_kind_is_recognised(text: str, kind: str) -> None:
    profile = read_profile(text)
    assert profile.kind == kind and profile.metrics


@pytest.mark.parametrize(
    "text", ["hello", "a,b\n1,2\n", "{}", "[]", "[" * 100_000, '{"a": 1}', "1,2,3,4,5\n", "\0\n\0"]
)
def test_unknown_text_is_refused_with_readable_kinds(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_profile(text)
    for name in ("ncu", "rocprofv3", "perf stat", "Proton", "PyTorch", "neuron-profile"):
        assert name in caught.value.hint


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM\n", "ncu"),
        ("Index,KernelName,VALUBusy\n", "rocprof"),
        ("<not supported>,,cycles,0,100.00,,\n", "perf did not count cycles"),
        ('{"traceEvents": []}', "torch_profiler"),
    ],
)
def test_profile_without_counters_is_refused(text: str, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=kind):
        read_profile(text)


def test_given_metrics_take_precedence_and_unknown_counters_are_counted() -> None:
    name = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    requested = RetrieveRequest(profile=NCU, metrics={"other": 1.0})
    request, read = with_known_counters(requested)
    assert request.metrics == {name: 20.5, "other": 1.0} and request.profile is None
    assert read is not None
    assert (read.kind, read.kernel, read.metrics, read.unread) == ("ncu", "k", {name: 20.5}, 1)
    request, read = with_known_counters(RetrieveRequest(profile=NCU, metrics={name: 99.0}))
    assert request.metrics == {name: 99.0} and read is not None and read.metrics == {name: 20.5}
    _, read = with_known_counters(RetrieveRequest(profile=NCU), own_counters=["acme__pipe.sum"])
    assert read is not None and read.unread == 0
    plain = RetrieveRequest(query="q")
    assert with_known_counters(plain) == (plain, None)


def test_counters_without_rule_are_named() -> None:
    text = NCU.replace("sm__throughput.avg.pct_of_peak_sustained_elapsed", "acme__other.sum")
    with pytest.raises(InvalidRequest) as caught:
        with_known_counters(RetrieveRequest(profile=text))
    assert caught.value.details["counters"] == ["acme__other.sum", "acme__pipe.sum"]


@pytest.mark.parametrize("decoded", [TREE, {"a1": NEURON}])
def test_body_may_carry_profile_text_or_json(decoded: object) -> None:
    direct = request_of(read_body({"profile": decoded}))
    assert direct == request_of(read_body({"profile": json.dumps(decoded)}))
    check_request(direct)
    assert direct.profile is not None and read_profile(direct.profile).metrics


@pytest.mark.parametrize("blank", ["", " \n", {}, [], None])
def test_blank_profile_is_ignored(blank: object) -> None:
    assert request_of(read_body({"profile": blank, "query": "q"})).profile is None


@pytest.mark.parametrize("wrong", [7, True, 1.5])
def test_profile_of_another_type_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="profile"):
        request_of(read_body({"profile": wrong}))


def test_profile_of_an_unknown_tool_is_read_as_a_log() -> None:
    text = "theoretical occupancy report\nCUDA error: an illegal memory access was encountered"
    request, read = with_known_counters(RetrieveRequest(profile=text))
    assert request.profile is None and "illegal memory access" in (request.log or "")
    assert read is not None and read.kind == "text" and "no profiler" in read.notes[0]
    with pytest.raises(InvalidRequest):
        with_known_counters(RetrieveRequest(profile="1 2 3\n4 5 6"))


def test_cpu_profile_is_diagnosed_without_a_chip() -> None:
    text = """ Performance counter stats for './kernel':
        26,112,334,901      cycles
        12,331,009,221      instructions
         1,902,331,110      LLC-loads
         1,371,009,331      LLC-load-misses           #   72.07% of all LL-cache accesses
    """
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    rules = load_rules()
    reported = load_metrics().normalise(request.metrics or {})
    applying = rules.for_hardware(frozenset(), reported.collectors)
    assert rules.for_hardware(frozenset({"x86-64"}), reported.collectors) == applying
    assert {"cpu-bandwidth", "cpu-low-ipc"} <= {rule.id for rule in applying}


# -- samples of programs that watch a device

TABLE = """
+------------------------------+----------------------+----------------------+
| NVIDIA-SMI 535.10            Driver Version: 535.10                          |
|==============================+======================+======================|
|   0  Card            Off     | 00000000:01:00.0 Off |                  N/A |
| 30%   50C    P2   60W / 250W |   4096MiB / 11000MiB |      3%      Default |
+------------------------------+----------------------+----------------------+
"""
DMON = (
    "# gpu   pwr  sm   mem\n# Idx     W   %     %\n    0    70   10     2\n    0    71   30     4\n"
)
CSV = "index, utilization.gpu [%], memory.used [MiB]\n0, 98 %, 4000 MiB\n1, 100 %, 4000 MiB\n"
ROCM = """
====== Concise Info ======
GPU  Temp   AvgPwr  SCLK     MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
0    41.0c  90.0W   1700Mhz  1200Mhz  0%   auto  300.0W   60%    0%
====== End of log ======
"""


@pytest.mark.parametrize(("text", "busy"), [(TABLE, 3), (DMON, 20), (CSV, 99), (ROCM, 0)])
def test_busy_share_is_read(text: str, busy: float) -> None:
    profile = read_monitor(text)
    assert profile is not None and profile.metrics == {"gpu_busy_pct": busy}
    assert ("input pipeline" in profile.notes[0]) == (busy < 25)
    assert pasted(text)[0] == "profile"


def test_table_in_the_report_of_an_error_stays_a_log() -> None:
    report = TABLE + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    assert read_monitor(report) is None and pasted(report)[0] == "log"
    assert read_monitor("a, b\n1, 2\n") is None
