"""Numba behind our decorator: machine code on disk that may fail, and intrinsics with opaque pointers."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchldr.kernels.cpu import compiled

if compiled.why_not():
    pytest.skip(str(compiled.why_not()), allow_module_level=True)
from llvmlite import binding, ir
from numba import types
from numba.core import config
from numba.core.registry import cpu_target

from torchldr.kernels.cpu import fft as compiled_fft
from torchldr.kernels.cpu import jit as compiled_jit

SOURCE = """
from torchldr.kernels.cpu.jit import jit

@jit()
def double(x):
    return 2 * x
"""


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loads a file with a compiled function, as a process does; its code is kept in `tmp_path / "kept"`."""
    file = tmp_path / "source.py"
    file.write_text(SOURCE)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(compiled_jit, "_kept", [])
    monkeypatch.setattr(compiled_jit, "_trouble", [])

    def load() -> Any:
        spec = importlib.util.spec_from_file_location("source", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.double(21) == 42
        return module.double

    return load


def test_what_was_compiled_is_kept_and_loaded(double, tmp_path: Path):
    assert not double().stats.cache_hits
    assert double().stats.cache_hits
    assert compiled_jit.why_not_kept() is None
    assert Path(str(compiled_jit.kept_in())).is_relative_to(tmp_path / "kept")


@pytest.mark.parametrize("changed", ["fft.py", "stencil.py"])
def test_every_file_of_loops_counts_as_a_source(changed, tmp_path):
    folder = tmp_path / "cpu"
    shutil.copytree(Path(compiled_jit.__file__).parent, folder)
    before = compiled_jit._sources(folder)
    assert before == compiled_jit._sources()
    (folder / changed).write_text((folder / changed).read_text() + "\n# changed\n")
    compiled_jit._sources.cache_clear()
    assert compiled_jit._sources(folder) != before


def test_what_was_made_of_other_sources_is_not_loaded(double, monkeypatch):
    double()
    monkeypatch.setattr(compiled_jit, "_sources", lambda: b"changed")
    assert not double().stats.cache_hits
    assert double().stats.cache_hits


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x05garbage", b"\x00" * 100], ids=["empty", "pickle", "zeros"]
)
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_damaged_files_are_no_error(double, tmp_path: Path, ending, content):
    double()
    for file in (tmp_path / "kept").rglob(f"*.{ending}"):
        file.write_bytes(content)
    assert not double().stats.cache_hits
    assert str(tmp_path / "kept") in str(compiled_jit.why_not_kept())
    assert compiled_jit.kept_in() is None


def test_a_folder_that_is_gone_is_no_error(double, tmp_path: Path, monkeypatch):
    """As a disk that is full by the time something is saved."""

    def full(self: object, *arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
    double()
    assert "No space left on device" in str(compiled_jit.why_not_kept())


def test_no_folder_at_all_is_no_error(double, monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    double()
    assert "no locator available" in str(compiled_jit.why_not_kept())


# Intrinsics.


@pytest.mark.parametrize("dtype", [types.float32, types.float64], ids=str)
@pytest.mark.parametrize("name", ["get", "load", "store"])
def test_intrinsics_take_opaque_pointers(name, dtype):
    """LLVM accepts what they generate for a pointer without a type; Numba's own still have one."""
    lanes = compiled_fft.Lanes(dtype)
    given = [types.intp, lanes] if name == "store" else [types.intp]
    signature, generate = getattr(compiled_fft, name)._defn(None, types.CPointer(dtype), *given)

    module, context = ir.Module(), cpu_target.target_context
    arguments = [ir.PointerType(), *(context.get_value_type(t) for t in given)]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    generate(context, builder, signature, function.args)
    builder.ret_void()
    binding.parse_assembly(str(module)).verify()


def test_lanes_of_arrays():
    @compiled_fft.compiled
    def turned(x, y):
        compiled_fft.store(y, 0, compiled_fft.load(x, 1))

    for dtype in ("float32", "float64"):
        x, y = np.arange(6, dtype=dtype), np.zeros(4, dtype)
        turned(x, y)
        assert (y == x[1:5]).all()
