"""The documents tell the truth: their code runs as pasted, and their tables are what the result files say."""

import re
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import opu
from opu.export import write
from opu.novelty import Novelty
from reproduction.rendering import TABLES, render

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def run_as_pasted(document: Path, check: str, folder: Path, block: int = 0, python: str = sys.executable) -> None:
    """Run a document's block of Python in an empty folder, and then a check of what it left."""
    code = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)[block]
    done = subprocess.run([python, "-c", code + check], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_quickstart_runs_as_pasted(tmp_path):
    check = (
        "\np = student.novelty.p_value(q)\n"
        "assert q.mean.shape == (2, 3) and q.mean[0].argmax() == 2, q.mean\n"
        "assert p[1] < 0.02 < p[0], p\n"
        "assert bool((low <= q.mean).all() and (q.mean <= high).all())\n"
    )
    run_as_pasted(ROOT / "README.md", check, tmp_path)
    assert sorted(path.name for path in (tmp_path / "student").iterdir()) == ["config.json", "model.safetensors"]


def test_the_exported_student_runs_as_pasted_where_there_is_no_torch_and_no_opu(tmp_path):
    student = opu.students.mlp(64, 9, (16,)).eval()
    with torch.no_grad():
        student.novelty = Novelty.fit(student(torch.randn(200, 1, 8, 8)))
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    write(student, tmp_path / "runs" / "demo" / "student.onnx", torch.randn(4, 1, 8, 8))
    check = (
        "\nimport importlib.util\n"
        "assert importlib.util.find_spec('torch') is None and importlib.util.find_spec('opu') is None\n"
        "assert answer['probabilities'].shape == (5, 9) and answer['novelty_p_value'].shape == (5,)\n"
    )
    run_as_pasted(ROOT / "README.md", check, tmp_path, block=1, python=bare_environment(tmp_path / "venv"))


def bare_environment(folder: Path) -> str:
    """A Python that has numpy and ONNX Runtime, lent from ours, and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    (theirs,) = folder.glob("lib/python*/site-packages")
    for module in (np, onnxruntime):
        ours = Path(module.__file__).parent
        for path in ours.parent.glob(f"{ours.name}*"):
            (theirs / path.name).symlink_to(path)
    return str(folder / "bin" / "python")


def test_the_guide_for_tables_runs_as_pasted(tmp_path):
    check = (
        "\nassert model.score(x_test, y_test) > 0.93\n"
        "assert (low < high).all() and low.shape == probabilities.shape\n"
        "assert (frame.index == x_test.index).all()\n"
        "assert 0.8 < (frame['novelty_p_value'] > 0.1).mean() <= 1\n"
    )
    run_as_pasted(ROOT / "docs" / "tabular.md", check, tmp_path)


def test_the_page_on_fidelity_runs_as_pasted(tmp_path):
    check = (
        "\nassert 'of the squared distance is due to' in found.sentence\n"
        "assert found.summary['mmd']['amortisation'] <= found.summary['mmd']['bound'] + 1e-6\n"
        "assert 0 <= answer.fraction < 0.2 and answer.probabilities.shape == (50, 3)\n"
    )
    run_as_pasted(ROOT / "docs" / "fidelity.md", check, tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_what_the_files_say(document):
    text = document.read_text()
    assert render(text, ROOT / "results") == text, f"run: opu tables {document.relative_to(ROOT)}"


def test_every_table_stands_in_a_document():
    texts = "".join(document.read_text() for document in DOCUMENTS)
    assert {name for name in TABLES if f"<!-- table: {name} -->" in texts} == set(TABLES)


def test_links_lead_somewhere():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_an_unknown_table_and_missing_results_are_refused(tmp_path):
    with pytest.raises(ValueError, match="asks for the table 'nonsense'; those that exist are demo"):
        render("<!-- table: nonsense -->\n<!-- end -->", tmp_path)
    with pytest.raises(ValueError, match=r"there is no bench-objectives\.json in .*; make it with: python -m"):
        render("<!-- table: bench-objectives -->\n<!-- end -->", tmp_path)


def test_the_repository_stands_alone():
    """No path of a machine, and no folder beside the checkout, in any tracked text."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    beside = "../" + "shared"
    for name in listed:
        path = ROOT / name
        if path.suffix in {".png"} or name == ".ci/run" or not path.exists():
            continue
        assert beside not in path.read_text(), name
