"""Keeps a whole GPU busy until a call has been launched: one kernel that takes every place of the
device for threads, reads a buffer that is larger than the last-level cache for as long, and writes
the last values of a call's inputs when it ends.

While it runs no other kernel of the process can run, on whatever stream it waits: nothing begins
before the call does, and nothing that is read earlier stays in the cache. Nor does anything that
was written: a call does not pay for lines that others have changed. Needs the driver of NVIDIA and
nothing that compiles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import torch

from optimizer.evaluation.runner.driver import LIBRARY, launch, loaded_kernel
from optimizer.evaluation.runner.memory import LATE, LATE_TENSORS, LateChange

THREADS = 512  # of a block: divides what a multiprocessor holds on every architecture
GRACE_NS = 100_000  # after which no block waits for others any more
WORD = 16  # bytes that a thread reads at once
UNLIKELY = 0x5BD1E995  # no buffer of zeros gives it; what nobody uses would not be read at all
# From where to where, each with the step between elements, bytes of an element, and their number.
RECORD = 6

# Compiled by the driver when a runner starts. A block stays until all have read their part. More
# than 32 registers would leave no room for all of its threads.
PTX = f"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry hold(
    .param .u64 buffer, .param .u64 words, .param .u64 ns, .param .u64 most,
    .param .u64 arrived, .param .u64 blocks, .param .u64 until,
    .param .align 8 .b8 late[{8 * RECORD * LATE_TENSORS}]
)
.maxntid {THREADS}, 1, 1
.maxnreg 32
{{
    .reg .pred %p;
    .reg .b16 %byte;
    .reg .b32 %r<8>;
    .reg .b64 %begin, %time, %ns, %most, %words, %buffer, %arrived, %blocks, %until;
    .reg .b64 %own, %step, %at, %to, %from, %size, %count, %k<8>;

    mov.u64 %begin, %globaltimer;
    ld.param.u64 %buffer, [buffer];
    ld.param.u64 %words, [words];
    ld.param.u64 %ns, [ns];
    ld.param.u64 %most, [most];
    ld.param.u64 %arrived, [arrived];
    ld.param.u64 %blocks, [blocks];
    ld.param.u64 %until, [until];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %nctaid.x;
    mad.wide.u32 %own, %r1, {THREADS}, 0;
    cvt.u64.u32 %k1, %r2;
    add.u64 %own, %own, %k1;
    mul.wide.u32 %step, %r3, {THREADS};
    mov.u32 %r0, 0;
sweep:
    mov.u64 %at, %own;
word:
    setp.ge.u64 %p, %at, %words;
    @%p bra swept;
    mad.lo.u64 %k2, %at, {WORD}, %buffer;
    ld.global.cg.v4.u32 {{%r4, %r5, %r6, %r7}}, [%k2];
    xor.b32 %r0, %r0, %r4;
    xor.b32 %r0, %r0, %r5;
    xor.b32 %r0, %r0, %r6;
    xor.b32 %r0, %r0, %r7;
    add.u64 %at, %at, %step;
    bra word;
swept:
    mov.u64 %time, %globaltimer;
    sub.u64 %time, %time, %begin;
    setp.lt.u64 %p, %time, %ns;
    @%p bra sweep;
    setp.ne.u32 %p, %r0, {UNLIKELY};
    @%p bra unused;
    st.global.u32 [%buffer], %r0;
unused:
    bar.sync 0;
    setp.ne.u32 %p, %r2, 0;
    @%p bra together;
    atom.global.add.u64 %k3, [%arrived], 1;
wait:
    ld.volatile.global.u64 %k3, [%arrived];
    setp.ge.u64 %p, %k3, %blocks;
    @%p bra together;
    mov.u64 %time, %globaltimer;
    sub.u64 %time, %time, %begin;
    setp.lt.u64 %p, %time, %most;
    @%p bra wait;
together:
    bar.sync 0;
quiet:
    mov.u64 %time, %globaltimer;
    sub.u64 %time, %time, %begin;
    setp.lt.u64 %p, %time, %until;
    @%p bra quiet;
    setp.ge.u32 %p, %r1, {LATE_TENSORS};
    @%p bra done;
    mul.wide.u32 %k4, %r1, {8 * RECORD};
    mov.u64 %k5, late;
    add.u64 %k4, %k4, %k5;
    ld.param.u64 %count, [%k4+40];
    setp.ge.u64 %p, %k1, %count;
    @%p bra done;
    ld.param.u64 %to, [%k4];
    ld.param.u64 %k6, [%k4+8];
    mad.lo.u64 %to, %k6, %k1, %to;
    ld.param.u64 %from, [%k4+16];
    ld.param.u64 %k6, [%k4+24];
    mad.lo.u64 %from, %k6, %k1, %from;
    ld.param.u64 %size, [%k4+32];
    add.u64 %size, %size, %to;
copy:
    setp.ge.u64 %p, %to, %size;
    @%p bra done;
    ld.global.u8 %byte, [%from];
    st.global.u8 [%to], %byte;
    add.u64 %to, %to, 1;
    add.u64 %from, %from, 1;
    bra copy;
done:
    ret;
}}
"""


