"""``import opu`` alone reaches every module, and imports none of them before it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import opu

ROOMS = sorted(
    path.stem
    for path in Path(opu.__file__).parent.iterdir()
    if (path.suffix == ".py" or (path / "__init__.py").is_file()) and not path.stem.startswith("_")
)


def in_a_new_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_the_library_imports_nothing_heavy():
    heavy = ("torch", "scipy", "sklearn", "pandas", "matplotlib", "onnx", "onnxruntime", "gpytorch", "transformers")
    assert in_a_new_process(f"import sys, opu; print(*[name for name in {heavy} if name in sys.modules])") == []


def test_a_distillation_imports_no_optional_package():
    heavy = ("pandas", "matplotlib", "onnx", "onnxruntime", "gpytorch", "transformers")
    code = f"import sys, opu; opu.distill, opu.students; print(*[name for name in {heavy} if name in sys.modules])"
    assert in_a_new_process(code) == []


def test_every_room_is_reached_without_an_import_of_its_own():
    assert {"sklearn", "export", "plotting", "evaluation", "demo"} <= set(ROOMS)
    code = f"import opu; print(*[getattr(opu, name).__name__ for name in {ROOMS}])"
    assert in_a_new_process(code) == [f"opu.{room}" for room in ROOMS]


def test_every_public_name_exists_and_is_listed():
    for name in opu.__all__:
        assert getattr(opu, name) is not None
        assert name in dir(opu)
    from opu import export, optimize  # what a star import or a user writes

    assert export.write is opu.export.write
    assert optimize is opu.optimize


def test_an_unknown_name_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="module 'opu' has no attribute 'destill'"):
        _ = opu.destill
    with pytest.raises(ImportError, match="cannot import name 'destill' from 'opu'"):
        from opu import destill  # noqa: F401
    assert not hasattr(opu, "_nothing")


def test_a_package_that_a_module_lacks_is_named(monkeypatch):
    """Not the module: ``opu`` has it, and the user has something to install."""
    monkeypatch.delitem(sys.modules, "opu.tables", raising=False)
    monkeypatch.delattr(opu, "tables", raising=False)
    monkeypatch.setitem(sys.modules, "rich.box", None)
    with pytest.raises(ModuleNotFoundError, match=r"rich\.box"):
        _ = opu.tables
