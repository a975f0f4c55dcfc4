"""The wheel in a clean environment without extras: what a user gets from ``pip install one-pass-uncertainty``."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.long


def run(*words, cwd, expect=0):
    """Run a command without the checkout in sight, on one thread; what it printed."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "150"}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == expect, f"{words}: {done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory):
    """The folder of commands of an environment that holds the wheel and its required packages, and no extra."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_holds_the_library_and_nothing_else(wheel):
    assert wheel.name.startswith("one_pass_uncertainty-")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"opu"}
    assert "opu/py.typed" in names


def test_the_readmes_quickstart_runs_as_pasted(scripts, tmp_path):
    block = next(code for code in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    run(scripts / "python", "-c", block, cwd=tmp_path)
    assert (tmp_path / "student" / "model.safetensors").is_file()


def test_the_command_line_works_without_extras(scripts, tmp_path):
    assert "demo" in run(scripts / "opu", "--help", cwd=tmp_path).stdout
    for command in (
        ["reproduce", "mnist"],
        ["compare"],
        ["tables", "README.md"],
        ["data", "list"],
        ["bench", "predict"],
    ):
        said = run(scripts / "opu", *command, cwd=tmp_path, expect=2).stderr
        assert "needs a source checkout" in said
        assert len(said.strip().splitlines()) == 1


def test_the_demo_prints_its_table_and_how_to_get_pictures(scripts, tmp_path):
    said = run(scripts / "opu", "demo", cwd=tmp_path).stdout
    assert "inverted" in said
    assert "Photographs, one more OOD set, need Pillow" in said
    assert 'pip install "one-pass-uncertainty[plot]"' in said
    written = sorted(path.name for path in (tmp_path / "runs" / "demo").iterdir())
    assert "metrics.json" in written
    assert not [name for name in written if name.endswith(".png")]
    # An extra that is missing is named in one line, and nothing is lost.
    said = run(scripts / "opu", "export", "runs/demo", cwd=tmp_path, expect=2).stderr
    assert 'pip install "one-pass-uncertainty[onnx]"' in said
