"""Linear layers over packed weights: right, and the same bits for a row in any batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pagetide_kernels import cpu, ops
from pagetide_kernels.binding import ArgumentError

SHAPES = [(960, 576), (576, 576), (64, 1536), (16, 2), (1, 64), (17, 30), (100, 48), (1000, 128)]
DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(params=cpu.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in cpu.supported_isas():
        pytest.skip(f"this CPU has no {request.param}")
    with cpu.use_isa(request.param):
        yield request.param


def random_layer(num_tokens, num_outputs, num_inputs, dtype):
    generator = torch.Generator().manual_seed(num_tokens)
    weight = torch.randn(num_outputs, num_inputs, generator=generator) / num_inputs**0.5
    bias = torch.randn(num_outputs, generator=generator)
    tokens = torch.randn(num_tokens, num_inputs, generator=generator)
    return tokens.to(dtype), weight.to(dtype), bias.to(dtype)


def assert_right(out, tokens, weight, bias=None):
    exact = tokens.double() @ weight.double().T + (0 if bias is None else bias.double())
    relative, absolute = (2**-8, 1e-5) if out.dtype == torch.bfloat16 else (1e-5, 1e-5)
    assert out.dtype == tokens.dtype
    torch.testing.assert_close(out.double(), exact, rtol=relative, atol=absolute)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_every_shape_is_right(isa, dtype, num_outputs, num_inputs):
    for num_tokens in (0, 1, 5, 7, 100):
        tokens, weight, bias = random_layer(num_tokens, num_outputs, num_inputs, dtype)
        packed = ops.pack_linear(weight)
        assert_right(ops.linear(tokens, packed), tokens, weight)
        assert_right(ops.linear(tokens, packed, bias), tokens, weight, bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
@pytest.mark.parametrize("num_inputs", [576, 2500, 2528])
def test_a_row_gives_the_same_bits_in_every_batch(isa, dtype, num_inputs):
    tokens, weight, bias = random_layer(200, 200, num_inputs, dtype)
    packed = ops.pack_linear(weight)
    together = ops.linear(tokens, packed, bias)
    for num_tokens in (*range(1, 9), 13, 15, 16, 17, 31, 32, 33, 40, 47, 48, 95, 96, 97, 191, 192, 193, 199):
        assert torch.equal(ops.linear(tokens[-num_tokens:], packed, bias), together[-num_tokens:])


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
@pytest.mark.parametrize("num_outputs", [64, 100])
def test_a_widened_result_is_the_same_in_float32(isa, dtype, num_outputs):
    tokens, weight, bias = random_layer(40, num_outputs, 576, dtype)
    packed = ops.pack_linear(weight)
    for each in (None, bias):
        out = ops.linear(tokens, packed, each, widened=True)
        assert out.dtype == torch.float32
        assert torch.equal(out, ops.linear(tokens, packed, each).float())


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
@pytest.mark.parametrize("num_outputs", [1, 16, 63, 1000, 1040])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_the_likeliest_output_is_that_of_the_widened_result(isa, dtype, num_outputs, num_threads):
    generator = torch.Generator().manual_seed(num_outputs)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for num_tokens in (0, 1, 13, 40, 400):
            tokens = torch.randint(-2, 3, (num_tokens, 70), generator=generator).to(dtype)  # full of ties
            tokens[5:6] = torch.nan
            weight = torch.randint(-1, 2, (num_outputs, 70), generator=generator).to(dtype)
            packed = ops.pack_linear(weight)
            expected = ops.likeliest(ops.linear(tokens, packed, widened=True))
            assert torch.equal(ops.linear_likeliest(tokens, packed), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("num_tokens", [1, 40, 400])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(isa, num_threads, num_tokens):
    tokens, weight, _ = random_layer(num_tokens, 400, 576, torch.bfloat16)
    packed = ops.pack_linear(weight)
    before, expected = torch.get_num_threads(), ops.linear(tokens, packed)
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(ops.linear(tokens, packed), expected)
    finally:
        torch.set_num_threads(before)


def test_rows_may_lie_apart(isa):
    tokens, weight, _ = random_layer(9, 64, 96, torch.bfloat16)
    apart = torch.cat([torch.full_like(tokens, torch.nan), tokens], dim=1)[:, 96:]
    assert_right(ops.linear(apart, ops.pack_linear(weight)), tokens, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_rows_come_out_of_a_packed_weight_as_they_went_in(dtype, num_outputs, num_inputs):
    _, weight, _ = random_layer(0, num_outputs, num_inputs, dtype)
    ids = torch.randint(num_outputs, (30,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ops.pack_linear(weight).rows(ids), weight[ids])


@pytest.mark.parametrize("outside", [-1, 17])
def test_a_row_that_is_not_there_is_named(outside):
    packed = ops.pack_linear(torch.zeros(17, 32))
    with pytest.raises(ArgumentError, match=rf"unpack_rows: ids\[1\] is {outside}; expected 0 to 16"):
        packed.rows(torch.tensor([3, outside]))


@pytest.mark.parametrize("weight", [torch.zeros(4, 4).half(), torch.zeros(4), torch.zeros(4, 3)])
def test_a_weight_that_cannot_be_packed_is_named(weight):
    with pytest.raises(
        ArgumentError, match=r"pack_linear: weight is .*; expected bfloat16 or float32 \[N, K\], K even"
    ):
        ops.pack_linear(weight)


def test_a_wrong_argument_is_named():
    tokens, weight, bias = random_layer(3, 20, 32, torch.float32)
    packed = ops.pack_linear(weight)
    with pytest.raises(ArgumentError, match=r"linear: weight is of dtype float32; expected bfloat16"):
        ops.linear(tokens.bfloat16(), packed)
    with pytest.raises(
        ArgumentError, match=r"linear: weight is of shape \[2, 32, 16\]; expected .* with K = 30"
    ):
        ops.linear(tokens[:, :30].contiguous(), packed)
    with pytest.raises(
        ArgumentError, match=r"linear: out is of shape \[3, 20\]; expected \[T, N\] with T = 3, N = 19"
    ):
        ops.linear(tokens, packed, bias[:19].contiguous())
    with pytest.raises(ArgumentError, match=r"linear: weight has 2 columns of 16; expected 3 for N = 33"):
        ops.linear(tokens, ops.PackedLinear(packed.data, 33, 32))
