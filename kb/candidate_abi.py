"""The C interface of a candidate: its header, and the declarations of typed pointers and sizes that
a recipe's template gets. Does not know candidates or how they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

HEADER_NAME = "kernlore_abi.h"
STRUCTURES = """\
typedef struct {
  void *data;
  int64_t dtype;
  int64_t ndim;
  const int64_t *shape;   /* ndim sizes */
  const int64_t *stride;  /* ndim strides in elements */
} kernlore_tensor;

typedef struct {
  int64_t inputs, parameters, outputs; /* parameters: with buffers */
  void *stream;                        /* cudaStream_t on a GPU, else NULL */
} kernlore_counts;
"""
HEADER = (
    """\
/* The binary interface of a Kernlore candidate.
 *
 * The harness calls  int NAME(const kernlore_tensor *tensors, const kernlore_counts *counts)
 * tensors: inputs, then parameters and buffers in state_dict order, then outputs; every one
 * contiguous, outputs allocated and not initialised. A Python number among the inputs arrives as a
 * tensor of no dimensions (int64, float64 or bool). Return 0, or KERNLORE_UNSUPPORTED for a
 * dtype or shape that the kernel does not support; anything else is a failed call.
 */
#ifndef KERNLORE_ABI_H
#define KERNLORE_ABI_H
#include <stdint.h>

enum {
  KERNLORE_FLOAT32 = 0, KERNLORE_FLOAT64 = 1, KERNLORE_FLOAT16 = 2, KERNLORE_BFLOAT16 = 3,
  KERNLORE_INT8 = 4, KERNLORE_UINT8 = 5, KERNLORE_INT16 = 6, KERNLORE_INT32 = 7,
  KERNLORE_INT64 = 8, KERNLORE_BOOL = 9
};

enum { KERNLORE_UNSUPPORTED = -1 };

"""
    + STRUCTURES
    + """
#ifdef __cplusplus
#define KERNLORE_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define KERNLORE_EXPORT __attribute__((visibility("default")))
#endif
#endif
"""
)
# The declarations of the header alone, for text without it.
DECLARATIONS = f"""\
#include <stdint.h>
{STRUCTURES}#define KERNLORE_EXPORT extern "C"
"""
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "_Float16",
    "bfloat16": "__bf16",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "bool",
}


def c_declarations(tensors: Iterable[tuple[str, str, str, Sequence[str]]]) -> str:
    """Declarations of typed pointers and sizes from the argument `t` of the entry function.

    A tensor is (name, role, dtype, dims); a dim is a name, a number, or one `*name` for the product
    of any number of dimensions. A name is declared where it occurs first.
    """
    lines: list[str] = []
    seen: set[str] = set()
    for number, (name, role, dtype, dims) in enumerate(tensors):
        lines += [_pointer(number, name, role, C_TYPES[dtype], dims), *_sizes(number, dims, seen)]
    return "\n".join(f"  {line}" for line in lines)


def _pointer(number: int, name: str, role: str, ctype: str, dims: Sequence[str]) -> str:
    const = "" if role == "output" else "const "
    if not dims:
        return f"{const}{ctype} {name} = *({const}{ctype} *)t[{number}].data;"
    return f"{const}{ctype} *__restrict__ {name} = ({const}{ctype} *)t[{number}].data;"


def _sizes(number: int, dims: Sequence[str], seen: set[str]) -> list[str]:
    starred = next((n for n, dim in enumerate(dims) if dim.startswith("*")), None)
    behind = 0 if starred is None else len(dims) - starred - 1
    lines = []
    for place, dim in enumerate(dims):
        name = dim.lstrip("*")
        if name.isdigit() or name in seen:
            continue
        seen.add(name)
        if place == starred:
            lines.append(f"int64_t {name} = 1;")
            lines.append(
                f"for (int64_t d_ = {place}; d_ < t[{number}].ndim - {behind}; d_++)"
                f" {name} *= t[{number}].shape[d_];"
            )
        else:
            after = starred is not None and place > starred
            back = len(dims) - place
            where = f"t[{number}].ndim - {back}" if after else str(place)
            lines.append(f"const int64_t {name} = t[{number}].shape[{where}];")
    return [*lines, *(f"(void){dim.lstrip('*')};" for dim in dims if not dim.isdigit())]
