"""Linear layers over codes in groups: as exact as with dequantised weights, the same bits in any batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from pagetide_kernels import cpu, ops
from pagetide_kernels.binding import ArgumentError

SHAPES = [(960, 576), (64, 1536), (16, 32), (1, 64), (17, 96), (100, 320), (1000, 128)]
DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(params=cpu.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in cpu.supported_isas():
        pytest.skip(f"this CPU has no {request.param}")
    with cpu.use_isa(request.param):
        yield request.param


def around_zero(weight: torch.Tensor) -> ops.QuantisedWeight:
    """4 bits without minimums, as Q4_0 has them."""
    groups = weight.unflatten(1, (-1, 32))
    scales = (groups.abs().amax(-1) / 8).half()
    codes = (groups / scales.float()[..., None]).round().clamp(-8, 7).to(torch.int8)
    return ops.QuantisedWeight(codes.flatten(1), scales, None, 4)


FORMS = {
    "8 bits": lambda weight: ops.quantise(weight, 8),
    "4 bits": lambda weight: ops.quantise(weight, 4),
    "4 bits around zero": around_zero,
}


@pytest.fixture(params=FORMS)
def quantised(request: pytest.FixtureRequest):
    return FORMS[request.param]


def random_layer(num_tokens, num_outputs, num_inputs, dtype):
    generator = torch.Generator().manual_seed(num_tokens)
    weight = torch.randn(num_outputs, num_inputs, generator=generator) / num_inputs**0.5 + 0.01
    bias = torch.randn(num_outputs, generator=generator)
    tokens = torch.randn(num_tokens, num_inputs, generator=generator)
    return tokens.to(dtype), weight, bias.to(dtype)


def assert_right(out, tokens, weight, bias=None):
    exact = tokens.double() @ weight.dequantised().double().T + (0 if bias is None else bias.double())
    relative, absolute = (2**-8, 2e-5) if out.dtype == torch.bfloat16 else (1e-5, 1e-5)
    assert out.dtype == tokens.dtype
    torch.testing.assert_close(out.double(), exact, rtol=relative, atol=absolute)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_every_shape_is_right(isa, quantised, dtype, num_outputs, num_inputs):
    for num_tokens in (0, 1, 3, 4, 5, 50):
        tokens, weight, bias = random_layer(num_tokens, num_outputs, num_inputs, dtype)
        coded = quantised(weight)
        packed = ops.pack_codes(coded, dtype)
        assert_right(ops.linear(tokens, packed), tokens, coded)
        assert_right(ops.linear(tokens, packed, bias), tokens, coded, bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
@pytest.mark.parametrize("num_inputs", [576, 2528])
def test_a_row_gives_the_same_bits_in_every_batch(isa, quantised, dtype, num_inputs):
    tokens, weight, bias = random_layer(200, 200, num_inputs, dtype)
    packed = ops.pack_codes(quantised(weight), dtype)
    together = ops.linear(tokens, packed, bias)
    for num_tokens in (1, 2, 3, 4, 5, 6, 7, 8, 13, 95, 96, 97, 199):
        assert torch.equal(ops.linear(tokens[-num_tokens:], packed, bias), together[-num_tokens:])


@pytest.mark.parametrize("num_tokens", [1, 40, 400])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(isa, quantised, num_threads, num_tokens):
    tokens, weight, _ = random_layer(num_tokens, 400, 576, torch.bfloat16)
    packed = ops.pack_codes(quantised(weight), torch.bfloat16)
    before, expected = torch.get_num_threads(), ops.linear(tokens, packed)
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(ops.linear(tokens, packed), expected)
    finally:
        torch.set_num_threads(before)


def test_rows_may_lie_apart(isa, quantised):
    tokens, weight, _ = random_layer(9, 64, 96, torch.bfloat16)
    apart = torch.cat([torch.full_like(tokens, torch.nan), tokens], dim=1)[:, 96:]
    coded = quantised(weight)
    assert_right(ops.linear(apart, ops.pack_codes(coded, torch.bfloat16)), tokens, coded)


@pytest.mark.parametrize(("bits", "codes"), [(8, range(-127, 128)), (4, range(-8, 8))])
def test_every_code_is_multiplied_as_the_number_it_is(isa, bits, codes):
    """Output n's code of input k is exact in a product with a unit vector, at any scale a float16 has."""
    values = torch.tensor(codes, dtype=torch.int8).repeat(1 + 32 * 32 // len(codes))[: 32 * 32].view(32, 32)
    for scale in (1.0, 2.0**-24, -(2.0**-20), 0.1, 65504.0):
        scales = torch.full((32, 1), scale).half()
        coded = ops.QuantisedWeight(values, scales, None, bits)
        out = ops.linear(torch.eye(32), ops.pack_codes(coded, torch.float32))
        assert torch.equal(out, coded.dequantised().T)
        rounded = ops.linear(torch.eye(32).bfloat16(), ops.pack_codes(coded, torch.bfloat16))
        assert torch.equal(rounded, coded.dequantised().T.bfloat16())


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_rows_come_out_of_packed_codes_dequantised(quantised, dtype, num_outputs, num_inputs):
    _, weight, _ = random_layer(0, num_outputs, num_inputs, dtype)
    ids = torch.randint(num_outputs, (30,), generator=torch.Generator().manual_seed(0))
    coded = quantised(weight)
    assert torch.equal(ops.pack_codes(coded, dtype).rows(ids), coded.dequantised()[ids].to(dtype))


@pytest.mark.parametrize(("bits", "steps"), [(8, 254), (4, 15)])
def test_a_weight_is_off_by_half_a_step_at_most(bits, steps):
    _, weight, _ = random_layer(1, 50, 320, torch.float32)
    groups = weight.unflatten(1, (-1, 32))
    least, most = groups.aminmax(dim=-1, keepdim=True)
    whole = 2 * groups.abs().amax(-1, keepdim=True) if bits == 8 else most - least
    error = (ops.quantise(weight, bits).dequantised().unflatten(1, (-1, 32)) - groups).abs()
    assert (error <= 0.5 * whole / steps + 2**-10 * groups.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_constant_weight_stays(bits):
    weight = torch.zeros(20, 64)
    weight[3:] = 0.5
    torch.testing.assert_close(ops.quantise(weight, bits).dequantised(), weight, rtol=2**-11, atol=0)


def test_what_cannot_be_quantised_or_packed_is_named():
    with pytest.raises(
        ArgumentError, match=r"quantise: weight is of shape \[4, 48\]; expected .* multiple of 32"
    ):
        ops.quantise(torch.zeros(4, 48), 4)
    with pytest.raises(ArgumentError, match="quantise: bits is 3; expected 4 or 8"):
        ops.quantise(torch.zeros(4, 32), 3)
    with pytest.raises(
        ArgumentError, match=r"pack_codes: weight is on cpu for torch\.float16; expected cpu, bfl"
    ):
        ops.pack_codes(ops.quantise(torch.zeros(4, 32), 8), torch.float16)
    lowest = ops.QuantisedWeight(torch.full((4, 32), -128).char(), torch.ones(4, 1).half(), None, 8)
    with pytest.raises(ArgumentError, match=r"pack_codes: codes hold -128; expected -127 to 127"):
        ops.pack_codes(lowest, torch.bfloat16)


def test_a_wrong_argument_is_named():
    tokens, weight, bias = random_layer(3, 20, 64, torch.float32)
    packed = ops.pack_codes(ops.quantise(weight, 4), torch.float32)
    with pytest.raises(
        ArgumentError, match=r"quantised_linear: size K is 48; expected a positive multiple of 32"
    ):
        ops.linear(tokens[:, :48].contiguous(), packed)
    with pytest.raises(ArgumentError, match=r"quantised_linear: codes have 2 groups; expected K / 32 = 1"):
        ops.linear(tokens[:, :32].contiguous(), packed)
    with pytest.raises(ArgumentError, match=r"quantised_linear: out is of dtype float32; expected bfloat16"):
        ops.linear(tokens.bfloat16(), packed)
    with pytest.raises(
        ArgumentError, match=r"quantised_linear: out is of shape \[3, 20\]; expected \[T, N\]"
    ):
        ops.linear(tokens, packed, bias[:19].contiguous())
    with pytest.raises(
        ArgumentError, match=r"quantised_linear: weight has 2 columns of 16; expected 3 for N = 33"
    ):
        ops.linear(tokens, replace(packed, num_outputs=33))
    with pytest.raises(
        ArgumentError, match=r"quantised_linear: codes have 128 bytes a group and scales 2 parts"
    ):
        ops.linear(tokens, replace(packed, codes=packed.codes[:, :, :128].contiguous()))
