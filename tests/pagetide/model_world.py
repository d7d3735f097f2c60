"""Drives a decoder over a paged KV cache as the runner does, with the blocks of the pool shuffled."""

from __future__ import annotations

import torch

from pagetide.layers import AttentionBatch
from pagetide.model import Decoder
from pagetide_kernels import ops

BLOCK = 16


def full_of_nan(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An int8 cache's scales are NaN with all bits set."""
    return torch.full(shape, -1 if dtype == torch.int8 else torch.nan).to(dtype)


class PagedRun:
    """Up to `num_sequences` sequences of up to `max_len` tokens, sharing one pool of blocks full of NaN."""

    def __init__(self, decoder: Decoder, num_sequences: int, max_len: int, seed: int = 0) -> None:
        self.decoder = decoder
        config = decoder.config
        blocks_each = -(-max_len // BLOCK)
        num_blocks = num_sequences * blocks_each + 1
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed))[:-1]
        self.tables = order.to(torch.int32).view(num_sequences, blocks_each)
        self.lens = [0] * num_sequences
        shape = ops.kv_cache_shape(num_blocks, config.num_kv_heads, config.head_dim, decoder.kv_dtype)
        self.kv_caches = [full_of_nan(shape, decoder.kv_dtype) for _ in range(config.num_layers)]

    def step(
        self, new: dict[int, list[int]], every_row: bool = False, rows: list[int] | None = None
    ) -> torch.Tensor:
        """Computes each sequence's new tokens; the logits after the last of each, or every one, or `rows`."""
        positions, slots, starts = [], [], [0]
        for i, tokens in new.items():
            at = torch.arange(self.lens[i], self.lens[i] + len(tokens))
            positions.append(at)
            slots.append(self.tables[i, at // BLOCK].long() * BLOCK + at % BLOCK)
            starts.append(starts[-1] + len(tokens))
            self.lens[i] += len(tokens)
        batch = AttentionBatch(
            block_table=self.tables[list(new)],
            query_starts=torch.tensor(starts, dtype=torch.int32),
            kv_lens=torch.tensor([self.lens[i] for i in new], dtype=torch.int32),
            slots=torch.cat(slots),
            max_query_len=max(map(len, new.values())),
        )
        token_ids = torch.tensor([token for tokens in new.values() for token in tokens])
        if rows is None:
            rows = list(range(starts[-1])) if every_row else [start - 1 for start in starts[1:]]
        wanted = torch.tensor(rows, dtype=torch.int64)
        return self.decoder.forward(token_ids, torch.cat(positions), self.kv_caches, batch, wanted)


def logits_of(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    """The logits [len(tokens), V] of one sequence, computed in one step."""
    return PagedRun(decoder, 1, len(tokens)).step({0: tokens}, every_row=True)


def check_neighbours_change_no_bit(model: Decoder, vocab_size: int, num_threads: int) -> None:
    """The last logits of four prompts, together and in two steps, are those of each alone."""
    prompts = {i: random_tokens(length, vocab_size, seed=i) for i, length in enumerate((1, 400, 17, 330))}
    want = torch.stack([logits_of(model, prompts[i])[-1] for i in range(4)])
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        run = PagedRun(model, len(prompts), 400)
        run.step({1: prompts[1][:-1], 3: prompts[3][:30]})
        got = run.step({0: prompts[0], 1: prompts[1][-1:], 2: prompts[2], 3: prompts[3][30:]})
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, want)


def greedy(decoder: Decoder, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """`num_tokens` most likely tokens after each prompt, all sequences in one batch."""
    run = PagedRun(decoder, len(prompts), max(map(len, prompts)) + num_tokens)
    chosen = run.step(dict(enumerate(prompts))).argmax(-1).tolist()
    outputs = [[token] for token in chosen]
    for _ in range(num_tokens - 1):
        chosen = run.step({i: [token] for i, token in enumerate(chosen)}).argmax(-1).tolist()
        for output, token in zip(outputs, chosen, strict=True):
            output.append(token)
    return outputs


def random_tokens(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (count,), generator=generator).tolist()


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference over the largest value."""
    return float((got - want).abs().max() / want.abs().max())
