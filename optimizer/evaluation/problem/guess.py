"""Which operator a problem file most likely is, by what it calls. Executes nothing."""

from __future__ import annotations

import ast

# operator -> what a source calls. The first that occurs decides, so what marks a file as something
# particular stands before what many files use.
_CALLS = {
    "attention": "scaled_dot_product_attention MultiheadAttention",
    "conv_transpose": "ConvTranspose1d ConvTranspose2d ConvTranspose3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d",
    "conv": "Conv1d Conv2d Conv3d conv1d conv2d conv3d",
    "embedding_bag": "EmbeddingBag embedding_bag",
    "embedding": "Embedding embedding",
    "loss": "cross_entropy CrossEntropyLoss mse_loss MSELoss nll_loss NLLLoss kl_div KLDivLoss "
    "smooth_l1_loss SmoothL1Loss HuberLoss cosine_embedding_loss TripletMarginLoss",
    "linear": "Linear linear",
    "bmm": "bmm baddbmm",
    "matmul": "matmul mm einsum addmm mv @",
    "layernorm": "LayerNorm layer_norm",
    "rmsnorm": "RMSNorm rms_norm",
    "batchnorm": "BatchNorm1d BatchNorm2d BatchNorm3d batch_norm",
    "groupnorm": "GroupNorm group_norm InstanceNorm1d InstanceNorm2d instance_norm",
    "softmax": "softmax Softmax log_softmax LogSoftmax logsumexp",
    "pooling": "MaxPool1d MaxPool2d MaxPool3d max_pool1d max_pool2d max_pool3d "
    "AvgPool1d AvgPool2d AvgPool3d avg_pool1d avg_pool2d avg_pool3d",
    "scan": "cumsum cumprod logcumsumexp",
    "bucketize": "bucketize searchsorted",
    "sort": "sort topk argsort",
    "scatter": "scatter_add scatter_add_ index_add index_add_ scatter_reduce",
    "gather": "gather index_select take",
    "reduction": "sum mean amax amin argmax argmin max min prod var std norm",
    "elementwise": "relu ReLU gelu GELU sigmoid Sigmoid tanh Tanh silu SiLU exp elu ELU selu "
    "softplus hardtanh leaky_relu LeakyReLU clamp mul add + * - /",
}
_OPERATORS = {ast.MatMult: "@", ast.Add: "+", ast.Mult: "*", ast.Sub: "-", ast.Div: "/"}


def guess_op(source: str) -> str:
    """An id of kb/problem_terms.toml, or "unknown". Model is read first, then the whole file."""
    tree = ast.parse(source)
    model = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"]
    for scope in (*model, tree):
        called = _called(scope)
        for op, names in _CALLS.items():
            if called.intersection(names.split()):
                return op
    return "unknown"


def _called(scope: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.BinOp):
            names.add(_OPERATORS.get(type(node.op), ""))
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute):
                names.add(called.attr)
            elif isinstance(called, ast.Name):
                names.add(called.id)
    return names
