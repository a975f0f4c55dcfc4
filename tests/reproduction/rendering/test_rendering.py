"""Tables between markers: what is filled in, what is left alone, and cells that can be worked out by hand."""

import io
import json

import pytest
from rich.console import Console

from reproduction.cells import mean_and_deviation, mean_and_range, notation
from reproduction.commands import tables
from reproduction.rendering import render

BENCH = {
    "inputs": 10_000,
    "particles": 500,
    "classes": 10,
    "seconds": 12.3,
    "environment": {"threads": 1, "cpu": "a machine"},
}


def test_text_between_markers_is_replaced_and_the_rest_stays(tmp_path):
    (tmp_path / "bench-fidelity.json").write_text(json.dumps(BENCH))
    text = "before\n<!-- table: bench-fidelity -->\nold\n<!-- end -->\nafter\n"
    rendered = render(text, tmp_path)
    sentence = "A report on 10,000 inputs with 500 particles and 10 classes takes 12 s (1 thread, a machine; "
    assert rendered == text.replace("old", f"{sentence}`python -m benchmarks.fidelity`).")
    assert render(rendered, tmp_path) == rendered


def test_symbols_are_spelt_out_under_the_table(tmp_path):
    run = {"held_out": 1, "seed": 0, "teacher": 90.0, "entropy": 91.0, "precision": 92.0, "novelty": {"1/2": 93.0}}
    (tmp_path / "study-novelty-shares.json").write_text(json.dumps({"runs": [run, {**run, "novelty": {"1/2": 95.0}}]}))
    rendered = render("<!-- table: novelty-shares -->\n<!-- end -->", tmp_path)
    assert "| **mean** | 90.0 | 91.0 | 92.0 | 94.0 |" in rendered
    assert rendered.endswith("\n\nE: predictive entropy; C: negative log-precision.\n<!-- end -->")


def test_an_unknown_table_is_refused(tmp_path):
    with pytest.raises(ValueError, match="asks for the table 'nonsense'; those that exist are demo"):
        render("<!-- table: nonsense -->\n<!-- end -->", tmp_path)


def test_cells():
    assert mean_and_deviation([1.0]) == "1.0"
    assert mean_and_deviation([1.0, 3.0]) == "2.0 ± 1.4"
    assert mean_and_range([1.0, None, 3.0]) == "2.0 (1.0 to 3.0)"
    assert mean_and_range([None]) == "no errors"
    assert notation("| BDK-E | CPU | 97.0 MI |") == "MI: mutual information."
    assert notation("nothing here") == ""


RIGHT = "before\r\n<!-- table: bench-fidelity -->\r\nold\r\n<!-- end -->\r\nafter, größe\r\n".encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.md", RIGHT.replace(b"<!-- end -->", b""), r"'bench-fidelity' in .*a.md has no <!-- end --> of its own"),
        ("a.md", RIGHT.replace(b"after", b"<!-- end -->\r\n"), "closes no table in .*a.md"),
        ("a.md", RIGHT.replace(b"old", b"<!-- table: demo -->"), "'bench-fidelity' in .*a.md has no <!-- end -->"),
        ("a.md", RIGHT.replace(b"bench-fidelity", b"nonsense"), "asks for the table 'nonsense'"),
        ("a.md", RIGHT.replace(b"bench-fidelity", b"../../etc"), "asks for the table '../../etc'"),
        ("a.md", RIGHT.replace(b"bench-fidelity", b"demo"), r"results .*demo.json|there is no"),
        ("a.md", RIGHT + b"\xff\xfe\x00", "a.md is not text in UTF-8"),
        ("a.md", RIGHT + b"\x00", "a.md is not text in UTF-8"),
        ("model.safetensors", RIGHT, r"must end in .md; got model.safetensors"),
        ("notes", RIGHT, r"must end in .md; got notes"),
    ],
)
def test_what_is_no_document_of_ours_is_refused_and_left_alone(name, content, message, tmp_path):
    (tmp_path / "bench-fidelity.json").write_text(json.dumps(BENCH))
    path, good = tmp_path / name, tmp_path / "good.md"
    path.write_bytes(content)
    good.write_bytes(RIGHT)
    with pytest.raises((ValueError, OSError), match=message):
        tables([good, path], tmp_path)
    assert path.read_bytes() == content
    assert good.read_bytes() == RIGHT  # nothing is written unless all documents are right
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("content", [b"# Nothing of ours\n", b"", b"in a line: <!-- table: demo --> <!-- end -->\r\n"])
def test_a_document_without_markers_is_left_alone_and_named(content, tmp_path):
    (tmp_path / "bench-fidelity.json").write_text(json.dumps(BENCH))
    (tmp_path / "a.md").write_bytes(content)
    with pytest.raises(ValueError, match=r"a.md holds no table marker"):
        tables([tmp_path / "a.md"], tmp_path)
    (tmp_path / "b.md").write_bytes(RIGHT)
    said = io.StringIO()
    tables([tmp_path / "a.md", tmp_path / "b.md"], tmp_path, Console(file=said, width=500))
    assert f"Left alone, since they hold no table marker: {tmp_path / 'a.md'}." in said.getvalue()
    assert (tmp_path / "a.md").read_bytes() == content
    assert b"takes 12 s" in (tmp_path / "b.md").read_bytes()


def test_folders_and_missing_documents_are_refused(tmp_path):
    (tmp_path / "folder.md").mkdir()
    for name in ("folder.md", "none.md"):
        with pytest.raises(ValueError, match=f"there is no file .*{name}"):
            tables([tmp_path / name], tmp_path)


def test_a_document_is_rewritten_where_it_lies_and_only_if_it_changes(tmp_path):
    (tmp_path / "bench-fidelity.json").write_text(json.dumps(BENCH))
    (tmp_path / "docs").mkdir()
    real, link = tmp_path / "docs" / "real.md", tmp_path / "link.md"
    real.write_bytes(RIGHT)
    real.chmod(0o640)
    link.symlink_to("docs/real.md")
    tables([link], tmp_path)
    assert link.is_symlink()
    found = real.read_bytes()
    assert found.startswith(b"before\r\n<!-- table: bench-fidelity -->")
    assert found.endswith("<!-- end -->\r\nafter, größe\r\n".encode())
    assert b"takes 12 s" in found
    assert b"\n" not in found.replace(b"\r\n", b"")  # its line ends stay its own
    assert real.stat().st_mode & 0o777 == 0o640
    before = real.stat().st_ino
    tables([real, real], tmp_path)
    assert real.stat().st_ino == before
    link.unlink()
    link.symlink_to("nowhere.md")
    with pytest.raises(ValueError, match=r"there is no file .*link.md"):
        tables([link], tmp_path)
