"""Results of different settings are never mixed in one folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opu.distillation.run_folder import refuse_other_settings
from opu.files import plain, write_json


def keep_settings(path: Path, settings: dict[str, Any]) -> None:
    """Write settings beside the results that they make; refuse to go on if other settings are there already.

    New settings, such as one more preset, may be added; none that was there may change or go.
    """
    if path.exists():
        old, new = dict(_flat(json.loads(path.read_text()))), dict(_flat(plain(settings)))
        refuse_other_settings(old, {name: new.get(name) for name in old})
    write_json(path, plain(settings))


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
