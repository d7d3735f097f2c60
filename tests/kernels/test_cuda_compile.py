"""The compile gate: every kernel compiles for real GPUs, without one, and stays within its means."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="needs the cuda extra: NVRTC compiles without a GPU")

from pagetide_kernels import compile as compiler
from pagetide_kernels.attention_plan import Decode, Form, Prefill
from pagetide_kernels.builds import Build, attention_builds, other_builds
from pagetide_kernels.launch import Kernel

ARCHS = ("sm_80", "sm_89", "sm_90", "sm_100")
# Registers a thread, so that as many blocks fit a multiprocessor as shared memory allows (docs/kernels.md).
DECODE_BUDGET = {64: 128, 80: 168, 96: 168, 128: 255, 256: 255}
PREFILL_BUDGET = 255
SMALL_BUDGET = 40
LEAST_SHARED_LIMIT = 99 * 1024  # bytes a block may take on sm_86 and sm_89

KEY_FORMS = [
    Form(64, "bf16", "bf16"),
    Form(128, "bf16", "bf16"),
    Form(128, "bf16", "e4m3"),
    Form(256, "f16", "f16"),
]


def assert_within_means(build: Build, arch: str, budget: int) -> None:
    used = compiler.resources(build.kernel, arch)
    assert used.spill_bytes == 0, f"{build.kernel.label} spills {used.spill_bytes} bytes on {arch}"
    assert used.stack_bytes == 0, f"{build.kernel.label} keeps {used.stack_bytes} bytes on a stack on {arch}"
    assert 0 < used.registers <= budget, f"{build.kernel.label} takes {used.registers} registers on {arch}"
    assert used.static_shared_bytes + build.shared_bytes <= LEAST_SHARED_LIMIT


def budget(build: Build) -> int:
    head_dim = int(dict(build.kernel.defines)["HEAD_DIM"])
    return DECODE_BUDGET[head_dim] if "decode" in build.kernel.entry else PREFILL_BUDGET


@pytest.mark.parametrize("build", list(attention_builds()), ids=lambda build: build.kernel.label)
def test_attention_is_within_its_means_on_hopper(build):
    assert_within_means(build, "sm_90", budget(build))


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch != "sm_90"])
@pytest.mark.parametrize("form", KEY_FORMS, ids=lambda form: Decode(form).kernel.label)
def test_attention_is_within_its_means_elsewhere(form, arch):
    for plan in (Decode(form), Prefill(form)):
        build = Build(plan.kernel, plan.threads, plan.shared_bytes)
        assert_within_means(build, arch, 255)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_small_kernels_are_within_their_means(arch):
    for build in other_builds():
        assert_within_means(build, arch, SMALL_BUDGET)


@pytest.fixture(scope="session")
def instructions(tmp_path_factory: pytest.TempPathFactory):
    """instructions(kernel, arch) -> the SASS opcodes of a kernel."""
    tool = Path(sysconfig.get_paths()["purelib"], "nvidia", "cu13", "bin", "nvdisasm")
    if not tool.exists():
        pytest.skip("needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    folder = tmp_path_factory.mktemp("sass")

    def instructions(kernel: Kernel, arch: str) -> list[str]:
        cubin, _ = compiler.compile_cubin(kernel, arch)
        path = folder / "kernel.cubin"
        path.write_bytes(cubin)
        text = subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout
        return re.findall(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]+)", text)

    return instructions


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("form", KEY_FORMS[:3], ids=lambda form: Decode(form).kernel.label)
def test_attention_uses_tensor_cores_and_asynchronous_copies(instructions, form, arch):
    for plan in (Decode(form), Prefill(form)):
        opcodes = instructions(plan.kernel, arch)
        steps, columns = form.head_dim // 16, form.head_dim // 8
        row_tiles, blocks = (plan.row_tiles, 4) if isinstance(plan, Prefill) else (1, 1)
        products = row_tiles * blocks * (2 * steps + columns)
        assert sum(op.startswith("HMMA.16816.F32") for op in opcodes) == products
        for name in ("LDGSTS.E", "LDSM.16", "LDGDEPBAR"):
            assert any(op.startswith(name) for op in opcodes), f"{plan.kernel.label}: no {name}"
        assert not any(op.startswith(("LDL", "STL")) for op in opcodes), (
            f"{plan.kernel.label} uses local memory"
        )


def test_a_kernel_that_does_not_compile_says_where():
    with pytest.raises(compiler.CompileError, match=r"HEAD_DIM|attention_decode.cu|kv_tile.cuh"):
        compiler.compile_cubin(
            Kernel("attention_decode.cu", "paged_attention_decode", ()), "sm_90", cached=False
        )


def test_a_compiled_kernel_comes_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGETIDE_CACHE", str(tmp_path))
    compiler._disk_cache.cache_clear()
    kernel = next(other_builds()).kernel
    first, log = compiler.compile_cubin(kernel, "sm_90")
    again, cached_log = compiler.compile_cubin(kernel, "sm_90")
    compiler._disk_cache.cache_clear()
    assert log
    assert not cached_log
    assert first == again


def test_the_command_prints_a_line_for_each_kernel(monkeypatch, capsys):
    monkeypatch.setattr(compiler, "all_builds", lambda: list(other_builds())[:2])
    assert compiler.main(["--arch", "sm_80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("kernel for sm_80")
    assert lines[1].startswith("write_kv<64,bf16,bf16>")
    assert lines[1].split()[-1] == "0"
