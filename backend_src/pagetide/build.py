"""From settings and a version directory to an engine and its tokenizer."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from pagetide import tokenizer, weights
from pagetide.batch import sizes
from pagetide.block_pool import BlockPool, chain_root
from pagetide.block_tables import blocks_for
from pagetide.config import BLOCK_SIZE, Settings, SettingsError
from pagetide.engine import Engine
from pagetide.faults import NO_FAULTS, Faults
from pagetide.graphs import CudaCapture, DecodeGraphs
from pagetide.host_memory import HostMemory, check_fits_in_memory
from pagetide.kv_pool import HostTier, NoTier
from pagetide.layers import FixedLinear, Linear
from pagetide.limits import Limits
from pagetide.loops import OverlappedLoop, PlainLoop
from pagetide.model import Decoder
from pagetide.probe import check_target
from pagetide.runner import Runner, kv_block_bytes
from pagetide.scheduler import Scheduler
from pagetide.stats import StepStats
from pagetide.step_thread import StepThread
from pagetide.tenant_policy import parse_policies
from pagetide.tokenizer import Tokenizer
from pagetide_kernels import ops

log = logging.getLogger(__name__)

_DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float32": torch.float32}
_KV_DTYPES = {"auto": None, "fp8_e4m3": torch.float8_e4m3fn, "int8": torch.int8}


@dataclass(frozen=True, slots=True)
class Built:
    """A model ready to serve. The engine is not started yet."""

    engine: Engine
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    vocab_size: int
    max_responses_per_s: int


def build(
    settings: Settings,
    directory: Path,
    on_step: Callable[[StepStats], None],
    on_failure: Callable[[], None] = lambda: None,
    faults: Faults = NO_FAULTS,
) -> Built:
    """Load what `settings.model` names, claim the KV cache, and put the engine around it.

    `faults` are planted into it. Raises SettingsError or WeightsError, in one line that names the setting
    or the file.
    """
    torch.set_num_threads(settings.num_threads or _available_cores())
    path = resolve(settings.model, directory)
    text = faults.within_methods(tokenizer.load(path), apply_chat_template="template", decode="detokenizer")
    model = _model(settings, path)
    _check_memory(settings, model.device)
    runner = _runner(settings, model)
    if settings.target_itl_ms is not None:
        check_target(settings.target_itl_ms, runner)
    engine = _engine(settings, model, runner, faults, on_step, on_failure)
    return Built(
        engine,
        text,
        model.config.eos_token_ids | text.eos_token_ids,
        model.config.vocab_size,
        settings.max_responses_per_s or _response_rate(model.device),
    )


def resolve(reference: str, directory: Path) -> Path:
    """A path, relative to `directory` unless absolute, or `package:file` for a file in a Python package.

    Raises SettingsError when the package is not installed or does not hold the file.
    """
    package, colon, file = reference.partition(":")
    if not colon:
        return directory / reference
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise SettingsError(f"model is {reference!r}, but the package {package!r} is not installed")
    path = Path(places[0]) / file
    if not path.exists():
        raise SettingsError(f"model is {reference!r}, but the package {package!r} has no {file!r}")
    return path


def device_of(settings: Settings) -> torch.device:
    """The device to run on; `auto` is the GPU where there is one. Raises SettingsError."""
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise SettingsError("device is 'cuda', but torch finds no GPU; set device to 'cpu'")
    wants_gpu = settings.device == "cuda" or (settings.device == "auto" and has_gpu)
    return torch.device("cuda" if wants_gpu else "cpu")


def _model(settings: Settings, path: Path) -> Decoder:
    device = device_of(settings)
    runs_cuda = _runs_cuda(settings, device)
    dtype, kv_dtype = _DTYPES[settings.dtype], _KV_DTYPES[settings.kv_cache_dtype]
    if kv_dtype is not None and runs_cuda is (kv_dtype is torch.int8):
        place, other, known = ("CPU", "GPU", "fp8_e4m3") if runs_cuda else ("GPU", "CPU", "int8")
        raise SettingsError(
            f"kv_cache_dtype is {settings.kv_cache_dtype!r}, which needs a {place}; "
            f"on a {other} set it to 'auto' or {known!r}"
        )
    if runs_cuda and dtype is torch.float32:
        raise SettingsError("dtype is 'float32'; the CUDA kernels compute in 'bfloat16'")
    quantization = None if settings.quantization == "none" else settings.quantization
    if not runs_cuda:
        return weights.load(path, dtype=dtype, kv_dtype=kv_dtype, device=device, quantization=quantization)
    if quantization is not None:
        raise SettingsError(
            f"quantization is {quantization!r}, which needs device 'cpu'; on a GPU set it to 'none'"
        )
    linear = FixedLinear if settings.deterministic else Linear
    model = weights.load(path, dtype=torch.bfloat16, kv_dtype=kv_dtype, device=device, make_linear=linear)
    family = model.config
    if problem := ops.head_problem(family.head_dim, family.num_heads // family.num_kv_heads):
        raise SettingsError(f"device is {settings.device!r}, but {path} has {problem}")
    return model


def _engine(
    settings: Settings,
    model: Decoder,
    runner: Runner,
    faults: Faults,
    on_step: Callable[[StepStats], None],
    on_failure: Callable[[], None],
) -> Engine:
    is_cpu = model.device.type == "cpu"
    overlaps = not is_cpu if settings.overlap is None else settings.overlap
    steps = StepThread(runner) if overlaps and is_cpu else runner
    return Engine(
        _scheduler(settings, model, runner.kv_caches, steps.fence),
        faults.within_methods(steps, **{"launch" if overlaps else "run": "step"}),
        settings.max_waiting,
        faults.within("loop", on_step),
        on_failure=on_failure,
        max_waiting_tokens=settings.max_waiting_tokens,
        loop=OverlappedLoop if overlaps else PlainLoop,
    )


def _runs_cuda(settings: Settings, device: torch.device) -> bool:
    return device.type == "cuda" or settings.device == "sim"


def _scheduler(
    settings: Settings, model: Decoder, kv_caches: list[torch.Tensor], fence: Callable[[], Callable[[], None]]
) -> Scheduler:
    pool = BlockPool(_num_blocks(settings, model))
    root = partial(chain_root, model.content_id) if settings.prefix_cache else None
    num_slots = settings.host_cache_bytes // kv_block_bytes(model)
    tier = HostTier(pool, num_slots, HostMemory(kv_caches, num_slots, fence)) if num_slots else NoTier()
    policies = parse_policies(settings.tenants)
    scheduler = Scheduler(pool, _limits(settings, model), root, policies=policies, tier=tier)
    if settings.max_model_len is not None and scheduler.longest < scheduler.limits.max_model_len:
        raise SettingsError(
            f"kv_cache_bytes is {settings.kv_cache_bytes}, which holds {scheduler.longest} tokens; "
            f"one request of max_model_len ({scheduler.limits.max_model_len}) needs more"
        )
    log.info("%d KV blocks of %d tokens; longest request %d", pool.num_blocks, BLOCK_SIZE, scheduler.longest)
    return scheduler


def _check_memory(settings: Settings, device: torch.device) -> None:
    sizes = {"host_cache_bytes": settings.host_cache_bytes}
    if device.type == "cpu":
        sizes["kv_cache_bytes"] = settings.kv_cache_bytes
    check_fits_in_memory(**sizes)


def _limits(settings: Settings, model: Decoder) -> Limits:
    return Limits(
        settings.max_step_tokens,
        settings.max_running,
        min(settings.max_model_len or model.config.max_model_len, model.config.max_model_len),
        max_preemptions=settings.max_preemptions,
        ageing_s=settings.priority_ageing_s,
        target_itl_s=None if settings.target_itl_ms is None else settings.target_itl_ms / 1e3,
        offline=settings.offline,
    )


def _runner(settings: Settings, model: Decoder) -> Runner:
    kernels = ops.simulated_cuda if settings.device == "sim" else nullcontext
    runner = Runner(model, _num_blocks(settings, model), kernels, _most_queries(settings, model))
    most_rows = min(settings.max_graph_rows, settings.max_running)
    if model.device.type == "cuda" and most_rows and os.environ.get("PAGETIDE_DEBUG") != "1":
        blocks = min(blocks_for(_limits(settings, model).max_model_len), _num_blocks(settings, model))
        runner.graphs = DecodeGraphs(model, runner.kv_caches, sizes(most_rows), blocks, CudaCapture())
    return runner


def _most_queries(settings: Settings, model: Decoder) -> int:
    """The CPU's kernels give a query the same bits in any chunk; those of a GPU need it short for that."""
    if not settings.deterministic or not _runs_cuda(settings, model.device):
        return 0
    return ops.most_queries_alike(model.config.num_heads // model.config.num_kv_heads)


def _num_blocks(settings: Settings, model: Decoder) -> int:
    size, block_size = settings.kv_cache_bytes, kv_block_bytes(model)
    if size < block_size:
        raise SettingsError(f"kv_cache_bytes is {size}; one block of this model takes {block_size} bytes")
    return size // block_size


def _response_rate(device: torch.device) -> int:
    """On a CPU a response takes some 0.3 ms from the cores that compute; 80 a core leave them 97.5 %."""
    return 80 * torch.get_num_threads() if device.type == "cpu" else 10_000


def _available_cores() -> int:
    return len(os.sched_getaffinity(0))
