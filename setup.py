"""Builds the C++ libraries next to the Python packages. They have a plain C ABI, so one wheel serves all Pythons."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from wheel.bdist_wheel import bdist_wheel

X86 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
LIBRARIES = [
    # (package, library name, sources in the package's folder, extra flags)
]


class NativeLibrary(Extension):
    def __init__(self, package: str, name: str, sources: list[str], flags: list[str]) -> None:
        super().__init__(f"{package}.{name}", sources, optional=True)
        self.flags = flags


class BuildNative(build_ext):
    """Plain g++/clang++ calls: a missing compiler leaves the Python fallbacks, with one sentence saying so."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: NativeLibrary) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        command = ["g++", "-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", *ext.flags, *ext.sources, "-o", str(target)]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"lmprog: {target.name} was not built ({error}); install g++ for the fast path.", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return bool(LIBRARIES)


setup(
    ext_modules=[NativeLibrary(*entry) for entry in LIBRARIES],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
    distclass=NativeDistribution,
)
