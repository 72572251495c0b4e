"""Builds the extensions, `transport.ucx._ucx` and `telemetry._pen`, and chooses how editable installs are found.

All else about the package is in setup.cfg.

They are for the stable ABI: one wheel serves Python 3.11 and every later one. They need a C compiler and
Python's headers, and no header or library of UCX, which is loaded while the program runs. Where there is no compiler
the installation goes on without them: channels then use tcp, which `monarch-hpc doctor` says, and Python writes the
records of calls, which takes a microsecond of each more.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel
from setuptools.errors import BaseError, CCompilerError

FOLDER = "monarch_hpc/transport/ucx"
# Errors in gcc 14, and warnings before, which pip does not show.
STRICT = [
    f"-Werror={name}" for name in ("incompatible-pointer-types", "int-conversion", "implicit-function-declaration")
]
HEADERS = [f"{FOLDER}/{name}" for name in ("abi.h", "core.h", "environ.h", "library.h")]


class BuildUnlessNoCompiler(build_ext):
    """Builds extensions; skips them where nothing can be compiled. An error in our own C is an error."""

    def run(self) -> None:
        if self.extensions and (obstacle := self._find_obstacle()):
            print(f"monarch-hpc: built without UCX and the compiled pen: {obstacle}", file=sys.stderr)
            self.extensions = []
        super().run()

    def _find_obstacle(self) -> str:
        """Say why not even an empty extension can be compiled; nothing when it can."""
        # A command of its own: build_ext has no compiler before it runs.
        probe = self.distribution.get_command_obj("config")
        probe.ensure_finalized()
        probe._check_compiler()
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text("#include <Python.h>\n")
            try:
                probe.compiler.compile([str(source)], output_dir=folder, include_dirs=self.include_dirs)
            except (BaseError, CCompilerError, OSError):
                return f"{probe.compiler.compiler[0]} cannot compile against Python.h (on Debian: gcc, python3-dev)"
        return ""


class EditableByPath(editable_wheel):
    """Adds the checkout to `sys.path`, as its last entry.

    Because setup.cfg maps three folders into the package, setuptools would install a finder instead, which every start
    of Python in that environment loads, with much of the standard library: 25 to 45 ms. In a checkout,
    `core.storage.assets` finds the folders without it.
    """

    def initialize_options(self) -> None:
        mapped = self.distribution.package_dir
        self.distribution.packages = [name for name in self.distribution.packages if name not in mapped]
        self.distribution.package_dir = {"": "."}
        super().initialize_options()


setup(
    ext_modules=[
        Extension(
            "monarch_hpc.transport.ucx._ucx",
            [f"{FOLDER}/_ucx.pyx"],
            depends=HEADERS,
            include_dirs=[FOLDER],
            # 0x030B: Python 3.11, as in `python_requires` and in the wheel's tag below.
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("_GNU_SOURCE", None)],
            extra_compile_args=["-std=gnu11", "-fvisibility=hidden", *STRICT],
            # Both are in libc since glibc 2.34; older ones keep them apart.
            libraries=["dl", "pthread"],
            py_limited_api=True,
        ),
        Extension(
            "monarch_hpc.telemetry._pen",
            ["monarch_hpc/telemetry/_pen.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000"), ("_GNU_SOURCE", None)],
            extra_compile_args=["-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden", *STRICT],
            py_limited_api=True,
        ),
    ],
    cmdclass={"build_ext": BuildUnlessNoCompiler, "editable_wheel": EditableByPath},
    options={
        "bdist_wheel": {"py_limited_api": "cp311"},
        # The generated C goes where the object files go, not beside the source.
        "build_ext": {"cython_c_in_temp": True},
    },
)
