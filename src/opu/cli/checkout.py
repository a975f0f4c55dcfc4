"""Commands that work from a source checkout alone: reproduction and benchmarks are not part of the installed library."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import opu


def from_checkout(module: str) -> ModuleType:
    """Import a module of ``reproduction`` or ``benchmarks`` from the checkout that this library runs from.

    Args:
        module: Its name, such as ``reproduction.commands``.
    """
    root = Path(opu.__file__).parents[2]
    if not (root / "reproduction" / "__init__.py").is_file():
        raise ValueError(
            "this command needs a source checkout, since the installed library holds no experiments; clone the repository "
            "of one-pass-uncertainty and run it there after `make setup`."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(module)
