"""Dependencies point one way (docs/design.md, "The tree"), and code stays small enough to read.

Imports are read from the source, those inside functions and `if TYPE_CHECKING` included, and followed
through every module of the project.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = ("backend_src", "kernels", "client", ".")
PACKAGES = ("pagetide", "pagetide_kernels", "pagetide_client", "pagetide_server", "loadtest")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40

# Within a chain, no module may reach one that stands in a later group.
CHAINS = (
    (
        {"pagetide.logit_edits", "pagetide.constraint"},
        {"pagetide.config", "pagetide.token_rules", "pagetide.request", "pagetide.step"},
        {"pagetide.block_pool", "pagetide.drafter", "pagetide.detokenizer"},
        {"pagetide.scheduler"},
        {"pagetide.loops"},
        {"pagetide.engine"},
        {"pagetide.triton_adapter"},
    ),
    (
        {"pagetide_kernels"},
        {"pagetide.layers"},
        {"pagetide.model"},
        {
            "pagetide.weights",
            "pagetide.logits",
            "pagetide.logprobs",
            "pagetide.grammar_masks",
            "pagetide.sampler",
            "pagetide.graphs",
        },
        {"pagetide.runner"},
        {"pagetide.step_thread"},
        {"pagetide.engine"},
        {"pagetide.triton_adapter"},
    ),
    ({"pagetide.kv_pool", "pagetide.metrics"}, {"pagetide.engine"}, {"pagetide.triton_adapter"}),
    ({"pagetide.tenants"}, {"pagetide.backlog"}, {"pagetide.engine"}),
    (
        {"pagetide.model_io"},
        {"pagetide.parse"},
        {"pagetide.answer"},
        {"pagetide.samples", "pagetide.senders"},
        {"pagetide.intake"},
        {"pagetide.triton_adapter"},
    ),
    (
        {"pagetide.constraint", "pagetide.grammar"},
        {"pagetide.grammar_job"},
        {"pagetide.grammar_matcher", "pagetide.grammar_process"},
        {"pagetide.grammar_compiler"},
        {"pagetide.triton_adapter"},
    ),
)
NEVER_REACHES = (
    ("pagetide.scheduler", {"torch", "xgrammar", "pagetide.runner", "pagetide_kernels"}),
    ("pagetide.runner", {"pagetide.scheduler"}),
    ("pagetide.engine", {"torch", "xgrammar"}),
    ("pagetide.batch", {"torch"}),
    ("pagetide.transfer", {"pagetide.request", "pagetide_kernels"}),
    ("pagetide.grammar_worker", {"torch", "xgrammar", "pagetide.request"}),
    ("pagetide.triton_adapter", {"pagetide.grammar_worker", "pagetide.grammar_lean"}),
    ("pagetide.layers", {"pagetide.request"}),
    ("pagetide.model", {"pagetide.request"}),
    ("pagetide_kernels", {"pagetide"}),
    ("pagetide_client", {"pagetide", "pagetide_kernels", "torch"}),
    ("loadtest", {"pagetide", "pagetide_kernels", "torch"}),
    ("pagetide.front_adapter", {"torch", "pagetide_kernels", "pagetide.engine", "pagetide.triton_adapter"}),
)
ADAPTERS = {"pagetide.triton_adapter", "pagetide.front_adapter"}


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    found = {}
    for root in SOURCE_ROOTS:
        for package in PACKAGES:
            for path in (ROOT / root / package).rglob("*.py"):
                parts = path.relative_to(ROOT / root).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """What a module imports: project modules by their full name, others by their top-level name."""
    tree = ast.parse(modules()[module].read_text())
    return frozenset(name for node in ast.walk(tree) for name in _imported(node, module))


def _imported(node: ast.AST, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (_resolve(alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, module)
        yield from {_resolve(f"{base}.{alias.name}") for alias in node.names}


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    is_package = modules()[module].name == "__init__.py"
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, node.module] if node.module else kept)


def _resolve(name: str) -> str:
    """`pagetide.step.StepPlan` is module `pagetide.step`; `torch.nn` is `torch`."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in modules():
            return ".".join(parts[:end])
    return parts[0]


