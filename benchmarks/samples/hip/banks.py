"""Counts, for every layout of LDS rows that the samples use, how many lanes of a phase of a 128-bit
access meet in one bank. The phases are those that AMD publishes for 32 and for 64 banks.

    python benchmarks/samples/hip/banks.py
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

Place = Callable[[int, int], int]  # row and 16-byte piece to a byte offset
Groups = Sequence[Sequence[int]]


def both_halves(groups: Groups) -> list[list[int]]:
    """The phases of lanes 0 to 31, and the same for lanes 32 to 63."""
    return [*map(list, groups), *([lane + 32 for lane in group] for group in groups)]


READ_32 = both_halves(
    [
        [*range(4), *range(20, 24)],
        [*range(4, 8), *range(16, 20)],
        [*range(8, 12), *range(28, 32)],
        [*range(12, 16), *range(24, 28)],
    ]
)
READ_64 = both_halves(
    [[*range(4), *range(12, 16), *range(20, 28)], [*range(4, 12), *range(16, 20), *range(28, 32)]]
)
WRITE = [list(range(8 * i, 8 * i + 8)) for i in range(8)]
LAYOUTS: Sequence[tuple[str, int, int, Place]] = (
    ("128-byte rows, plain", 32, 128, lambda r, p: r * 128 + p * 16),
    ("128-byte rows, pad of 16", 32, 128, lambda r, p: r * 144 + p * 16),
    ("128-byte rows, row & 7", 32, 128, lambda r, p: r * 128 + (p ^ (r & 7)) * 16),
    ("64-byte rows, plain", 32, 64, lambda r, p: r * 64 + p * 16),
    ("64-byte rows, (row >> 1) & 3", 32, 64, lambda r, p: r * 64 + (p ^ (r >> 1 & 3)) * 16),
    ("128-byte rows, plain", 64, 128, lambda r, p: r * 128 + p * 16),
    ("128-byte rows, pad of 16", 64, 128, lambda r, p: r * 144 + p * 16),
    ("128-byte rows, (row >> 1) & 7", 64, 128, lambda r, p: r * 128 + (p ^ (r >> 1 & 7)) * 16),
    ("256-byte rows, row & 15", 64, 256, lambda r, p: r * 256 + (p ^ (r & 15)) * 16),
    ("64-byte rows, plain", 64, 64, lambda r, p: r * 64 + p * 16),
    (
        "64-byte rows, 0 2 3 1",
        64,
        64,
        lambda r, p: r * 64 + (p ^ (0x78 >> 2 * (r >> 2 & 3) & 3)) * 16,
    ),
)


def most_in_a_bank(address: Callable[[int], int], groups: Groups, banks: int) -> int:
    """The largest number of different 16-byte pieces that a bank serves in one phase."""
    worst = 1
    for lanes in groups:
        pieces: defaultdict[int, set[int]] = defaultdict(set)
        for lane in lanes:
            for word in range(4):
                pieces[(address(lane) // 4 + word) % banks].add(address(lane))
        worst = max(worst, *(len(those) for those in pieces.values()))
    return worst


def main() -> None:
    """Print one line for every layout: reads of MFMA fragments, and writes along rows."""
    for name, banks, row_bytes, place in LAYOUTS:
        pieces = row_bytes // 16
        groups = READ_32 if banks == 32 else READ_64

        def reads(start: int, place: Place = place, groups: Groups = groups, n: int = banks) -> int:
            return most_in_a_bank(lambda lane: place(lane % 16, start + lane // 16), groups, n)

        def written(lane: int, place: Place = place, pieces: int = pieces) -> int:
            return place(lane // pieces, lane % pieces)

        read = max(reads(start) for start in range(0, pieces, 4))
        write = most_in_a_bank(written, WRITE, banks)
        print(f"{banks} banks, {name}: reads {read}, writes {write}")


if __name__ == "__main__":
    main()
