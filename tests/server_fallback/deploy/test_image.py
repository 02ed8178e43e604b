"""The image of the Containerfile: built, started with a root file system that is read-only, asked, and ended.

podman or docker builds and runs it. If the registry of the base images does not answer, stand-ins are used, which are
not the real ones: a minimal Debian 12 with its own Python, made by debootstrap, and this machine's Node.js. As in the
real ones, libraries are missing that complete systems have. pip and npm in them know this machine's indexes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import ROOT

pytestmark = pytest.mark.exhaustive

DEPLOY = ROOT / "server_fallback/deploy"
CONTAINERFILE = DEPLOY / "Containerfile"
RELEASE = "bookworm"
# Of the builder's own store, so that an image of the user with this name stays.
IMAGE, CONTEXT, STAND_INS = "localhost/nearfar-tested", "localhost/nearfar-context", "localhost/nearfar-stand-in"
PULL_SECONDS, STEP_SECONDS, BUILD_SECONDS, START_SECONDS = 120, 300, 1200, 600
# The sources that a wheel is built from.
MAX_CONTEXT_MB = 40
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
# As compose.yaml runs it, without a network. Not even the folders are writable that podman adds by default.
HARDENED = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none")
TMP = "--tmpfs=/tmp:size=2g,mode=1777,exec"
# Where they mount files and folders.
MADE_BY_BUILDERS = {
    *("/etc", "/etc/nearfar", "/etc/nearfar/nearfar.toml", "/cache", "/tmp", "/run", "/run/.containerenv"),
    *("/etc/mtab", "/run/secrets"),
}
# A process in the container for each question would take more time than the start.
READY = f"""
import time, urllib.request as r
for attempt in range({START_SECONDS}):
    try:
        r.urlopen("http://127.0.0.1:8000/health/ready", timeout=60)
        break
    except OSError:
        time.sleep(1)
else:
    raise SystemExit("it is not ready")
"""
ASK = """
import json, sys, urllib.request as r
body = sys.stdin.buffer.read()
sent = r.Request("http://127.0.0.1:8000/v1/chat/completions", body, {"content-type": "application/json"})
print(json.load(r.urlopen(sent, timeout=120))["choices"][0]["message"]["content"])
"""
QUESTION = {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": "what is 27 + 58?"}]}
SCHEMA = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Builder:
    """``command``: podman with a store of its own, or docker."""

    command: tuple[str, ...]

    @property
    def is_podman(self) -> bool:
        return self.command[0].endswith("podman")

    def run(self, *arguments: str | Path, seconds: float = STEP_SECONDS, given: bytes = b"") -> str:
        """What a command that must succeed prints on its standard output."""
        done = subprocess.run(
            [*self.command, *arguments], input=given, capture_output=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout.decode()[-8000:]}\n{done.stderr.decode()[-8000:]}"
        return done.stdout.decode()

    def succeeds(self, *arguments: str, seconds: float = STEP_SECONDS) -> bool:
        done = subprocess.run([*self.command, *arguments], capture_output=True, timeout=seconds, check=False)
        return done.returncode == 0

    def build(self, file: Path, name: str, *arguments: str) -> None:
        # Images in OCI's own form have no health check.
        form = ("--format=docker",) if self.is_podman else ()
        self.run("build", *form, "--network=host", *arguments, f"--file={file}", f"--tag={name}", ROOT,
                 seconds=BUILD_SECONDS)  # fmt: skip

    def inspected(self, what: str, name: str) -> dict[str, Any]:
        (found,) = json.loads(self.run(what, "inspect", name))
        return dict(found)


def not_built(reason: str) -> NoReturn:
    pytest.skip(f"the image was not built: {reason}")


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    """One that runs containers. What it has built and pulled for these tests is removed at the end."""
    docker, podman = shutil.which("docker"), shutil.which("podman")
    if podman is not None and os.geteuid() == 0:
        # A short path, because sockets are below it.
        folder = Path(tempfile.mkdtemp(prefix="nf"))
        own = Builder((podman, f"--root={folder}/store", f"--runroot={folder}/run"))
        try:
            yield own
        finally:
            # podman mounts it on itself.
            subprocess.run(["umount", f"{folder}/store/overlay"], capture_output=True, check=False)
            shutil.rmtree(folder)
    elif docker is not None and Builder((docker,)).succeeds("info"):
        own = Builder((docker,))
        try:
            yield own
        finally:
            for name in (IMAGE, CONTEXT, *stand_in_names()):
                own.succeeds("rmi", "--force", name)
    else:
        not_built("neither podman, as root, nor a docker whose daemon answers is here (Debian: apt-get install podman)")


def stand_in_names() -> tuple[str, str]:
    """Those that the Containerfile gives to the images of Node.js and Python."""
    return f"{STAND_INS}/node:20-{RELEASE}-slim", f"{STAND_INS}/python:3.11-slim-{RELEASE}"


@pytest.fixture(scope="module")
def base_images(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The arguments with which the base images are found: none, if their registry answers."""
    registry, given = "docker.io/library", tuple[str, ...]()
    python = f"python:3.11-slim-{RELEASE}"
    try:
        answers = builder.succeeds("pull", f"{registry}/{python}", seconds=PULL_SECONDS)
    except subprocess.TimeoutExpired:
        answers = False
    if not answers:
        make_stand_ins(builder, tmp_path_factory.mktemp("stand_ins"))
        registry, given = STAND_INS, (f"--build-arg=REGISTRY={STAND_INS}",)
    once = subprocess.run(
        [*builder.command, "run", "--rm", "--network=none", f"{registry}/{python}", "true"],
        capture_output=True, text=True, timeout=STEP_SECONDS, check=False,
    )  # fmt: skip
    if once.returncode != 0:
        not_built(f"{builder.command[0]} starts no container here: {once.stderr[-500:]}")
    return given


