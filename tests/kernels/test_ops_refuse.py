"""Whatever is wrong with whichever tensor, the error names the op and the tensor, on every device."""

from __future__ import annotations

import re

import pytest
import torch

from pagetide_kernels import ops
from pagetide_kernels.binding import ArgumentError

# The tables are the same on a GPU.
pytestmark = pytest.mark.parametrize("device", ["cpu", "sim"], indirect=True)

T, HEADS, KV_HEADS, DIM, BLOCKS, VOCAB = 2, 4, 2, 64, 3, 70


def rows(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def cache():
    return rows(BLOCKS, 2, KV_HEADS, 16, DIM)


def per_row():
    return torch.ones(2)


INT32 = torch.int32
CALLS = {
    ops.paged_attention: lambda: {
        "query": rows(T, HEADS, DIM),
        "kv_cache": cache(),
        "block_table": torch.zeros(T, 2, dtype=INT32),
        "query_starts": ints(0, 1, 2, dtype=INT32),
        "kv_lens": ints(5, 20, dtype=INT32),
        "out": rows(T, HEADS, DIM),
        "scale": 1.0,
    },
    ops.write_kv: lambda: {
        "key": rows(T, KV_HEADS, DIM),
        "value": rows(T, KV_HEADS, DIM),
        "kv_cache": cache(),
        "slots": ints(0, 1),
    },
    ops.split_qkv: lambda: {
        "qkv": rows(T, HEADS + 2 * KV_HEADS, DIM),
        "cos": torch.zeros(T, 1, DIM),
        "sin": torch.zeros(T, 1, DIM),
        "kv_cache": cache(),
        "slots": ints(0, 1),
        "norm": torch.zeros(HEADS + KV_HEADS, DIM),
    },
    ops.move_blocks: lambda: {
        "to": cache(),
        "source": cache(),
        "to_ids": ints(0, 1),
        "source_ids": ints(2, -1),
    },
    ops.add_rms_norm: lambda: {
        "residual": rows(T, 64),
        "added": rows(T, 64),
        "weight": torch.ones(64),
        "epsilon": 1e-5,
    },
    ops.activate_and_multiply: lambda: {"gate_up": rows(T, 2, 64), "activation": "silu"},
    ops.gather_rows: lambda: {"table": rows(7, 64), "ids": ints(0, 6)},
    ops.penalise: lambda: {
        "logits": torch.zeros(3, VOCAB),
        "rows": ints(2, 0),
        "starts": ints(0, 1, 2),
        "tokens": ints(3, 4, dtype=INT32),
        "counts": ints(0, 1, dtype=INT32),
        "repetition": per_row(),
        "presence": per_row(),
        "frequency": per_row(),
    },
    ops.apply_bitmask: lambda: {
        "logits": torch.zeros(3, VOCAB),
        "rows": ints(2, 0),
        "bitmask": torch.zeros(2, 3, dtype=INT32),
    },
    ops.greedy: lambda: {"logits": torch.zeros(2, VOCAB)},
    ops.sample: lambda: {
        "logits": torch.zeros(2, VOCAB),
        "temperature": per_row(),
        "top_k": ints(0, 1, dtype=INT32),
        "top_p": per_row(),
        "min_p": per_row(),
        "uniform": per_row().double() / 2,
    },
}


def strided(tensor):
    return tensor.repeat_interleave(2, -1)[..., ::2]


WRONG = {
    "kind": lambda tensor: 3,
    "dtype": lambda tensor: tensor.to(torch.int16),
    "dimensions": lambda tensor: tensor[None],
    "device": lambda tensor: tensor.to("meta"),
    "layout": strided,
}
# A cache's bytes are moved whatever they are.
ACCEPTED = {("move_blocks", name, what) for name in ("to", "source") for what in ("dtype", "dimensions")}


def wrong_calls():
    for op, make in CALLS.items():
        for name, value in make().items():
            for what in WRONG if isinstance(value, torch.Tensor) else ():
                if (op.__name__, name, what) not in ACCEPTED:
                    yield pytest.param(op, name, what, id=f"{op.__name__}-{name}-{what}")


@pytest.mark.parametrize(("op", "name", "what"), list(wrong_calls()))
def test_a_wrong_tensor_is_named(device, op, name, what, monkeypatch):
    monkeypatch.setenv("PAGETIDE_DEBUG", "1")  # what indices hold is looked at only when the rest is right
    arguments = CALLS[op]()
    arguments[name] = WRONG[what](arguments[name])
    moved = {
        key: value.to(device) if isinstance(value, torch.Tensor) and not value.is_meta else value
        for key, value in arguments.items()
    }
    with pytest.raises(ArgumentError, match=rf"^{op.__name__}: .*\b{name}\b"):
        op(**moved)


@pytest.mark.parametrize("op", CALLS, ids=lambda op: op.__name__)
def test_the_calls_themselves_are_right(device, op):
    arguments = CALLS[op]()
    op(**{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()})


OUTSIDE = [
    (ops.paged_attention, "block_table", torch.full((T, 2), BLOCKS, dtype=INT32)),
    (ops.paged_attention, "kv_lens", ints(5, 33, dtype=INT32)),
    (ops.write_kv, "slots", ints(0, 16 * BLOCKS)),
    (ops.split_qkv, "slots", ints(0, 16 * BLOCKS)),
    (ops.move_blocks, "to_ids", ints(0, BLOCKS)),
    (ops.move_blocks, "source_ids", ints(BLOCKS, 0)),
    (ops.gather_rows, "ids", ints(0, 7)),
    (ops.gather_rows, "ids", ints(-1, 0)),
    (ops.penalise, "tokens", ints(0, VOCAB, dtype=INT32)),
    (ops.penalise, "starts", ints(0, 2, 3)),
    (ops.penalise, "rows", ints(0, 3)),
    (ops.apply_bitmask, "rows", ints(-1, 0)),
]


@pytest.mark.parametrize(("op", "name", "value"), OUTSIDE)
def test_an_index_that_points_outside_is_named(device, op, name, value, monkeypatch):
    """On a CPU always, for CUDA kernels on request: it costs a synchronisation."""
    monkeypatch.setenv("PAGETIDE_DEBUG", "1")
    arguments = {**CALLS[op](), name: value}
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    with pytest.raises(ArgumentError, match=rf"^{op.__name__}: {name}\[\d+\].* is -?\d+.*; expected"):
        op(**moved)


def test_what_is_not_a_number_or_not_known_is_named(device):
    x = rows(T, 64).to(device)
    with pytest.raises(ArgumentError, match="add_rms_norm: epsilon is a str"):
        ops.add_rms_norm(x, None, torch.ones(64, device=device), "1e-5")
    with pytest.raises(ArgumentError, match="activation is 'swish'; expected one of silu, gelu"):
        ops.activate_and_multiply(x.view(T, 2, 32), "swish")
    with pytest.raises(ArgumentError, match=f"greedy: count is {VOCAB + 1}; expected 1 to {VOCAB}"):
        ops.greedy(torch.zeros(2, VOCAB, device=device), VOCAB + 1)
    with pytest.raises(ArgumentError, match="greedy: count is 0; expected 1 to"):
        ops.greedy(torch.zeros(2, VOCAB, device=device), 0)


def test_heads_that_do_not_add_up_are_named(device):
    call = CALLS[ops.split_qkv]()
    call["norm"] = call["norm"][:3]
    moved = {k: v.to(device) for k, v in call.items()}
    with pytest.raises(ArgumentError, match=re.escape("norm is of size 3; expected Hq + Hkv = 6")):
        ops.split_qkv(**moved)
    call = {**CALLS[ops.split_qkv](), "qkv": rows(T, 3, DIM), "norm": None}
    with pytest.raises(ArgumentError, match=re.escape("qkv is of size 3; expected Hq + 2 Hkv = 4")):
        ops.split_qkv(**{k: v if v is None else v.to(device) for k, v in call.items()})


def test_more_turned_dimensions_than_a_head_has_are_refused(device):
    call = CALLS[ops.split_qkv]()
    call["cos"] = call["sin"] = torch.zeros(T, 1, 2 * DIM)
    with pytest.raises(ArgumentError, match=f"size R is {2 * DIM}; expected at most D = {DIM}"):
        ops.split_qkv(**{k: v.to(device) for k, v in call.items()})
