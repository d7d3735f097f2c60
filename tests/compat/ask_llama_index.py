"""LlamaIndex's NvidiaTriton, run by the Python that has it: HOST:PORT → what it got, as JSON on stdout."""

from __future__ import annotations

import json
import sys

from llama_index.llms.nvidia_triton import NvidiaTriton
from tritonclient.utils import InferenceServerException

PROMPT = "The capital of France is"


def refusal(model: NvidiaTriton) -> str:
    try:
        model.complete(PROMPT, beam_width=2)
    except InferenceServerException as error:
        return str(error)
    return "nothing was refused"


def main(url: str) -> None:
    model = NvidiaTriton(server_url=url, tokens=24)
    answers = {
        "complete": model.complete(PROMPT).text,
        "stream": [chunk.delta for chunk in model.stream_complete(PROMPT)],
        "refusal": refusal(model),
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
