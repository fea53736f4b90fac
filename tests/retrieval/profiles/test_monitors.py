"""Samples of programs that watch a device."""

from __future__ import annotations

import pytest

from retrieval.pasted import pasted
from retrieval.profiles.tool_logs import read_monitor

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