def reached(module: str) -> dict[str, str]:
    """Everything `module` imports, directly or not, with the path that leads there."""
    paths: dict[str, str] = {}
    pending = [(module, module)]
    while pending:
        current, path = pending.pop()
        for name in imports(current) if current in modules() else ():
            if name not in paths:
                paths[name] = f"{path} -> {name}"
                pending.append((name, paths[name]))
    return paths


def within(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def violations(source: set[str], target: set[str]) -> list[str]:
    starts = [module for module in modules() if within(module, source)]
    return sorted({path for start in starts for name, path in reached(start).items() if within(name, target)})


@pytest.mark.parametrize(
    "chain", CHAINS, ids=["scheduling", "computing", "engine parts", "queue", "clients", "grammars"]
)
def test_dependencies_point_one_way(chain: tuple[set[str], ...]) -> None:
    wrong = [
        path
        for i, lower in enumerate(chain)
        for higher in chain[i + 1 :]
        for path in violations(lower, higher)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("source", "target"), NEVER_REACHES, ids=[source for source, _ in NEVER_REACHES])
def test_a_module_never_reaches_what_it_must_not_know(source: str, target: set[str]) -> None:
    wrong = violations({source}, target)
    assert not wrong, "\n".join(wrong)


def test_no_import_cycle_within_a_package() -> None:
    wrong = [reached(module)[module] for module in modules() if module in reached(module)]
    assert not wrong, "\n".join(wrong)


def test_only_the_adapters_and_their_log_import_tritons_python_module() -> None:
    users = {module for module in modules() if "triton_python_backend_utils" in imports(module)}
    assert users <= ADAPTERS | {"pagetide.triton_log"}, f"{users} import triton_python_backend_utils"
    users = {module for module in modules() if "pagetide.triton_log" in imports(module)}
    assert users <= ADAPTERS, f"{users} import pagetide.triton_log"


def test_only_the_kernels_know_pointers() -> None:
    others = [module for module in modules() if not within(module, {"pagetide_kernels"})]
    wrong = [f"{module} imports {name}" for module in others for name in imports(module) & {"ctypes", "cuda"}]
    wrong += [f"{module} uses data_ptr" for module in others if _uses_data_ptr(modules()[module])]
    assert not wrong, "\n".join(wrong)


def _uses_data_ptr(path: Path) -> bool:
    nodes = ast.walk(ast.parse(path.read_text()))
    return any(isinstance(node, ast.Attribute) and node.attr == "data_ptr" for node in nodes)


def test_a_model_py_only_names_an_adapter() -> None:
    for path in ROOT.glob("model_repository/*/*/model.py"):
        assert len(path.read_text().splitlines()) < 20, f"{path} is not under 20 lines"
        statements = ast.parse(path.read_text()).body
        imported = {name for node in statements for name in _imported(node, path.stem)}
        named = imported - {"__future__"}
        assert len(named) == 1, f"{path} imports {imported}"
        assert named <= ADAPTERS, f"{path} imports {imported}"


def _code_files() -> list[Path]:
    folders = ("backend_src", "kernels", "client", "loadtest", "benchmarks", "deploy", "model_repository")
    suffixes = {".py", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in suffixes)


def test_no_code_file_is_longer_than_the_limit() -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in _code_files()}
    wrong = [f"{path}: {lines} lines" for path, lines in lengths.items() if lines > MAX_FILE_LINES]
    assert not wrong, "\n".join(wrong)


def test_no_python_function_is_longer_than_the_limit() -> None:
    files = [path for path in _code_files() if path.suffix == ".py"]
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {_code_lines(node)} lines"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and _code_lines(node) > MAX_FUNCTION_LINES
    ]
    assert not wrong, "\n".join(wrong)


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring: a contract may be as long as it must."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines
