"""Arrows point inwards: a room of the library imports only itself and rooms before it, lazily or not."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "opu"
LAYERS = (
    ("_version", "checks", "json_text", "locks", "terminal"),
    ("tensor_file",),
    ("choices", "devices", "digests", "files", "environment", "timing", "tables", "cuda_graph"),
    ("distributions", "ranks"),
    ("batches",),
    ("augment", "inputs", "novelty", "objectives", "teachers"),
    ("measures",),
    ("prediction",),
    ("students",),
    ("distillation",),
    ("evaluation",),
    ("plotting", "cascade", "acceleration", "predict_files"),
    ("fidelity",),
    ("sklearn",),
    ("export",),
    ("demo",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def rooms():
    return sorted(
        {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")} - {"__init__"}
    )


def imported(path: Path) -> set[str]:
    """The rooms that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "opu":
            found |= {f"opu.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name.split(".")[1] for name in found if name.startswith("opu.")}


def test_every_room_has_its_layer():
    assert set(rooms()) == set(LEVEL)


@pytest.mark.parametrize("room", sorted(LEVEL))
def test_a_room_imports_inwards_only(room):
    files = [SOURCE / f"{room}.py"] if (SOURCE / f"{room}.py").exists() else sorted((SOURCE / room).rglob("*.py"))
    for path in files:
        outwards = {
            other for other in imported(path) if other in LEVEL and other != room and LEVEL[other] >= LEVEL[room]
        }
        assert not outwards, f"{path.relative_to(SOURCE)} imports {outwards}"


def test_the_library_knows_nothing_of_its_experiments():
    for path in SOURCE.rglob("*.py"):
        assert not any(
            isinstance(node, ast.Import | ast.ImportFrom) and "reproduction" in ast.dump(node)
            for node in ast.walk(ast.parse(path.read_text()))
        ), path
