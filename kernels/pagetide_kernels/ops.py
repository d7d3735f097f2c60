"""The kernels as functions of torch tensors, the same on every device.

Tensors on a device run on that device: CUDA on a GPU, C++ or plain torch on a CPU, and on a CPU the CUDA
sources themselves within `simulated_cuda`. Each op's arguments are checked once, at this boundary, against
one table (`signatures`): every error is an `ArgumentError` that names the argument, its value and what was
expected. What index tensors refer to (block ids, lengths, slots) is always checked on a CPU; on a GPU it
costs a synchronisation, so only with PAGETIDE_DEBUG=1.
"""

from pagetide_kernels.attention_ops import (
    empty,
    kv_cache_shape,
    move_blocks,
    paged_attention,
    split_qkv,
    write_kv,
)
from pagetide_kernels.attention_plan import max_decode_queries as most_queries_alike
from pagetide_kernels.backend import simulated_cuda
from pagetide_kernels.device_signatures import head_problem
from pagetide_kernels.linear_ops import PackedLinear, linear, linear_likeliest, pack_linear
from pagetide_kernels.quantised import PackedCodes, QuantisedWeight, pack_codes, quantise
from pagetide_kernels.row_ops import activate_and_multiply, add_rms_norm, gather_rows
from pagetide_kernels.sampling_ops import apply_bitmask, greedy, likeliest, penalise, sample

__all__ = [
    "PackedCodes",
    "PackedLinear",
    "QuantisedWeight",
    "activate_and_multiply",
    "add_rms_norm",
    "apply_bitmask",
    "empty",
    "gather_rows",
    "greedy",
    "head_problem",
    "kv_cache_shape",
    "likeliest",
    "linear",
    "linear_likeliest",
    "most_queries_alike",
    "move_blocks",
    "pack_codes",
    "pack_linear",
    "paged_attention",
    "penalise",
    "quantise",
    "sample",
    "simulated_cuda",
    "split_qkv",
    "write_kv",
]
