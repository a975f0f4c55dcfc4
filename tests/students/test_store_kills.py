"""A kill at any moment leaves the old student or the new one, whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# Old and new differ in everything: architecture, link, weights and calibration.
SAVES = """if True:
    import json, pathlib, shutil, sys
    sys.path.insert(0, sys.argv[1])
    import torch, opu
    from killing import every_line, leftovers, random_moments
    from opu.novelty import Novelty
    from opu.students import lenet, mlp

    folder, old_format, what = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[1]) / "saved" / "student-mlp", sys.argv[3]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    students = {
        "first": mlp(4, 3, (40,), link="sigmoid(-1, 5)").eval(),
        "second": mlp(4, 3, (40,), link="softplus").eval(),
        "third": lenet(2, (1, 16, 16), (2, 3), 5, shared_trunk=True),
        "old": opu.load(old_format),
    }
    students["second"].novelty = Novelty.fit(students["second"](torch.randn(20, 4)))

    def found():
        again = opu.load(folder)
        for name, student in students.items():
            a, b = student.state_dict(), again.state_dict()
            if a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a):
                return name if again.description() == student.description() else f"{name} with another description"
        return "a mixture"

    def prepare(name):
        shutil.rmtree(folder, ignore_errors=True)
        if name == "old":
            shutil.copytree(old_format, folder)
        else:
            students[name].save(folder)

    if what == "lines":
        counts = [every_line(lambda: prepare(a), lambda: students[b].save(folder), found) for a, b in
                  (("first", "second"), ("second", "third"), ("old", "first"))]
    else:
        prepare("first")
        def action():
            for name in ("second", "third", "first"):
                students[name].save(folder)
        counts = random_moments(action, found, int(what))
    print(json.dumps([counts, sorted(leftovers(folder))]))
"""


def kills(tmp_path, what: str):
    done = subprocess.run(
        [sys.executable, "-c", SAVES, TESTS, tmp_path / "student", what], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_kill_before_any_line_leaves_the_old_student_or_the_new_one(tmp_path):
    counts, files = kills(tmp_path, "lines")
    for seen, (old, new) in zip(counts, (("first", "second"), ("second", "third"), ("old", "first")), strict=True):
        assert seen.keys() == {old, new}
        assert seen[old] > 10
    assert files == ["model.safetensors"]


@pytest.mark.parametrize("times", ["20", pytest.param("150", marks=pytest.mark.long)])
def test_a_kill_at_a_random_moment_leaves_one_whole_student(tmp_path, times):
    counts, files = kills(tmp_path, times)
    assert counts.keys() <= {"first", "second", "third"}
    assert len(counts) > 1
    assert sum(counts.values()) == int(times)
    assert files == ["model.safetensors"]
