"""vLLM on the CPU, prefix cache on, its worker in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from worker import Generate, serve

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "OMP_NUM_THREADS": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def load() -> tuple[Generate, dict[str, str]]:
    import vllm

    engine = vllm.LLM(
        model=sys.argv[1],
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=32,
        enable_prefix_caching=True,
        distributed_executor_backend="uni",
        seed=0,
    )

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        outputs = engine.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            [
                vllm.SamplingParams(temperature=0, max_tokens=count, min_tokens=count, ignore_eos=True)
                for count in counts
            ],
            use_tqdm=False,
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    return generate, {"vllm": vllm.__version__}


if __name__ == "__main__":
    serve(load)
