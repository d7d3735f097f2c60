"""OpenVINO GenAI's continuous batching in bfloat16, prefix cache on."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from worker import Generate, serve


def load() -> tuple[Generate, dict[str, str]]:
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 4
    scheduler.max_num_seqs = 32
    scheduler.max_num_batched_tokens = 4096
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    properties = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "bf16"}
    pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", properties)

    def generate(prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        results = pipeline.generate(
            [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts],
            [
                genai.GenerationConfig(
                    max_new_tokens=count, min_new_tokens=count, ignore_eos=True, do_sample=False
                )
                for count in counts
            ],
        )
        return [list(map(int, result.m_generation_ids[0])) for result in results]

    return generate, {"openvino-genai": genai.__version__}


if __name__ == "__main__":
    serve(load)
