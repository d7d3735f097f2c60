"""LangChain's TritonTensorRTLLM, run by the Python that has it: HOST:PORT → what it got, as JSON."""

from __future__ import annotations

import json
import sys

from langchain_nvidia_trt import TritonTensorRTLLM

PROMPT = "The capital of France is"


def main(url: str) -> None:
    model = TritonTensorRTLLM(server_url=url, model_name="ensemble_uint32", tokens=24)
    print(json.dumps({"invoke": model.invoke(PROMPT), "stream": list(model.stream(PROMPT))}))


if __name__ == "__main__":
    main(sys.argv[1])
