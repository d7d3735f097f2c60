"""Every kernel in every form it is launched in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pagetide_kernels.attention_plan import Decode, Form, Prefill
from pagetide_kernels.device_ops import PROGRAMS
from pagetide_kernels.device_signatures import CACHES, ELEMENTS, HEAD_DIMS
from pagetide_kernels.launch import Kernel


@dataclass(frozen=True)
class Build:
    """A kernel with what a launch of it takes: threads, and dynamic shared memory in bytes, a block."""

    kernel: Kernel
    threads: int
    shared_bytes: int = 0


def forms() -> Iterator[Form]:
    """Each head size with each pair of formats that goes together."""
    for head_dim in HEAD_DIMS:
        for element in ELEMENTS.values():
            yield from (
                Form(head_dim, element, cache) for cache in CACHES.values() if cache in (element, "e4m3")
            )


def attention_builds() -> Iterator[Build]:
    for form in forms():
        for plan in (Decode(form), Prefill(form)):
            yield Build(plan.kernel, plan.threads, plan.shared_bytes)


def other_builds(head_dim: int = 64) -> Iterator[Build]:
    """The kernels bound by memory, in bf16; their cost does not depend on the format."""
    defines = {"HEAD_DIM": str(head_dim), "ELEMENT": "bf16", "CACHE": "bf16"}
    for program in PROGRAMS:
        yield Build(program.kernel(defines), program.threads)


def all_builds() -> Iterator[Build]:
    yield from attention_builds()
    yield from other_builds()
