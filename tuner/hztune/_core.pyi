"""The compiled cffi module over the core's table of parameters (built by tuner/CMakeLists.txt)."""

from typing import Any

ffi: Any
lib: Any
