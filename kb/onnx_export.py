"""`python -P THIS_FILE FOLDER TARGET`: prepare the query model of a sentence-transformers folder.

TARGET is an optimised ONNX file. Its packed weights are in a second file, which onnxruntime maps,
so that processes share them. Both depend on the processor and on the version of onnxruntime. Runs
as a separate process, because it may import torch, and ends when its standard input is closed.
Imports nothing of Kernlore.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INPUTS = ("input_ids", "attention_mask")  # (batch, tokens), int64
OUTPUT = "embedding"  # (batch, dimension) float32, the mean over the tokens, of unit length
OPSET, IR = 17, 8
LEAST_MAPPED = 1024  # bytes; a smaller weight stays in the ONNX file


def prepare_model(folder: Path, target: Path) -> None:
    """Write `target` and its weights from the model in `folder`; takes 1 s for a BERT model, 9 s
    with an import of torch for others."""
    gc.disable()  # there is hardly any garbage
    scratch = _scratch(target)
    scratch.mkdir()
    try:
        bert = read_bert(folder)
        if bert is None:
            exported = scratch / "exported.onnx"
            export_by_torch(folder, exported)
            _pack(str(exported), {}, scratch / target.name)
        else:
            _pack(bert.model(), bert.weights, scratch / target.name)
        # The model names its weights, so they are in place before it.
        for name in (_weights_of(target), target.name):
            (scratch / name).replace(target.with_name(name))
    finally:
        shutil.rmtree(scratch)


def _pack(model: bytes | str, weights: Mapping[str, NDArray[Any]], target: Path) -> None:
    """Write the optimised form of a model, given as its bytes or path. `weights` are the arrays
    that the model refers to, which saves three copies of them."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(target)
    for name, value in (
        ("session.optimized_model_external_initializers_file_name", _weights_of(target)),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(LEAST_MAPPED)),
        ("session.save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(name, value)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
    options.add_external_initializers(list(weights), values)
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# -- BERT, from its configuration and weights


def read_bert(folder: Path) -> Bert | None:
    """The model if it is a BERT in float32."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    expected = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    if {name: config.get(name, expected[name]) for name in expected} != expected:
        return None
    try:
        return Bert(config, load_file(folder / "model.safetensors"))
    except (OSError, SafetensorError, KeyError):  # weights in another form or by other names
        return None


class Bert:
    """Builds the graph, with the operations of torch's export in the same order. `weights` are the
    arrays that it refers to by name. Raises KeyError for weights by other names."""

    def __init__(self, config: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]) -> None:
        self._config, self._stored = config, stored
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self.weights: dict[str, NDArray[Any]] = {}
        self._graph = self._built()

    def model(self) -> bytes:
        """The model without its weights, serialised."""
        from onnx import helper

        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(self._graph, opset_imports=[opset], ir_version=IR)
        serialised: bytes = model.SerializeToString()
        return serialised

    def _built(self) -> Any:
        from onnx import TensorProto, helper

        hidden = self._embedded()
        present = self._of("Unsqueeze", "attention_mask", self._ints([1, 2]))
        admitted = self._of("Cast", present, to=TensorProto.BOOL)
        lowest = self._constant(np.array(np.finfo(np.float32).min, np.float32))
        mask = self._of("Where", admitted, self._float(0.0), lowest)
        for layer in range(self._config["num_hidden_layers"]):
            hidden = self._layer(hidden, mask, f"encoder.layer.{layer}")
        self._pool(hidden)
        axes = ["batch", "tokens"]
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, axes) for n in INPUTS]
        shape = ["batch", self._config["hidden_size"]]
        output = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, shape)
        return helper.make_graph(self._nodes, "bert", inputs, [output], self._constants)

    def _embedded(self) -> str:
        name = "embeddings"
        tokens = self._of("Shape", INPUTS[0], start=1, end=2)
        words = self._of("Gather", self._weight(f"{name}.word_embeddings.weight"), INPUTS[0])
        kinds = self._constant(self._stored[f"{name}.token_type_embeddings.weight"][0])
        places = self._of(
            "Slice",
            self._weight(f"{name}.position_embeddings.weight"),
            self._ints([0]),
            tokens,
            self._ints([0]),
        )
        both = self._of("Add", words, kinds)
        return self._normalised(self._of("Add", both, places), f"{name}.LayerNorm")

    def _layer(self, hidden: str, mask: str, name: str) -> str:
        attended = self._attended(hidden, mask, f"{name}.attention.self")
        out = self._dense(attended, f"{name}.attention.output.dense")
        hidden = self._normalised(
            self._of("Add", out, hidden), f"{name}.attention.output.LayerNorm"
        )
        wide = self._dense(hidden, f"{name}.intermediate.dense")
        gate = self._of("Erf", self._of("Div", wide, self._float(2**0.5)))
        gate = self._of("Mul", wide, self._of("Add", gate, self._float(1.0)))
        narrow = self._dense(self._of("Mul", gate, self._float(0.5)), f"{name}.output.dense")
        return self._normalised(self._of("Add", narrow, hidden), f"{name}.output.LayerNorm")

    def _attended(self, hidden: str, mask: str, name: str) -> str:
        heads = self._config["num_attention_heads"]
        size = self._config["hidden_size"] // heads
        shape = self._ints([0, 0, heads, size])  # 0: the size of the input

        def split(part: str, order: list[int]) -> str:
            of_heads = self._of("Reshape", self._dense(hidden, f"{name}.{part}"), shape)
            return self._of("Transpose", of_heads, perm=order)

        query, value = split("query", [0, 2, 1, 3]), split("value", [0, 2, 1, 3])
        scores = self._of("MatMul", query, split("key", [0, 2, 3, 1]))
        scaled = self._of("Mul", scores, self._float(size**-0.5))
        shares = self._of("Softmax", self._of("Add", scaled, mask), axis=-1)
        joined = self._of("Transpose", self._of("MatMul", shares, value), perm=[0, 2, 1, 3])
        return self._of("Reshape", joined, self._ints([0, 0, heads * size]))

    def _pool(self, hidden: str) -> None:
        from onnx import TensorProto

        present = self._of("Unsqueeze", "attention_mask", self._ints([-1]))
        weight = self._of("Cast", present, to=TensorProto.FLOAT)
        over = self._ints([1])
        total = self._of("ReduceSum", self._of("Mul", hidden, weight), over, keepdims=0)
        count = self._of("ReduceSum", weight, over, keepdims=0)
        mean = self._of("Div", total, self._of("Clip", count, self._float(1e-9)))
        length = self._of("ReduceL2", mean, axes=[1], keepdims=1)
        self._of("Div", mean, self._of("Clip", length, self._float(1e-12)), out=OUTPUT)

    def _dense(self, hidden: str, name: str) -> str:
        weight = np.ascontiguousarray(self._stored[f"{name}.weight"].T)
        product = self._of("MatMul", hidden, self._constant(weight))
        return self._of("Add", self._weight(f"{name}.bias"), product)

    def _normalised(self, hidden: str, name: str) -> str:
        scale, shift = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        least = float(self._config["layer_norm_eps"])
        return self._of("LayerNormalization", hidden, scale, shift, axis=-1, epsilon=least)

    def _of(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add an operation; the name of its output."""
        from onnx import helper

        out = out or f"value{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [out], **attributes))
        return out

    def _weight(self, name: str) -> str:
        return self._constant(self._stored[name])

    def _float(self, value: float) -> str:
        return self._constant(np.array(value, np.float32))

    def _ints(self, values: list[int]) -> str:
        return self._constant(np.array(values, np.int64))

    def _constant(self, value: NDArray[Any]) -> str:
        from onnx import TensorProto, helper, numpy_helper

        if value.dtype not in (np.float32, np.int64):
            raise KeyError(value.dtype)
        name, value = f"constant{len(self._constants)}", np.ascontiguousarray(value)
        if value.nbytes < LEAST_MAPPED:
            self._constants.append(numpy_helper.from_array(value, name))
            return name
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        constant = TensorProto(name=name, data_type=kind, dims=value.shape)
        constant.data_location = TensorProto.EXTERNAL
        for key, text in {"location": "memory", "length": str(value.nbytes)}.items():
            constant.external_data.add(key=key, value=text)
        self._constants.append(constant)
        self.weights[name] = value
        return name


# -- other models


def export_by_torch(folder: Path, target: Path) -> None:
    """Write the model by tracing it."""
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    class Pooled(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask)[0]
            weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    model = AutoModel.from_pretrained(str(folder), attn_implementation="eager").eval()
    example = torch.ones(2, 8, dtype=torch.long)
    axes = {0: "batch", 1: "tokens"}
    with warnings.catch_warnings():
        # The tracing exporter is deprecated, but takes 2 s instead of 7.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Pooled(model),
            (example, example),
            str(target),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes={**dict.fromkeys(INPUTS, axes), OUTPUT: {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )


def _scratch(target: Path) -> Path:
    """The folder of incomplete files."""
    return target.with_suffix(f".{os.getpid()}.part")


def _weights_of(target: Path) -> str:
    return f"{target.stem}.weights"


def _end_with_the_parent(target: Path) -> None:
    while os.read(0, 4096):
        pass
    shutil.rmtree(_scratch(target), ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    folder, target = map(Path, sys.argv[1:])
    threading.Thread(target=_end_with_the_parent, args=(target,), daemon=True).start()
    prepare_model(folder, target)
