"""A wrong argument is a Python exception that names it: never a crash, never a silent wrong result."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from pagetide_kernels import checks, ops
from pagetide_kernels.binding import ArgumentError, Layout, ScalarParam, Signature, TensorParam

SEQUENCES = [(2, 20), (1, 40)]
CHECKED = ("kv_cache", "block_table", "query_starts", "kv_lens", "window")

WRONG = {
    "query is of dtype float16; expected bfloat16 or float32": lambda c: {"query": c.query.half()},
    "query is of shape [3, 192]; expected [T, Hq, D]": lambda c: {"query": c.query.flatten(1)},
    "query is a ndarray; expected a torch.Tensor": lambda c: {"query": c.query.numpy()},
    "query is on device meta; expected cpu or cuda": lambda c: {"query": c.query.to("meta")},
    "query is of strides [192, 1, 3]; expected contiguous within each entry": lambda c: {
        "query": c.query.transpose(1, 2).contiguous().transpose(1, 2)
    },
    "query is at address": lambda c: {"query": torch.empty(600)[3 : 3 + 576].view(3, 3, 64)},
    "kv_cache is of dtype bfloat16; expected float32": lambda c: {"kv_cache": c.kv_cache.bfloat16()},
    "kv_cache is of shape [8, 1, 1, 16, 64]; expected [N, 2, Hkv, 16, D] with D = 64": lambda c: {
        "kv_cache": c.kv_cache[:, :1].contiguous()
    },
    "kv_cache is of strides": lambda c: {"kv_cache": c.kv_cache.transpose(3, 4).contiguous().transpose(3, 4)},
    "kv_cache is on device meta; expected cpu": lambda c: {"kv_cache": c.kv_cache.to("meta")},
    "size Hq is 3; expected a positive multiple of Hkv = 2": lambda c: {
        "kv_cache": c.kv_cache.repeat(1, 1, 2, 1, 1)
    },
    "size D is 40; expected a positive multiple of 16": lambda c: {
        "query": c.query[..., :40].contiguous(),
        "kv_cache": c.kv_cache[..., :40].contiguous(),
    },
    "block_table is of dtype int64; expected int32": lambda c: {"block_table": c.block_table.long()},
    "query_starts is of shape [2]; expected [B+1] with B = 2": lambda c: {"query_starts": c.query_starts[:2]},
    "query_starts[0:2] is 2, 0; expected to rise from 0 to T = 3": lambda c: {
        "query_starts": torch.tensor([2, 0, 3], dtype=torch.int32)
    },
    "query_starts[1:3] is 2, 4; expected to rise": lambda c: {
        "query_starts": torch.tensor([0, 2, 4], dtype=torch.int32)
    },
    "query_starts[0:2] is -1, 2; expected to rise": lambda c: {
        "query_starts": torch.tensor([-1, 2, 3], dtype=torch.int32)
    },
    "kv_lens is a NoneType; expected a torch.Tensor": lambda c: {"kv_lens": None},
    "kv_lens[1] is 65; expected 0 to 64": lambda c: {"kv_lens": torch.tensor([20, 65], dtype=torch.int32)},
    "kv_lens[0] is -1; expected 0": lambda c: {"kv_lens": torch.tensor([-1, 40], dtype=torch.int32)},
    "kv_lens[0] is 1; expected at least its 2 queries": lambda c: {
        "kv_lens": torch.tensor([1, 40], dtype=torch.int32)
    },
    "block_table[1][2] is 8; expected a block id in [0, 8)": lambda c: {"block_table": table_with(c, 8)},
    "block_table[1][2] is -1; expected a block id": lambda c: {"block_table": table_with(c, -1)},
    "window is -1": lambda c: {"window": -1},
    "window is 1.5; expected an integer": lambda c: {"window": 1.5},
    f"window is {2**31}; expected an integer that fits i32": lambda c: {"window": 2**31},
    "soft_cap -1; expected 0": lambda c: {"soft_cap": -1.0},
    "soft_cap nan; expected 0": lambda c: {"soft_cap": float("nan")},
    "scale is a str; expected a number that fits f32": lambda c: {"scale": "1"},
    "out is of shape [2, 3, 64]": lambda c: {"out": torch.empty(2, 3, 64)},
}


def table_with(case, block: int) -> torch.Tensor:
    table = case.block_table.clone()
    table[1, 2] = block
    return table


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_argument_of_attention_is_named(make_case, message: str):
    case = make_case(SEQUENCES)
    change: Callable[..., dict[str, object]] = WRONG[message]
    with pytest.raises(ArgumentError, match=re.escape(message)) as raised:
        case.run(**change(case))
    assert str(raised.value).startswith("paged_attention: ")


def test_arguments_are_checked_again_when_only_their_values_change(make_case):
    case = make_case(SEQUENCES)
    case.run()
    case.block_table[1, 2] = 1000
    with pytest.raises(ArgumentError, match="is 1000"):
        case.run()


def test_a_wrong_argument_of_write_kv_is_named():
    tokens, cache = torch.zeros(3, 2, 16), torch.zeros(4, 2, 2, 16, 16)
    with pytest.raises(ArgumentError, match=r"write_kv: slots is of dtype int32; expected int64"):
        ops.write_kv(tokens, tokens, cache, torch.zeros(3, dtype=torch.int32))
    with pytest.raises(
        ArgumentError, match=r"write_kv: value is of shape \[2, 2, 16\]; expected \[T, Hkv, D\] with T = 3"
    ):
        ops.write_kv(tokens, tokens[:2], cache, torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("message", [m for m in WRONG if re.match(r"(block_table|kv_lens)\[", m)])
def test_devices_that_cannot_report_are_checked_from_the_host(make_case, message: str):
    case = make_case(SEQUENCES)
    changed = {**vars(case), **WRONG[message](case)}
    with pytest.raises(ArgumentError, match=re.escape(message.split(";")[0])):
        checks.paged_attention(**{name: changed[name] for name in CHECKED})


def test_right_indices_pass_the_host_check(make_case):
    for window in (0, 5):
        case = make_case([*SEQUENCES, (0, 0), (1, 0), (0, 64)], window=window)
        if window:
            case.block_table[1, 0] = -1
        checks.paged_attention(**{name: getattr(case, name) for name in CHECKED})


def test_a_slot_outside_the_cache_fails_the_host_check():
    cache = torch.zeros(2, 2, 1, 16, 16)
    checks.slots("write_kv", cache, torch.tensor([-1, 31]))
    with pytest.raises(ArgumentError, match=r"slots\[1\] is 32; expected less than 32"):
        checks.slots("write_kv", cache, torch.tensor([0, 32]))


SIGNATURE = Signature(
    "example",
    tensors=(
        TensorParam("x", ("T", "K"), torch.float32, layout=Layout.ROWS),
        TensorParam("starts", ("T+1",), torch.int32),
        TensorParam("bias", ("K",), torch.float32, layout=Layout.ROWS, optional=True),
    ),
    dims=("K", "T"),
    scalars=(ScalarParam("count", "i64"), ScalarParam("factor", "f32")),
)


def test_arguments_are_flattened_as_pointers_strides_sizes_scalars():
    x, starts = torch.zeros(4, 10)[:, :7], torch.zeros(5, dtype=torch.int32)
    bound = SIGNATURE.bind((x, starts, None), (2**40, 1))
    assert bound.args == [x.data_ptr(), starts.data_ptr(), None, 10, 0, 7, 4, 2**40, 1.0]
    assert SIGNATURE.kinds == ("pointer",) * 3 + ("i64",) * 2 + ("i32",) * 2 + ("i64", "f32")


def test_a_required_tensor_cannot_be_left_out():
    with pytest.raises(ArgumentError, match=r"example: starts is a NoneType; expected a torch.Tensor"):
        SIGNATURE.bind((torch.zeros(4, 7), None, None), (1, 1))
