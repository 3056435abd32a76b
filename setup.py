"""Builds the C++ libraries next to the Python packages. They have a plain C ABI, so one wheel serves all Pythons."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from wheel.bdist_wheel import bdist_wheel

AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"]
AVX512_BF16 = [*AVX512, "-mavx512bf16", "-mavx512vnni"]
# Contraction off: a product and a sum must round the same way in every instantiation of a kernel (batch invariance).
DECODER = ["-ffp-contract=off", "-fno-math-errno", "-fopenmp"]
CPU_KERNELS = ["decoder.cpp", "attention_plan.cpp", "sampling.cpp"]
CONSTRAINT_CORE = [
    *("nodes", "derivatives", "sealing", "shortest", "texts"),
    *("content_hash", "trie", "masks", "lexemes", "api"),
]
LIBRARIES = [
    # (package, library name, sources in the package's folder, extra flags)
    ("lmprog_kernels.cpu", "_decoder_avx2", CPU_KERNELS, [*DECODER, *AVX2]),
    ("lmprog_kernels.cpu", "_decoder_avx512", CPU_KERNELS, [*DECODER, *AVX512]),
    ("lmprog_kernels.cpu", "_decoder_avx512_bf16", CPU_KERNELS, [*DECODER, *AVX512_BF16]),
    ("lmprog_runtime.constraint.core", "_core", [f"{name}.cpp" for name in CONSTRAINT_CORE], []),
]


class NativeLibrary(Extension):
    """One shared library from its package's folder; rebuilt when a source or any header there has changed."""

    def __init__(self, package: str, name: str, sources: list[str], flags: list[str]) -> None:
        top, *rest = package.split(".")
        folder = Path("kernels" if top == "lmprog_kernels" else ".", top, *rest)
        headers = sorted(str(path) for path in Path(__file__).parent.joinpath(folder).glob("*.h"))
        super().__init__(
            f"{package}.{name}", [str(folder / source) for source in sources], depends=headers, optional=True
        )
        self.flags = flags


class BuildNative(build_ext):
    """Plain g++ calls: a missing compiler leaves the Python fallbacks, with one sentence saying so."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: NativeLibrary) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        if not self.force and _is_newer(target, [*ext.sources, *ext.depends, __file__]):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        command = ["g++", "-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", *ext.flags, *ext.sources]
        made = target.with_suffix(".so.new")
        try:
            subprocess.run([*command, "-o", str(made)], check=True)
            made.replace(target)  # a process that has the old one mapped keeps it; writing into it would crash that
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"lmprog: {target.name} was not built ({error}); install g++ for the fast path.", file=sys.stderr)


def _is_newer(target: Path, sources: list[str]) -> bool:
    return target.exists() and all(Path(source).stat().st_mtime < target.stat().st_mtime for source in sources)


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return bool(LIBRARIES)


IS_X86 = platform.machine() in ("x86_64", "AMD64")

setup(
    ext_modules=[NativeLibrary(*entry) for entry in LIBRARIES if IS_X86 or "-mavx2" not in entry[3]],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
    distclass=NativeDistribution,
)