def make_stand_ins(builder: Builder, folder: Path) -> None:
    debootstrap, node, npm = shutil.which("debootstrap"), shutil.which("node"), shutil.which("npm")
    if debootstrap is None or node is None or npm is None or os.geteuid() != 0:
        not_built("the registry of the base images does not answer, and stand-ins need root, Node.js with npm and "
                  "debootstrap (Debian: apt-get install debootstrap)")  # fmt: skip
    names = stand_in_names()
    root = folder / "python"
    try:
        included = "--include=ca-certificates,python-is-python3,python3-pip,python3-venv"
        command = [debootstrap, "--variant=minbase", included, RELEASE, str(root)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        if done.returncode != 0:
            not_built(f"the registry of the base images does not answer, and debootstrap failed: {done.stdout[-500:]}")
        shutil.rmtree(root / "var/cache/apt")
        shutil.copy(AUTHORITIES, root / AUTHORITIES.relative_to("/"))
        add_image(builder, names[1], {root: "."}, indexes())
    finally:
        shutil.rmtree(root, ignore_errors=True)
    add_image(builder, names[0], {
        Path(node).resolve(): "usr/local/bin/node",
        Path(npm).resolve().parents[1]: "usr/local/lib/node_modules/npm",
    })  # fmt: skip


def indexes() -> Sequence[str]:
    """This machine's indexes of pip and npm, and whom they trust, as variables of an image."""
    asked = {
        "PIP_INDEX_URL": (sys.executable, "-m", "pip", "config", "get", "global.index-url"),
        "NPM_CONFIG_REGISTRY": ("npm", "config", "get", "registry"),
    }
    found = {"PIP_CERT": str(AUTHORITIES), "NODE_EXTRA_CA_CERTS": str(AUTHORITIES)}
    for name, command in asked.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip():
            found[name] = done.stdout.strip()
    return [f"--change=ENV {name}={value}" for name, value in found.items()]


def add_image(builder: Builder, name: str, files: dict[Path, str], changes: Sequence[str] = ()) -> None:
    """Make an image of files and folders, by their places in it."""
    with tempfile.TemporaryFile() as written:
        with tarfile.open(fileobj=written, mode="w") as archive:
            for path, place in files.items():
                archive.add(path, place)
        written.seek(0)
        command = [*builder.command, "import", *changes, "-", name]
        subprocess.run(command, stdin=written, capture_output=True, timeout=STEP_SECONDS, check=True)


@pytest.fixture(scope="module")
def image(builder: Builder, base_images: tuple[str, ...]) -> str:
    builder.build(CONTAINERFILE, IMAGE, *base_images)
    return IMAGE


def test_only_sources_reach_the_builder(builder: Builder, tmp_path: Path) -> None:
    for name in ("Containerfile", "Containerfile.dockerignore"):
        shutil.copy(DEPLOY / name, tmp_path)
    (tmp_path / "Containerfile").write_text("FROM scratch\nCOPY . .\n")
    builder.build(tmp_path / "Containerfile", CONTEXT)
    container = builder.run("create", CONTEXT, "none").strip()
    with tempfile.TemporaryFile() as written:
        subprocess.run([*builder.command, "export", container], stdout=written, timeout=STEP_SECONDS, check=True)
        written.seek(0)
        with tarfile.open(fileobj=written) as archive:
            sizes = {member.name: member.size for member in archive if member.isfile()}
    builder.run("rm", container)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    known = set(subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"))
    assert sizes.keys() <= known
    assert {"setup.py", "web/package-lock.json", ".packaging/web_page.py"} <= sizes.keys()
    assert sum(sizes.values()) < MAX_CONTEXT_MB * 1e6


@dataclass(frozen=True, slots=True)
class Container:
    builder: Builder
    name: str

    def execute(self, *command: str, given: bytes = b"") -> str:
        return self.builder.run("exec", "--interactive", self.name, *command, given=given)

    def wait(self) -> None:
        """Until it serves its model."""
        ready = self.builder.succeeds("exec", self.name, "python", "-c", READY, seconds=START_SECONDS + STEP_SECONDS)
        assert ready, self.builder.run("logs", self.name)

    @property
    def is_healthy(self) -> bool:
        """By the image's own check."""
        kind, *command = self.builder.inspected("container", self.name)["Config"]["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.builder.succeeds("exec", self.name, *command)

    def answer(self, **options: Any) -> str:
        return self.execute("python", "-c", ASK, given=json.dumps({**QUESTION, **options}).encode()).strip()

    def end(self) -> int:
        """Its exit code after the image's signal; 137 after that of `stop`, which follows if it goes on."""
        self.builder.run("stop", "-t", "60", self.name)
        return int(self.builder.inspected("container", self.name)["State"]["ExitCode"])


@pytest.fixture
def container(builder: Builder, image: str) -> Iterator[Container]:
    """It has begun to serve the demo model as `nearfar.toml` says, and compiles it."""
    podman = ("--read-only-tmpfs=false",) if builder.is_podman else ()
    config = f"--volume={DEPLOY}/nearfar.toml:/etc/nearfar/nearfar.toml:ro"
    name = builder.run("run", "--detach", *HARDENED, *podman, TMP, config, image).strip()
    yield Container(builder, name)
    builder.run("rm", "--force", "--volumes", name)


def test_the_image_serves_on_a_root_that_is_read_only_and_ends_cleanly(container: Container) -> None:
    container.wait()
    assert container.is_healthy
    assert container.answer() == "27 + 58 = 85"
    formed = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}
    assert list(json.loads(container.answer(response_format=formed))) == ["sum"]
    # Its first process, and with it the others, has no rights and no way to get some.
    status = dict(line.split(":\t", 1) for line in container.execute("cat", "/proc/1/status").splitlines())
    assert (status["Uid"].split(), status["NoNewPrivs"]) == (["10001"] * 4, "1")
    assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    for folder in ("/", "/opt/nearfar", "/etc/nearfar", "/var/tmp", "/run", "/source"):
        refused = container.builder.succeeds("exec", container.name, "touch", f"{folder}/new")
        assert not refused, folder
    assert container.execute("ls", "-A", "/dev/shm") == ""
    changed = {line[2:] for line in container.builder.run("diff", container.name).splitlines()}
    assert changed <= MADE_BY_BUILDERS
    assert container.end() == 0


def test_a_server_ends_with_a_signal_before_it_handles_any(container: Container) -> None:
    assert container.end() == 143


def test_the_image_has_what_its_extras_promise(builder: Builder, image: str) -> None:
    podman = ("--read-only-tmpfs=false",) if builder.is_podman else ()
    once = ("run", "--rm", *HARDENED, *podman, TMP)
    checked = "import cryptography, grpc, PIL, uvloop, nearfar.server_fallback.kserve"
    builder.run(*once, "--entrypoint=python", image, "-c", checked)
    assert "usage" in builder.run(*once, image, "gateway", "--help").lower()
