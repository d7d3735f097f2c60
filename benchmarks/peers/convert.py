"""The packaged GGUF weights as a bfloat16 checkpoint that every peer reads. Runs with transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

source, target = Path(sys.argv[1]), Path(sys.argv[2])
unpacked = GgufConfig(gguf_file=source.name, dequantize=True)
AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
AutoModelForCausalLM.from_pretrained(
    source.parent, gguf_file=source.name, dtype=torch.bfloat16, quantization_config=unpacked
).to(torch.bfloat16).save_pretrained(target)