class HoldUnavailable(Exception):
    """The driver does not take the kernel; the message says why."""


class Hold:
    """The kernel, with the buffer that it reads."""

    def __init__(self, flush_bytes: int) -> None:
        """Raises HoldUnavailable where there is no driver of NVIDIA, or it refuses the kernel."""
        self._function = _function()
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        places = device.max_threads_per_multi_processor // THREADS
        self._blocks = device.multi_processor_count * places
        self._buffer = torch.zeros(flush_bytes // WORD * WORD, dtype=torch.int8, device="cuda")
        self._arrived = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._launched = 0
        self._late = (ctypes.c_uint64 * (RECORD * LATE_TENSORS))()
        self._numbers = [ctypes.c_uint64() for _ in range(7)]
        given = [*map(ctypes.addressof, self._numbers), ctypes.addressof(self._late)]
        self._given = (ctypes.c_void_p * len(given))(*given)

    def __call__(
        self, stream: int, ns: int, late: Sequence[LateChange] = (), until: int = 0
    ) -> None:
        """Launch it on a stream, by the stream's handle: it reads the buffer for so many
        nanoseconds, and to the end of a round, and is quiet until `until`. When it ends, `late` is
        in place."""
        self._launched += 1
        values = (
            self._buffer.data_ptr(),
            self._buffer.numel() // WORD,
            ns,
            ns + GRACE_NS,
            self._arrived.data_ptr(),
            self._launched * self._blocks,
            until,
        )
        for number, value in zip(self._numbers, values, strict=True):
            number.value = value
        ctypes.memset(self._late, 0, ctypes.sizeof(self._late))
        for at, change in enumerate(late):
            self._late[RECORD * at : RECORD * (at + 1)] = list(_record(*change))
        size = (self._blocks, 1, 1, THREADS, 1, 1)
        code = launch(self._function, size, stream, self._given)
        if code:
            raise RuntimeError(f"the device cannot be held: error {code} of its driver")


def prepare() -> None:
    """Let the driver compile the kernel, where it takes it, before anybody waits for it."""
    with suppress(HoldUnavailable):
        _function()


def _record(places: torch.Tensor, values: torch.Tensor) -> tuple[int, ...]:
    """A change as the kernel reads it. At most LATE elements, in one dimension."""
    assert places.numel() == values.numel() <= LATE and places.dim() == 1
    size = places.element_size()
    return (
        places.data_ptr(),
        places.stride(0) * size,
        values.data_ptr(),
        values.stride(0) * size,
        size,
        values.numel(),
    )


@cache
def _function() -> ctypes.c_void_p:
    """The kernel, loaded into the current context. Raises HoldUnavailable."""
    if LIBRARY is None:
        raise HoldUnavailable("there is no driver of NVIDIA")
    torch.cuda.current_stream().synchronize()  # makes torch's context the current one
    function, code = loaded_kernel(PTX, "hold")
    if function is None:
        raise HoldUnavailable(f"error {code} of the driver")
    return function
