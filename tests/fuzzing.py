"""Random changes of json values, of tensors and of bytes, from a seed."""

import json
import random
from typing import Any

import torch
from torch import Tensor

VALUES = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        2**31,
        2**62,
        -(2**63),
        0.5,
        -0.0,
        1e308,
        1e-320,
        "",
        "mlp",
        "exp",
        "input",
    ),
    *(
        "weight:x",
        "\ud800",
        "a" * 1000,
        "aten.relu.default",
        "\x00",
        [],
        [[]],
        [1, 2],
        ["a"],
        [None],
        {},
        {"value": "input"},
    ),
    *(
        {"dict": {}},
        {"shape": [3], "type": "int64"},
        {"dtype": "float16"},
        {"value": []},
        [[[[]]]],
        {"a": {"a": {"a": 1}}},
    ),
    *("float8_e4m3fn", "complex64", "quint8", "softsign(-1, 1)", "sigmoid(-1e29, 1e29)", float("nan"), float("inf")),
]
TYPES = [
    *(torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.uint8),
    *(torch.int64, torch.complex64),
]


def changed_json(text: str, draw: random.Random) -> str:
    """The text with one to three of its values changed, removed, copied, or put elsewhere; or with a name twice."""
    value = json.loads(text)
    for _ in range(draw.choice([1, 1, 2, 3])):
        value = _changed(value, draw)
    text = json.dumps(value)
    if draw.random() < 0.05 and '": ' in text:
        place = draw.choice([n for n, letter in enumerate(text) if letter == "{"])
        text = f'{text[: place + 1]}"link": 1, "link": 2, {text[place + 1 :]}'
    return text


def _changed(value: Any, draw: random.Random) -> Any:
    places = list(_places(value))
    if not places:
        return draw.choice(VALUES)
    holder, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.15:
        del holder[key]
    elif kind < 0.3:
        other, its = draw.choice(places)
        holder[key] = json.loads(json.dumps(other[its]))
    elif kind < 0.4 and isinstance(holder, dict):
        holder[draw.choice(["link", "hidden", "x", "inputs", "\udfff", ""])] = draw.choice(VALUES)
    elif kind < 0.55 and type(holder[key]) in (int, float):
        holder[key] += draw.choice([-1, 1, 10**6, -0.5])
    else:
        holder[key] = json.loads(json.dumps(draw.choice(VALUES)))
    return value


def _places(value: Any) -> Any:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []:
        yield value, key
        yield from _places(value[key])


def change_tensors(weights: dict[str, Tensor], draw: random.Random) -> None:
    """Change the type, the shape, the name or a value of one tensor in place; or remove it."""
    name = draw.choice(sorted(weights))
    w, kind = weights.pop(name), draw.randrange(6)
    if kind == 0:
        weights[name] = w.to(draw.choice(TYPES))
    elif kind == 1:
        weights[name] = w.reshape(-1)[: draw.randrange(w.numel() + 1)].clone()
    elif kind == 2:
        weights[draw.choice(["x", f"{name}.x", "novelty.x", ".".join("a" * 300), name.upper(), "é\n"])] = w
    elif kind == 3:
        weights[name] = w.new_zeros(draw.choice([(0,), (), (3, 0), (1, 1, 1), (2, 3)]))
    elif kind == 4 and w.numel() and w.is_floating_point():
        w.view(-1)[draw.randrange(w.numel())] = draw.choice([torch.nan, torch.inf, 1e30, 0.0])
        weights[name] = w


def changed_bytes(content: bytes, draw: random.Random) -> bytes:
    """The content with some bytes changed, removed, put in or repeated."""
    place, kind = draw.randrange(len(content)), draw.randrange(4)
    if draw.random() < 0.5:  # most of what is checked is in the header
        place = draw.randrange(min(len(content), 8 + int.from_bytes(content[:8], "little")))
    if kind == 0:
        return content[:place] + draw.randbytes(draw.choice([1, 1, 1, 8])) + content[place + 1 :]
    if kind == 1:
        return content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
    if kind == 2:
        return content[:place] + content[place + draw.choice([1, 5]) :]
    return content[:place] + content[place : place + draw.choice([1, 9])] + content[place:]
