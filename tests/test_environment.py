"""Where a result comes from is recorded truly."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

import opu
from opu.environment import environment


def test_versions_hardware_and_commit_are_those_of_this_run():
    found = environment()
    assert found["opu"] == opu.__version__
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["threads"] == torch.get_num_threads()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(opu.__file__).parent, capture_output=True, text=True)
    assert found["commit"].removesuffix("-modified") == head.stdout.strip()


def test_no_commit_is_claimed_outside_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr("opu.environment.__file__", str(tmp_path / "environment.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment()["commit"] is None


def test_a_copy_of_the_sources_can_be_told_its_commit(monkeypatch):
    monkeypatch.setenv("OPU_COMMIT", "0870c71")
    assert environment()["commit"] == "0870c71"
