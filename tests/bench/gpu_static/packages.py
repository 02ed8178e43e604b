"""The compilers, from packages of Debian unstable: Mesa's Vulkan drivers with the shims that stand in for GPUs, and
Tint, which translates WGSL for Chromium. Intel's shim is built from the source of Debian stable's Mesa.

apt's own tools fetch them with a configuration and a state of their own, and `dpkg -x` unpacks them into a folder.
Nothing is installed, and the machine's own apt remains as it is.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearfar.compiler.runtime.errors import OutputError, ToolError, Unavailable

from .intel_shim import NAME, build_intel_shim

# libvulkan-dev has Vulkan's C headers.
PACKAGES = ("mesa-vulkan-drivers", "mesa-drm-shim", "dawn-tools", "libvulkan-dev")
# What Mesa's source needs, without the packages that these depend on, which include Python.
FOR_SOURCE = ("libdrm-dev", "python3-mako", "python3-markupsafe")
# By the kind of package: those of programs, and those of sources.
RELEASES = (("", "unstable"), ("-src", "trixie"))
# The packages whose versions the statistics depend on.
COMPILERS = ("mesa-vulkan-drivers", "dawn-tools")
ARCHIVE = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TOOLS = ("apt-get", "dpkg", "dpkg-deb", "cc")
# The packages and Mesa's source, 170 MB, which unpacks to 290 MB, and the folder, 580 MB.
NEEDED_BYTES = 1200 << 20
LIBRARIES = "usr/lib/x86_64-linux-gnu"
SETUP_SECONDS = 420
COMPILER_SECONDS = 60
SOURCE = Path(__file__).with_name("statistics.c")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Compilers:
    """Unpacked packages, and the program that reads statistics. ``versions`` are those of COMPILERS."""

    root: Path
    program: Path
    versions: dict[str, str]

    @property
    def libraries(self) -> Path:
        return self.root / LIBRARIES

    def command(self, *command: Path | str, preload: str | None = None) -> list[str]:
        """A command line that runs a program with the folder's C library, which is newer than most machines'."""
        shim = [] if preload is None else ["--preload", str(self.libraries / preload)]
        loader = self.libraries / "ld-linux-x86-64.so.2"
        return [str(loader), "--library-path", str(self.libraries), *shim, *map(str, command)]


def prepare(folder: Path, progress: Progress) -> Compilers:
    """The compilers in a folder, which is filled first if it is not complete.

    Raises ToolError if the machine cannot run them or lacks a tool, Unavailable if the packages cannot be fetched
    now, and OutputError if the disk has too little space.
    """
    check_machine()
    root, versions = folder / "root", folder / "versions.json"
    if not versions.exists() or not (root / LIBRARIES / NAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        check_disk(folder)
        packages, source = fetch(folder, progress)
        found = unpack(packages, root, progress)
        progress("building Intel's shim from Mesa's source")
        shutil.copy(build_intel_shim(source, root, folder / "mesa"), root / LIBRARIES / NAME)
        for each in ("apt", "mesa"):
            shutil.rmtree(folder / each)
        versions.write_text(json.dumps(found))
    program = folder / "statistics"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        build(program, root)
    return Compilers(root, program, json.loads(versions.read_text()))


def check_machine() -> None:
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise ToolError(f"gpu-static: Debian's drivers are for Linux on x86-64, and this is {machine}")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise ToolError(f"gpu-static: {tool} is not installed; {', '.join(TOOLS)} are needed")
    if not KEYRING.exists():
        raise ToolError(f"gpu-static: {KEYRING} does not exist; install debian-archive-keyring")


def check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise OutputError(
            f"gpu-static: {folder} needs {NEEDED_BYTES >> 20} MB, and its disk has {free >> 20} MB; free some"
        )


def fetch(folder: Path, progress: Progress) -> tuple[list[Path], Path]:
    """Download the packages and all that they depend on, and Mesa's source. Returns their files."""
    apt = folder / "apt"
    shutil.rmtree(apt, ignore_errors=True)
    for each in ("state/lists/partial", "cache/archives/partial", "source"):
        (apt / each).mkdir(parents=True)
    (apt / "status").touch()
    lists = [f"deb{kind} [signed-by={KEYRING}] {ARCHIVE} {name} main\n" for kind, name in RELEASES]
    (apt / "sources.list").write_text("".join(lists))
    settings = {
        "APT::Architectures::": "amd64",
        "Dir::State": f"{apt}/state",
        "Dir::State::status": f"{apt}/status",
        "Dir::Cache": f"{apt}/cache",
        "Dir::Etc::sourcelist": f"{apt}/sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Install-Recommends": "false",
        # Without root's rights, apt cannot become its own user.
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        # Otherwise, `apt-get update` succeeds if it cannot reach the archive.
        "APT::Update::Error-Mode": "any",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "30",
    }
    command = ["apt-get", *(f"-o{name}={value}" for name, value in settings.items())]
    end = time.monotonic() + SETUP_SECONDS
    progress(f"reading the list of packages of {ARCHIVE}")
    for _ in lines([*command, "update"], end):
        pass
    archives = apt / "cache/archives"
    for arguments, place in (
        (("--yes", "--download-only", "install", *PACKAGES), archives),
        (("download", *FOR_SOURCE), archives),
        (("--download-only", "source", "mesa"), apt / "source"),
    ):
        for line in lines([*command, *arguments], end, place):
            if line.startswith("Get:"):
                progress(f"downloading {line.split(' ', 5)[-1].strip()}")
    (source,) = (apt / "source").glob("*.orig.tar.xz")
    return sorted(archives.glob("*.deb")), source


def lines(command: Sequence[str], end: float, folder: Path | None = None) -> Iterator[str]:
    """The lines that a command prints in ``folder``, which must end in time. Raises Unavailable if it fails."""
    last: list[str] = []
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        timer = threading.Timer(max(end - time.monotonic(), 0), process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-4:], line.strip()]
            yield line
        status = process.wait()
        timer.cancel()
    if status:
        what = f"did not end within {SETUP_SECONDS} seconds" if time.monotonic() > end else "failed"
        raise Unavailable(f"gpu-static: {command[0]} {what}; it downloads from {ARCHIVE}: {' '.join(last)}")


def unpack(packages: Sequence[Path], root: Path, progress: Progress) -> dict[str, str]:
    """Unpack all packages into a new folder. Returns the versions of the compilers."""
    unfinished = root.with_name("root.unfinished")
    for each in (root, unfinished):
        shutil.rmtree(each, ignore_errors=True)
    unfinished.mkdir()
    versions = {}
    for index, package in enumerate(packages):
        name, version = field_of(package, "Package"), field_of(package, "Version")
        progress(f"unpacking {index + 1} of {len(packages)}: {name} {version}")
        done = subprocess.run(["dpkg", "-x", package, unfinished], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OutputError(f"gpu-static: {package.name} cannot be unpacked: {done.stderr.strip()}")
        if name in COMPILERS:
            versions[name] = version
    unfinished.rename(root)
    return versions


def field_of(package: Path, field: str) -> str:
    return subprocess.run(["dpkg-deb", "-f", package, field], capture_output=True, text=True, check=True).stdout.strip()


def build(program: Path, root: Path) -> None:
    """Compile the program for this machine. Vulkan's headers are the folder's, and drivers are opened when it runs."""
    command = ["cc", "-std=c11", "-O1", "-I", str(root / "usr/include"), "-o", str(program), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILER_SECONDS, check=False)
    if done.returncode:
        raise ToolError(f"gpu-static: cc cannot compile {SOURCE.name}: {done.stderr.strip()}")


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
