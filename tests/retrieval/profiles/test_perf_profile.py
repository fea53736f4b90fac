"""`perf stat` as text, CSV and JSON. The output of a machine without counters was recorded with
perf 6.1.
"""

from __future__ import annotations

import pytest

from retrieval.diagnose.diagnosis import diagnose
from retrieval.diagnose.metrics import normalise
from retrieval.profiles.linux_perf import counts_of_csv, read

CSV = """# started on Mon Nov 10 10:00:00 2025

4000000,,cycles,2000000,100.00,,
1500000,,cpu_core/instructions:u/,2000000,100.00,0.38,insn per cycle
1000000,,cpu_atom/instructions:u/,2000000,100.00,,
<not supported>,,LLC-loads,0,100.00,,
70000,,branches,100000,5.00,,
300,,L1-dcache-load-misses,2000000,60.00,,
1000,,L1-dcache-loads,2000000,60.00,,
"""
COUNTS = {
    "cycles": 4e6,
    "instructions": 2.5e6,
    "L1-dcache-load-misses": 300,
    "L1-dcache-loads": 1000,
}


def test_counted_and_uncounted_events() -> None:
    counts = counts_of_csv(CSV)
    assert counts is not None and counts.metrics == COUNTS
    assert counts.missing == ["LLC-loads", "branches"]
    verdict = diagnose(normalise(counts.metrics), {}, {}, ("x86-64", "any"))
    assert {"cache_thrash", "latency_bound"} & {finding.id for finding in verdict.signals}


TEXT = """
 Performance counter stats for './a.out':

             89.81 msec task-clock:u                     #    0.950 CPUs utilized
         4,000,000      cycles:u                         #    2.899 GHz                (73.36%)
         2,500,000      instructions:u                   #    0.63  insn per cycle
                                                  #    0.18  stalled cycles per insn     (74.94%)
            70,000      branches:u                       #  464.318 M/sec              (5.00%)
               300      L1-dcache-load-misses:u          #   30.00% of all accesses    (72.86%)
             1'000      L1-dcache-loads:u
   <not supported>      LLC-loads:u

       0.065961323 seconds time elapsed

       0.038481000 seconds user
"""
INTERVALS = """\
     1.000109419;3000000;;cycles;849401;100.00;;
     1.000109419;<not supported>;;LLC-loads;0;100.00;;
     2.010423603;1000000;;cycles;849401;100.00;;
     2.010423603;2500000;;instructions;849401;100.00;0.63;insn per cycle
     2.010423603;300;;L1-dcache-load-misses;849401;60.00;;
     2.010423603;1000;;L1-dcache-loads;849401;60.00;;
     2.010423603;0.53;msec;task-clock;525991;100.00;0.432;CPUs utilized
     2.010423603;70000;;branches;100000;5.00;;
"""
JSON = """\
{"counter-value" : "89.81", "unit" : "msec", "event" : "task-clock", "event-runtime" : 898100, \
"pcnt-running" : 100.00, "metric-value" : 0.95, "metric-unit" : "CPUs utilized"}
{"counter-value" : "4000000.000000", "unit" : "", "event" : "cycles:u", "event-runtime" : 55, \
"pcnt-running" : 100.00, "metric-value" : "2.9", "metric-unit" : "GHz"}
{"counter-value" : "2500000.000000", "unit" : "", "event" : "instructions", "pcnt-running" : 100, }
{"counter-value" : "300.00", "unit" : "", "event" : "L1-dcache-load-misses", "pcnt-running" : 60}
{"counter-value" : "1000.000000", "unit" : "", "event" : "L1-dcache-loads", "pcnt-running" : 60.0}
{"counter-value" : "<not supported>", "unit" : "", "event" : "LLC-loads", "pcnt-running" : 100.00}
{"counter-value" : "70000.000000", "unit" : "", "event" : "branches", "pcnt-running" : 5.00}
"""


@pytest.mark.parametrize("text", [CSV, TEXT, INTERVALS, JSON])
def test_every_format_gives_same_counts(text: str) -> None:
    profile = read(text)
    assert profile is not None and profile.metrics == COUNTS
    (note,) = profile.notes
    assert "LLC-loads" in note and "branches" in note


TOP_DOWN = (
    " Performance counter stats for 'true':\n\n"
    " 18,693,525  TOPDOWN.SLOTS     #     43.2 %  tma_backend_bound\n"
    "                               #     29.2 %  tma_frontend_bound    (63.54%)\n",
    '{"counter-value" : "18693525.0", "unit" : "", "event" : "TOPDOWN.SLOTS", "pcnt-running" : 100,'
    ' "metric-value" : "43.2", "metric-unit" : "%  tma_backend_bound", "metric-threshold" : ""}\n'
    '{"metric-value" : "29.2", "metric-unit" : "%  tma_frontend_bound"}\n',
    "18693525,,TOPDOWN.SLOTS,5552708,100.00,43.2,%  tma_backend_bound\n"
    "18693525,,TOPDOWN.SLOTS,5552708,100.00,29.2,%  tma_frontend_bound\n",
)


@pytest.mark.parametrize("text", TOP_DOWN, ids=["text", "json", "csv"])
def test_top_down_analysis_is_in_per_cent(text: str) -> None:
    profile = read(text)
    assert profile is not None
    assert profile.metrics["tma_backend_bound"] == 43.2
    assert profile.metrics["tma_frontend_bound"] == 29.2
    assert normalise(profile.metrics).values["tma_backend_bound_pct"] == 43.2


RECORDED = (
    "0.77,msec,task-clock,765256,100.00,0.415,CPUs utilized\n"
    "<not supported>,,cycles,0,100.00,,\n<not supported>,,branches,0,100.00,,\n",
    "0.53;msec;task-clock;13.64%;525991;100.00;0.432;CPUs utilized\n"
    "<not supported>;;cycles;0.00%;0;100.00;;\n<not supported>;;branches;0.00%;0;100.00;;\n",
    " Performance counter stats for 'true':\n\n"
    "              0.71 msec task-clock                       #    0.362 CPUs utilized          \n"
    "   <not supported>      cycles                                                      \n"
    "   <not supported>      branches                                                    \n\n"
    "       0.001954764 seconds time elapsed\n\n       0.001715000 seconds user\n",
    '{"counter-value" : "<not supported>", "unit" : "", "event" : "cycles", "event-runtime" : 0,'
    ' "pcnt-running" : 100.00, "metric-value" : 0.000000, "metric-unit" : ""}\n'
    '{"counter-value" : "<not supported>", "unit" : "", "event" : "branches", "event-runtime" : 0,'
    ' "pcnt-running" : 100.00, "metric-value" : 0.000000, "metric-unit" : ""}\n',
)


@pytest.mark.parametrize("text", RECORDED)
def test_machine_without_counters_gives_no_metrics(text: str) -> None:
    profile = read(text)
    assert profile is not None and profile.metrics == {}
    assert profile.notes == ("perf did not count cycles, branches",)


@pytest.mark.parametrize("mark", ["\u2019", "'", "\u202f", "\u2009", "\xa0", ".", ","])
def test_thousands_separators_of_locales(mark: str) -> None:
    profile = read(
        " Performance counter stats for './a.out':\n\n"
        f"  2{mark}725{mark}958{mark}586      cycles\n       17{mark}904{mark}419      LLC-loads\n"
    )
    assert profile is not None
    assert profile.metrics == {"cycles": 2_725_958_586, "LLC-loads": 17_904_419}


def test_events_of_arm_cores() -> None:
    profile = read(
        " Performance counter stats for './a.out':\n\n"
        "  2,725,958,586  cycles\n  2,102,075,504  instructions\n  410,411,322  l1d_cache\n"
        "  41,618,630  l1d_cache_refill\n  17,904,419  ll_cache_rd\n"
        "  15,112,462  ll_cache_miss_rd\n"
    )
    assert profile is not None
    measured = normalise(profile.metrics)
    assert measured.unrecognised == ()
    verdict = diagnose(measured, {}, {}, ("neoverse-v2", "arm", "any"))
    assert verdict.primary == "memory_latency"
