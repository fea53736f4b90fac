"""The least work of a case that can be timed."""

from __future__ import annotations

# A launch costs about 5 us on a GPU and a call from Python about as much: below these a kernel
# measures that. 1 MiB at 2 TB/s is 0.5 us, on two cores 100 us.
MIN_BYTES = 1 << 20
MIN_FLOPS = 50_000_000


def too_little(moved_bytes: int, flops: int) -> str:
    """That a case is too small to time, in words; empty where it is not."""
    if moved_bytes >= MIN_BYTES or flops >= MIN_FLOPS:
        return ""
    if not flops:  # torch's counter knows products alone
        return f"{moved_bytes:,} bytes, and no operation that is counted, are too little to time"
    return f"{moved_bytes:,} bytes and {flops:,} floating-point operations are too little to time"
