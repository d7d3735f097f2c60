"""LiteLLM's `triton` provider, run by the Python that has it: BASE_URL → what it got, as JSON on stdout."""

from __future__ import annotations

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Otherwise its import asks another machine for prices.

import litellm

MESSAGES = [{"role": "user", "content": "The capital of France is"}]


def ask(url: str, **options: object) -> object:
    return litellm.completion(
        model="triton/smollm2", api_base=url, messages=MESSAGES, num_retries=0, **{"max_tokens": 24} | options
    )


def refusal(url: str) -> str:
    try:
        ask(url, max_tokens=0)
    except litellm.BadRequestError as error:
        return str(error)
    return "nothing was refused"


def main(base: str) -> None:
    generate, infer = f"{base}/ensemble/generate", f"{base}/smollm2_infer/infer"
    litellm.suppress_debug_info = True
    answers = {
        "generate": ask(generate).choices[0].message.content,
        "stream": [chunk.choices[0].delta.content or "" for chunk in ask(generate, stream=True)],
        "infer": ask(infer, max_tokens=4).choices[0].message.content,
        "refusal": refusal(generate),
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
