"""Names of operations: one canonical name for the many spellings of one operation."""

from __future__ import annotations

from typing import Any

_ALIASES = {
    "__add__": "add", "__radd__": "add", "add_": "add", "__iadd__": "add",
    "__sub__": "sub", "subtract": "sub", "sub_": "sub", "__isub__": "sub", "subtract_": "sub",
    "__rsub__": "rsub", "rsub": "rsub",
    "__mul__": "mul", "__rmul__": "mul", "multiply": "mul", "mul_": "mul", "__imul__": "mul", "multiply_": "mul",
    "__truediv__": "div", "__div__": "div", "divide": "div", "true_divide": "div", "div_": "div",
    "__itruediv__": "div", "__idiv__": "div", "__rtruediv__": "rdiv", "__rdiv__": "rdiv",
    "__neg__": "neg", "negative": "neg", "neg_": "neg", "__pos__": "positive",
    "__pow__": "pow", "__ipow__": "pow", "pow_": "pow", "__rpow__": "rpow",
    "__matmul__": "matmul", "__rmatmul__": "matmul", "__abs__": "abs", "absolute": "abs",
    "__getitem__": "getitem", "__setitem__": "setitem",
    "__float__": "float", "__int__": "int", "__bool__": "bool", "__array__": "numpy", "__index__": "int",
    "float": "to", "int": "to",  # `x.float()` gives a tensor, `float(x)` does not
    "concat": "cat", "concatenate": "cat", "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le",
    "special_expit": "sigmoid", "sigmoid_": "sigmoid", "special_softmax": "softmax", "softmax_": "softmax",
    "special_log_softmax": "log_softmax", "special_logsumexp": "logsumexp", "special_log1p": "log1p",
    "special_logit": "logit", "__gt__": "gt", "__ge__": "ge", "__and__": "bitwise_and", "__or__": "bitwise_or",
    "__invert__": "bitwise_not",
}  # fmt: skip

ELEMENTWISE = frozenset({"add", "sub", "rsub", "mul", "div", "rdiv", "pow", "rpow", "neg", "positive"})
REDUCTIONS = {"mean": "mean", "nanmean": "mean", "sum": "sum", "nansum": "sum"}
# The value leaves the tensor world: what comes back later carries no graph.
EXITS = frozenset({"item", "tolist", "float", "int", "numpy"})
# A tensor from plain numbers or from an array.
FACTORIES = frozenset({"tensor", "as_tensor", "scalar_tensor", "from_numpy", "full"})
# Only shape, type and device of the argument matter: no value of it reaches the result.
LIKENESSES = frozenset(
    {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros",
     "new_ones", "new_empty", "new_full"}
)  # fmt: skip
# The first argument is overwritten: nothing of its value reaches the result.
OVERWRITES = frozenset(
    {"zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_",
     "cauchy_", "geometric_"}
)  # fmt: skip
# Weights go in, what comes out is data or a choice, no weights any more.
MIXTURES = LIKENESSES | frozenset(
    {"linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "einsum", "bilinear", "embedding", "embedding_bag",
     "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cdist", "softmax",
     "log_softmax", "batch_norm", "layer_norm", "group_norm", "argmax", "argmin", "one_hot"}
)  # fmt: skip
# The same memory under another name.
VIEWS = frozenset(
    {
        "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "t", "T", "mT", "expand",
        "expand_as", "getitem", "select", "narrow", "chunk", "split", "unbind", "movedim", "swapaxes", "view_as",
        "diagonal", "unflatten", "ravel", "contiguous", "squeeze_", "unsqueeze_", "unfold", "real", "imag",
        "swapdims", "split_with_sizes", "adjoint",
    }
)  # fmt: skip
# A prediction is still "just the module's output" after these.
SELECTIONS = VIEWS | frozenset(
    {"gather", "index_select", "take_along_dim", "take", "max", "amax", "masked_select", "to", "clone", "double",
     "type", "type_as", "half", "bfloat16", "stack", "cat", "min", "minimum", "log_prob"}
)  # fmt: skip
LOSSES = frozenset(
    {
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "cross_entropy", "nll_loss",
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "gaussian_nll_loss", "poisson_nll_loss",
        "cosine_embedding_loss", "cosine_similarity", "margin_ranking_loss", "triplet_margin_loss",
        "hinge_embedding_loss", "soft_margin_loss", "multi_margin_loss", "ctc_loss", "multilabel_soft_margin_loss",
        "multilabel_margin_loss", "triplet_margin_with_distance_loss",
    }
)  # fmt: skip
# What makes a difference a distance.
DISTANCES = frozenset({"pow", "square", "abs", "norm", "huber", "vector_norm", "linalg_vector_norm", "logcosh", "mul"})
EXPLICIT_SHAPES = frozenset(
    {"unsqueeze", "getitem", "view", "reshape", "expand", "unsqueeze_", "expand_as", "broadcast_to"}
)

_cache: dict[Any, str] = {}


def raw_name(func: Any) -> str:
    """The plain `__name__` of a torch function."""
    name = getattr(func, "__name__", "")
    return name if isinstance(name, str) else ""


def canonical(func: Any) -> str:
    """One name for all spellings: `a + b`, `a.add(b)`, `torch.add(a, b)` and `a += b` are all "add".

    In-place operations without an operator spelling keep their underscore ("clamp_", "copy_").
    """
    known = _cache.get(func)
    if known is None:
        raw = raw_name(func)
        known = _ALIASES.get(raw, raw)
        if len(_cache) < 4096:
            _cache[func] = known
    return known


def is_inplace(func: Any) -> bool:
    """Whether the function writes into its first argument."""
    raw = raw_name(func)
    if raw.startswith("__"):
        return (raw.startswith("__i") and raw not in ("__index__", "__int__", "__invert__")) or raw == "__setitem__"
    return raw.endswith("_") and not raw.endswith("__") and not raw.startswith("requires_grad")
