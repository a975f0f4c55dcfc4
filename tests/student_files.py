"""Files of students that somebody edited, with a checksum that fits; and folders as older versions wrote them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from opu.tensor_file import CHECKSUM, from_file, to_bytes

FILE = "model.safetensors"


def edit(folder: Path, change: Callable[[dict[str, Tensor], dict[str, str]], Any]) -> None:
    """Change weights and texts in place."""
    weights, texts = from_file(folder / FILE)
    weights = {name: w.clone() for name, w in weights.items()}
    del texts[CHECKSUM]
    change(weights, texts)
    (folder / FILE).write_bytes(to_bytes(weights, texts))


def edit_description(folder: Path, **changes: Any) -> None:
    """Replace entries of the description."""
    edit(folder, lambda _, texts: texts.update(student=json.dumps(json.loads(texts["student"]) | changes)))


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the weights in place."""
    edit(folder, lambda weights, _: change(weights))


def as_before(folder: Path, version: int = 4, **changes: Any) -> None:
    """Make a folder what an older version wrote: the description in a file of its own, and no checksum."""
    with safe_open(folder / FILE, framework="pt") as file:
        texts = file.metadata()
        weights = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
    description = json.loads(texts.pop("student")) | {"format": version} | changes
    (folder / "config.json").write_text(json.dumps(description))
    save_file(weights, folder / FILE, metadata={name: t for name, t in texts.items() if name in ("format", "programs")})
