"""The documents tell the truth: their code runs, their commands exist, and their tables are what the result files say."""

import dataclasses
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import typer

import opu
from opu.cli import app
from reproduction.rendering import TABLES, render

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
# What the code of a page should have left behind.
CHECKS = {
    "README.md": "v = p.novelty_p_value; assert v[1] < 0.02 < v[0] and p.predicted[0] == 2, (v, p.probabilities)\n"
    "assert (low <= p.probabilities).all() and (p.probabilities <= high).all()",
    "index.md": "assert done.best_epoch >= 1 and particles.exp().sum(-1).allclose(torch.ones(500, 5))",
    "own-teacher-and-student.md": "assert prediction.fraction <= 0.2 and isinstance(smaller, opu.students.Student)",
    "scores.md": "assert opu.measures.mutual_information(q)[0] < 0.005 and (high - low)[1, 0] > 0.95",
    "text.md": "assert accuracy > 0.75 and max(written.differences.values()) < 1e-3 and len(recorder.lines) == 3\n"
    "assert [each.name for each in session.get_inputs()] == ['input_ids', 'attention_mask']\n"
    "assert probabilities.shape == (5, 3) and probabilities.argmax(1).tolist() == prediction.predicted[:5].tolist()",
    "tables.md": "assert model.score(x_test, y_test) > 0.93 and (low < high).all() and (frame.index == x_test.index).all()\n"
    "assert (piped_low < piped_high).all() and len(piped) == len(x_test)\n"
    "own = OnePassClassifier.load('run').predict_proba(vectors.astype(float))\n"
    "assert abs(outputs['probabilities'] - own).max() < 1e-4 and classes == ['no', 'yes'] and own[5].argmax() == 0",
    "amortisation-gap.md": "assert found.summary['mmd']['amortisation'] <= found.summary['mmd']['bound'] + 1e-6\n"
    "assert compared.advice == 'logistic_normal' and compared.num_fitted == 250",
    "predict.md": "assert count == 500 == len(Path('inputs.csv').read_text().splitlines()) - 1",
    "export.md": "assert outputs['probabilities'].shape == (5, 3) and max(written.differences.values()) < 1e-4",
}


