"""Sentences that a framework prints below every error. They carry no information about the error at
hand, and documents quote them with other errors.

Does not know signatures. Sentences removed here are still in the log that a reader is shown.
"""

from __future__ import annotations

import re

# Collected from PyTorch 2.x (CUDA and ROCm), JAX 0.4 and later, torch.compile, GCC and Clang.
_SENTENCES = re.compile(
    r"(?:CUDA|HIP|XPU) kernel errors might be asynchronously reported at some other API call"
    r"(?:,? so the stacktrace below might be incorrect)?\.?"
    r"|For debugging consider passing [A-Z_]{4,40} ?= ?\d\.?"
    r"|Compile with [`'\"]?TORCH_USE_\w{2,8}_DSA[`'\"]? to enable device-side assertions\.?"
    r"|Device-side assertions? (?:tracking )?(?:was|were) not enabled by user\.?"
    r"|Search for [`'\"]\w{1,60}[`'\"] in https?://\S{1,200} for more information\.?"
    r"|For simplicity, JAX has removed its internal frames from the traceback of the following"
    r" exception\.(?: Set JAX_TRACEBACK_FILTERING=off to include these\.)?"
    r"|The stack trace below excludes JAX-internal frames\."
    r"|The preceding (?:stack trace )?is the (?:original exception that occurred, unmodified"
    r"|source of the JAX operation[^\n]{0,200})\."
    r"|(?:This|The above) exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:"
    r"|Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace[^\n]{0,300}"
    r"|Set TORCH_LOGS=[^\n]{1,200}"
    r"|For even more developer context, set TORCH_LOGS=[^\n]{1,80}"
    r"|You can suppress this exception and fall back to eager by setting:"
    r"|^ {0,8}import torch\._dynamo$|^ {0,8}torch\._dynamo\.config\.suppress_errors = True$"
    r"|Please submit a full bug report[^\n]{0,200}|^See <[^>\n]{1,200}> for instructions\."
    r"|^[^\n]{0,80}note: each undeclared identifier is reported only once[^\n]{0,80}"
    r"|^compilation terminated\.$|^\d{1,6} (?:warnings? and \d{1,6} )?errors? generated[^\n]{0,60}$"
    r"|^\d{1,6} errors? detected in the compilation of [^\n]{1,200}$"
    r"|^Traceback \(most recent call last\):$|^-{8,200}$",
    re.IGNORECASE | re.MULTILINE,
)
MOST = 20_000  # characters; in longer texts the sentences weigh little, and the search takes time
_BLANK_LINES = re.compile(r"\n\s*\n")


def without_boilerplate(text: str) -> str:
    """The text without these sentences; unchanged if nothing else remains or the text is long."""
    if len(text) > MOST:
        return text
    left = _SENTENCES.sub("", text)
    if left == text or not left.strip():
        return text
    return _BLANK_LINES.sub("\n", left).strip()
