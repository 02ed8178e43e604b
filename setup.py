"""What pyproject.toml cannot state: a wheel contains xgrammar's library and the web page, which the build fetches and
builds. An editable install gets the library alone.
"""

import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent / ".packaging"))
from web_page import build_page
from xgrammar_library import install_library, pin


class BuildPython(build_py):
    def run(self) -> None:
        if not self.editable_mode:
            install_library()
            build_page()
            # setuptools would add the files of an earlier build to the wheel, such as chunks of an older page.
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class EditableWheel(editable_wheel):
    def run(self) -> None:
        # Not in BuildPython, because setuptools continues without its errors here.
        install_library()
        super().run()


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", pin().platform


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        """Whether the files belong into the folder of platform-specific packages."""
        return True


class SourceDistribution(sdist):
    def run(self) -> None:
        build_page()
        super().run()


setup(
    distclass=NativeDistribution,
    cmdclass={
        "build_py": BuildPython,
        "editable_wheel": EditableWheel,
        "bdist_wheel": PlatformWheel,
        "sdist": SourceDistribution,
    },
)
