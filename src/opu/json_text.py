"""Json from files that anybody may have written: bounded in size and depth, and without what means two things."""

import json
from typing import Any

# More than a description or a program needs: 50,000 steps take so many.
MOST_CHARACTERS = 2**23
MOST_LEVELS = 64


def parse(text: str, *, constants: bool = False) -> Any:
    """The value of a json text; a ValueError says what is wrong with it.

    Refused are texts above 8 million characters, lists and dicts more than 64 levels deep, names that occur twice in one
    dict, and integers of more than 64 bits.

    Args:
        text: What a file holds.
        constants: Whether NaN and infinite numbers are taken.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are read")
    refuse = None if constants else _refuse_constant
    try:
        value = json.loads(text, parse_int=_integer, parse_constant=refuse, object_pairs_hook=_pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_depth(value)
    return value


def shown(value: Any, most: int = 60) -> str:
    """A value from a file as it may stand in a sentence: short, and on one line."""
    # What is long is cut before it is written out, which could take longer than reading it.
    text = ascii(value[:most] if isinstance(value, str | list) else value)
    return text if len(text) <= most else f"{text[:most]}..."


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) <= 20 else 2**63
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"an integer has {len(digits)} digits, more than 64 bits hold")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which is no number")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {shown(name)} occurs twice")
        found[name] = value
    return found


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for each in level if isinstance(each, list | dict) for inner in _containers(each)]
        if not level:
            return
    raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")


def _containers(value: list[Any] | dict[str, Any]) -> list[Any]:
    values = value.values() if isinstance(value, dict) else value
    return [each for each in values if isinstance(each, list | dict)]
