"""Skills in two wordings each, and similar but distinct skills: the data that the thresholds of
`match` were chosen on.
"""

from __future__ import annotations

from typing import NamedTuple


class Paraphrase(NamedTuple):
    transformation: str
    description: str
    steps: tuple[str, ...]


PAIRS: dict[str, tuple[Paraphrase, Paraphrase]] = {
    "vector stores": (
        Paraphrase(
            "vectorize-global-access",
            "Use when a kernel is memory bound and each thread loads or stores a single element."
            " Read and write several neighbouring elements with one wide instruction.",
            ("Check the alignment of the pointers.", "Load and store vectors of elements.",
             "Handle the rest that does not fill a vector."),
        ),
        Paraphrase(
            "wide-memory-accesses",
            "Use for kernels limited by memory bandwidth whose threads touch one element at a time."
            " Let one wide instruction load and store several neighbouring elements.",
            ("Make sure that pointers are aligned.", "Replace scalar loads and stores by vectors.",
             "Treat the elements left over at the end."),
        ),
    ),
    "row in cache": (
        Paraphrase(
            "keep-row-resident",
            "Use when a normalisation over rows reads each row more than once from memory. Keep"
            " the row on the chip between the sweeps for mean, variance and result.",
            ("Load a row once.", "Compute mean and variance from the copy on the chip.",
             "Write the result from the same copy."),
        ),
        Paraphrase(
            "single-read-normalisation",
            "Use when mean, variance and result of a normalised row are computed in separate sweeps"
            " that each read the row from memory. Read it once and keep it on the chip.",
            ("Read each row once into the chip.", "Take mean and variance from that copy.",
             "Produce the result from the copy and write it."),
        ),
    ),
    "prefetch": (
        Paraphrase(
            "prefetch",
            "Use when a loop over rows waits for memory. Ask for the next rows early with a"
            " prefetch"
            " so that they have arrived in the cache when they are needed.",
            ("Issue a prefetch for a row some iterations ahead.",
             "Tune the distance of the prefetch."),
        ),
        Paraphrase(
            "request-rows-early",
            "Use when the loop over rows stalls on memory latency. A prefetch issued some rows"
            " ahead"
            " brings the data into the cache before it is needed.",
            ("Add a prefetch of a later row to the loop.", "Choose how far ahead it asks."),
        ),
    ),
    "fuse": (
        Paraphrase(
            "fuse-epilogue",
            "Use when bias and activation after a matrix product run as kernels of their own. Apply"
            " them to the accumulator before it is stored.",
            ("Keep the tile of results in registers.", "Add the bias and apply the activation.",
             "Store the tile once."),
        ),
        Paraphrase(
            "activation-in-matmul",
            "Use when a matrix product is followed by separate kernels for bias and activation. Do"
            " both on the accumulator while it is in registers, before the store.",
            ("Leave the result tile in registers.", "Apply bias and activation to it.",
             "Write the finished tile once."),
        ),
    ),
    "split reduction": (
        Paraphrase(
            "split-k",
            "Use when a matrix product with a long reduction has too few output tiles to fill the"
            " device. Split the reduction over several blocks and add their partial sums.",
            ("Add a grid axis for the parts of the reduction.", "Write partial sums to a"
             " workspace.",
             "Add the partial sums in a second kernel."),
        ),
        Paraphrase(
            "divide-the-reduction",
            "Use when few output tiles leave the device idle though the reduction of the matrix"
            " product is long. Several blocks share one reduction and their partial sums are"
            " added.",
            ("Divide the reduction over an extra grid axis.", "Store the partial sums in a"
             " workspace.", "Sum them in another kernel."),
        ),
    ),
    "stages": (
        Paraphrase(
            "pipeline-loads",
            "Use when tensor units idle while tiles are loaded. Keep several loads in flight with"
            " multiple buffers so that copies overlap with arithmetic.",
            ("Allocate several buffers for tiles.", "Start loads some iterations ahead.",
             "Wait for the oldest load before using its tile."),
        ),
        Paraphrase(
            "multi-buffering",
            "Use when arithmetic waits for the next tile. Several buffers keep loads in flight, so"
            " copies of later tiles overlap with arithmetic on earlier ones.",
            ("Provide several tile buffers.", "Issue loads ahead of their use.",
             "Wait only for the oldest load."),
        ),
    ),
}  # fmt: skip

# Similar to one of the above: the same operators and many of its words.
NEAR: dict[str, Paraphrase] = {
    "vector stores": Paraphrase(
        "stream-stores",
        "Use when a kernel is memory bound and its results are not read again soon. Write each"
        " element past the caches with a streaming store.",
        ("Check that no later kernel reads the results at once.", "Use streaming stores."),
    ),
    "row in cache": Paraphrase(
        "split-rows",
        "Use when a normalisation has few long rows that leave units idle. Split each row over"
        " several blocks and merge their partial means and variances.",
        ("Split a row into pieces.", "Compute mean and variance of each piece.",
         "Merge them and write the result."),
    ),
    "prefetch": Paraphrase(
        "larger-chunks",
        "Use when threads that loop over rows spend time on scheduling. Give each thread a larger"
        " chunk of neighbouring rows at a time.",
        ("Raise the number of rows in a chunk.", "Check that the threads stay balanced."),
    ),
    "fuse": Paraphrase(
        "persistent-grid",
        "Use when a matrix product has many small output tiles and start-up of blocks shows. Launch"
        " as many blocks as there are units and let each walk over tiles.",
        ("Launch one block for each unit.", "Loop over result tiles inside.", "Store each tile."),
    ),
    "split reduction": Paraphrase(
        "swizzle-grid",
        "Use when a matrix product with many output tiles reads more from memory than it needs."
        " Visit output tiles in groups so that neighbouring blocks share what is in the cache.",
        ("Change the order of the grid.", "Group the blocks of a few rows of tiles."),
    ),
    "stages": Paraphrase(
        "smaller-tiles",
        "Use when tensor units idle because few blocks fit on a unit. Take smaller tiles so that"
        " more blocks are resident and their loads overlap.",
        ("Reduce the size of the tiles.", "Check that more blocks are resident."),
    ),
}  # fmt: skip