def named(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("document", paths, ids=lambda path: path.name)


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


def inline_code(document: Path) -> list[str]:
    outside = re.sub(r"```.*?```|<!-- table:.*?<!-- end -->", "", document.read_text(), flags=re.DOTALL)
    return re.findall(r"`([^`]+)`", outside)


def run_as_pasted(page: Path) -> None:
    """Run the Python of a page, all blocks in one namespace, and the check of what it left."""
    space = {"__name__": "page"}
    for number, code in enumerate([*blocks(page, "python"), CHECKS.get(page.name, "")]):
        exec(compile(code, f"{page.name}, block {number}", "exec"), space)


@named([page for page in PAGES if blocks(page, "python") and page.name != "export.md"])
def test_the_code_of_a_page_runs_as_pasted(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_as_pasted(document)


def test_the_code_on_export_runs_as_pasted_and_its_file_without_torch_and_opu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "export.md"
    run_as_pasted(page)
    absent = "\nimport importlib.util as found\nassert not found.find_spec('torch') and not found.find_spec('opu')\n"
    code = [bare_python(tmp_path / "bare"), "-c", blocks(page, "python")[-1] + absent]
    done = subprocess.run(code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def bare_python(folder: Path) -> str:
    """A Python that has numpy and ONNX Runtime, lent from ours, and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    (theirs,) = folder.glob("lib/python*/site-packages")
    for module in (np, onnxruntime):
        ours = Path(module.__file__).parent
        for path in ours.parent.glob(f"{ours.name}*"):
            (theirs / path.name).symlink_to(path)
    return str(folder / "bin" / "python")


@named(DOCUMENTS)
def test_commands_exist_with_their_options(document):
    lines = [
        line for block in blocks(document, "bash") for line in block.splitlines() if shlex.split(line, comments=True)
    ]
    assert all(re.match(r"(opu|make|pip|cp|\.venv/bin/|python -m) ?", line) for line in lines), lines
    for line in lines + inline_code(document):
        if line.startswith("opu "):
            check_opu(shlex.split(line, comments=True)[1:], whole=line in lines)
        elif line.startswith("python -m "):
            check_module(shlex.split(line, comments=True)[2:])
        elif line.startswith("make "):
            assert f"\n{line.split()[1]}:" in (ROOT / "Makefile").read_text(), line
        for extras in re.findall(r"one-pass-uncertainty\[([\w,]+)\]|-e \"\.\[([\w,]+)\]", line):
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set("".join(extras).split(",")) <= set(known), line


def check_opu(words: list[str], whole: bool) -> None:
    """A command in a block is parsed by the command line itself; one in a sentence may leave arguments out."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        command, words = command.commands[words[0]], words[1:]
    if whole:
        command.make_context("opu", list(words))
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, words


def check_module(words: list[str]) -> None:
    if words[0] == "opu":
        return check_opu(words[1:], whole=False)
    path = ROOT / (words[0].replace(".", "/") + ".py")
    assert path.exists(), words
    sources = "".join(each.read_text() for each in path.parent.glob("*.py"))
    assert all(f'"{word}"' in sources for word in words if word.startswith("--")), words


@named(PAGES)
def test_names_in_sentences_exist(document):
    for code in inline_code(document):
        for name in re.findall(r"\bopu(?:\.[A-Za-z_]\w*)+", code):
            assert resolves(name), name
        for arguments in re.findall(r"\bRecipe\(([^)]*)\)", code):
            known = {field.name for field in dataclasses.fields(opu.Recipe)}
            assert {part.split("=")[0].strip() for part in arguments.split(",") if part.strip()} <= known, code
        if re.fullmatch(r"(results|tests|docs|reproduction|benchmarks|src)/[\w./*-]*", code):
            assert list(ROOT.glob(code.rstrip("/"))), code


def resolves(name: str) -> bool:
    found: Any = opu
    for depth, part in enumerate(name.split(".")[1:], start=2):
        found = getattr(found, part, None)
        if found is None:  # a module that nobody has imported yet
            return importlib.util.find_spec(".".join(name.split(".")[:depth])) is not None
    return True


def test_the_new_names_of_the_changelog_exist():
    for line in "".join(blocks(ROOT / "CHANGELOG.md", "diff")).splitlines():
        for name in re.findall(r"\b(?:opu|reproduction|benchmarks)(?:\.[A-Za-z_]\w*)+", line) if line[0] == "+" else ():
            assert resolves(name) if name.startswith("opu.") else importlib.util.find_spec(name), name


@named(DOCUMENTS)
def test_links_and_pictures_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        page = (document.parent / path) if path else document
        assert page.exists(), target
        assert not anchor or anchor in anchors(page), target


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@named(PAGES)
def test_tables_are_what_the_files_say(document):
    text = document.read_text()
    assert render(text, ROOT / "results") == text, f"run: opu tables {document.relative_to(ROOT)}"


def test_every_table_stands_in_one_document():
    shown = re.findall(r"<!-- table: ([\w-]+) -->", "".join(page.read_text() for page in PAGES))
    assert sorted(shown) == sorted(TABLES)


def test_the_speed_in_the_readme_is_what_was_measured():
    rows = json.loads((ROOT / "results" / "bench-predict-cpu.json").read_text())["batches"]["10000"]
    student = rows["student, optimised"]["seconds"]
    fastest = min(row["seconds"] for name, row in rows.items() if name.startswith("teacher"))
    said = [f"{seconds / student:.0f} times" for seconds in (rows["teacher, loop"]["seconds"], fastest)]
    assert all(each in (ROOT / "README.md").read_text() for each in said), said


def test_an_unknown_table_and_missing_results_are_refused(tmp_path):
    with pytest.raises(ValueError, match="asks for the table 'nonsense'; those that exist are demo"):
        render("<!-- table: nonsense -->\n<!-- end -->", tmp_path)
    with pytest.raises(ValueError, match=r"there is no bench-objectives\.json in .*; make it with: python -m"):
        render("<!-- table: bench-objectives -->\n<!-- end -->", tmp_path)


def test_the_site_builds_without_a_warning_and_asks_nobody_else_for_anything(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES) - 1
    for path in pages:
        text = path.read_text()
        loads = re.findall(r"<(?:script|link|img|iframe|source|video)\b[^>]*?(?:src|href)=[\"']?([^\"' >]+)", text)
        assert not [each for each in loads if re.match(r"(https?:)?//", each)], path.name
        formulas = re.findall(r"<math.*?</math>", text, re.DOTALL)
        assert "arithmatex" not in text, f"{path.name} has a formula that is not MathML"
        assert not [each for each in formulas if "\\" in each], f"{path.name} has a command that MathML does not know"
    for path in tmp_path.rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(https?:)?//", path.read_text()), path.name


def test_the_repository_stands_alone():
    """No path of a machine, and no folder beside the checkout, in any tracked text."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    beside = "../" + "shared"
    for name in listed:
        path = ROOT / name
        if path.suffix not in (".png", ".safetensors") and name != ".ci/run" and path.exists():
            assert beside not in path.read_text(), name
