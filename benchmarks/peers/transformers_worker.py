"""transformers in bfloat16: `static`, left-padded batches of 32, or its `continuous` batching."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from worker import Generate, serve

BATCH = 32
PAD = 2


def load() -> tuple[Generate, dict[str, str]]:
    import torch
    import transformers

    torch.set_num_threads(2)
    kind, checkpoint = sys.argv[2], sys.argv[1]
    options = {} if kind == "static" else {"attn_implementation": "sdpa"}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, **options
    ).eval()
    model.generation_config.eos_token_id = None
    generate = static(model) if kind == "static" else continuous(model)
    return generate, {"transformers": transformers.__version__, "torch": torch.__version__}


def static(model: Any) -> Generate:
    """All rows of a batch run as long as the longest."""
    import torch

    def batch(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        width, most = max(map(len, prompts)), max(counts)
        ids = torch.tensor([[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=most,
                min_new_tokens=most,
                do_sample=False,
                pad_token_id=PAD,
            )
        return [row[width : width + count].tolist() for row, count in zip(out, counts, strict=True)]

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        starts = range(0, len(prompts), BATCH)
        return [row for i in starts for row in batch(prompts[i : i + BATCH], counts[i : i + BATCH])]

    return generate


def continuous(model: Any) -> Generate:
    """A manager for each run: one that is idle would look for work while the others are measured."""
    import transformers
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    greedy = transformers.GenerationConfig(
        do_sample=False, eos_token_id=-1, pad_token_id=PAD, max_new_tokens=128
    )
    blocks = ContinuousBatchingConfig(
        page_size=256,
        num_blocks=128,
        max_batch_tokens=4096,
        max_requests_per_batch=BATCH,
        allow_block_sharing=True,
    )

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        manager = model.init_continuous_batching(generation_config=greedy, continuous_batching_config=blocks)
        manager.start()
        try:
            names = [
                manager.add_request(list(prompt), max_new_tokens=count)
                for prompt, count in zip(prompts, counts, strict=True)
            ]
            found = gather(manager, set(names))
        finally:
            manager.stop(block=True)
        return [found[name] for name in names]

    return generate


def gather(manager: Any, names: set[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while len(found) < len(names):
        result = manager.get_result(timeout=5)
        if result is None and not manager.is_running():
            raise RuntimeError("the batching thread died")
        if result is not None and result.is_finished():
            found[result.request_id] = list(result.generated_tokens)
    return found


if __name__ == "__main__":
    serve(load)
