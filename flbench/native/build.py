"""Compile a function once for this CPU, and load its machine code in later processes, which then need no numba.

Importing numba and its compiler takes more than a second; loading stored code takes a tenth, most of it for llvmlite.
The code is stored in the user's cache folder in files named by all that it depends on: the sources of this room, the
versions of numba and llvmlite, and the CPU. A file appears at once and whole, and of processes that start together one
compiles. Where the folder cannot be written to, each of them does.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flbench.data.cache import user_cache

_log = logging.getLogger(__name__)

#: Bytes of the checksum that a stored file begins with: damaged code could do anything.
_CHECKED = 32

#: Called with the address of the whole numbers (int64) that a function reads its arguments from.
Native = Callable[[int], None]


@cache
def native(module: str, name: str) -> Native | None:
    """Return a compiled function of a module of this room; None, with a line in the log, where this is impossible.

    Args:
        module: its name, without the room's.
        name: the function, in Python with one argument, the address of its arguments.
    """
    try:
        import llvmlite.binding as llvm

        features = llvm.get_host_cpu_features().flatten()
        cpu = llvm.get_host_cpu_name(), features
        path = user_cache() / "native" / f"{name}-{_digest([module, *cpu])}.o"
        code = _stored(path)
        if code is None:
            with _one_at_a_time(path):
                code = _stored(path)  # by the process that was waited for
                if code is None:
                    code = _compiled(module, name, cpu)
                    _store(path, code)
        return _loaded(code, name, cpu)
    except Exception as error:  # numba may be absent, or not know this CPU: torch computes the same, more slowly
        why = " ".join(str(error).split())[:200]
        _log.warning("small networks are trained by torch alone: %s: %s", type(error).__name__, why)
        return None


def _digest(parts: Sequence[str]) -> str:
    """All that the machine code depends on, as a name."""
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    known = "\0".join([*parts, version("numba"), version("llvmlite")]).encode()
    return hashlib.sha256(b"\0".join([known, *sources])).hexdigest()[:32]


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Wait while another process compiles, where files can be locked."""
    from filelock import FileLock

    with ExitStack() as stack:
        with suppress(OSError, NotImplementedError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(path.with_suffix(".lock"), fallback_to_soft=False))
        yield


def _stored(path: Path) -> bytes | None:
    """The code in a file, None where it is absent or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    code = content[_CHECKED:]
    return code if hashlib.sha256(code).digest() == content[:_CHECKED] else None


def _store(path: Path, code: bytes) -> None:
    """Write a file in one step, or not at all."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(temporary).replace(path)
    except OSError as error:
        _log.info("compiled code cannot be stored, every process compiles it: %s", error)


def _compiled(module: str, name: str, cpu: tuple[str, str]) -> bytes:
    """Compile by numba, to an object file whose function has its name."""
    import llvmlite.binding as llvm
    from numba import types
    from numba.core import compiler, config
    from numba.core.registry import cpu_target

    flags = compiler.Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True  # nothing of Python or numba is called
    flags.error_model = "numpy"
    contexts = cpu_target.typing_context, cpu_target.target_context
    for context in contexts:
        context.refresh()
    function = getattr(import_module(f"flbench.native.{module}"), name)
    level, config.OPT = config.OPT, type(config.OPT)(0)  # numba would optimize each function, and again in its callers
    try:
        done = compiler.compile_extra(*contexts, function, (types.int64,), types.void, flags, {})
    finally:
        config.OPT = level
    code = llvm.parse_assembly(done.library.get_llvm_str().replace(done.fndesc.llvm_func_name, name))
    machine, options = _machine(cpu, opt=3), llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(code, passes)
    stored: bytes = machine.emit_object(code)
    return stored


def _machine(cpu: tuple[str, str], **options: Any) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(cpu=cpu[0], features=cpu[1], **options)


def _loaded(code: bytes, name: str, cpu: tuple[str, str]) -> Native:
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(cpu))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    # A function of numba returns a status, and receives where to write its result and an error before its arguments.
    call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    function, unused = call(engine.get_function_address(name)), (ctypes.c_int64 * 2)()
    result, error = ctypes.addressof(unused), ctypes.addressof(unused) + 8

    def native(arguments: int) -> None:
        if function(result, error, arguments):
            raise RuntimeError(f"{name} failed")

    native.keep = engine, unused  # type: ignore[attr-defined]  # the code lives as long as its engine
    return native
