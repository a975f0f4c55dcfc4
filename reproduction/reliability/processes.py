"""Attacks on files and processes: kills, damaged files, two processes in one folder, threads, bombs."""

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import opu
from reproduction.reliability.attack import Outcome, refused

_SAVING = """
import sys, torch, opu
torch.manual_seed(0)
students = [opu.students.mlp(20, 5, (200, 200), link=link) for link in ("softsign", "sigmoid(-3, 9)")]
for number, student in enumerate(students):
    for weight in student.parameters():
        torch.nn.init.constant_(weight, number + 1.0)
students[0].save(sys.argv[1])
print("ready", flush=True)
while True:
    for student in students:
        student.save(sys.argv[1])
"""
_DISTILLING = """
import sys, torch, opu
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3))
sys.stdin.readline()
try:
    opu.distill(opu.teachers.MCDropout(net), opu.students.mlp(4, 3, (32,)), torch.randn(400, 4),
                recipe=opu.Recipe(epochs=30), out=sys.argv[1], resume=True, progress=False)
except ValueError:
    sys.exit(2)
"""
_BANK = """
import resource, sys, opu
try:
    opu.teachers.ParticleBank(sys.argv[1])
except (ValueError, MemoryError):
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def kills(count: int = 60) -> list[Outcome]:
    """A student that is saved over another is the old one or the new one after a kill."""
    rng, broken = random.Random(0), 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(count):
            child = _start(_SAVING, folder)
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            child.send_signal(signal.SIGKILL)
            child.wait()
            try:
                student = opu.load(folder)
                values = {float(w.detach().mean()) for w in student.parameters()}
                kind = {"softsign": 1.0, "sigmoid": 2.0}[str(student.link).split("(")[0]]
                broken += values != {kind}
            except ValueError:
                broken += 1
    return [Outcome("a save that is killed leaves the old student or the new one", count, broken)]


def damage(count: int = 400) -> list[Outcome]:
    """A student's file with one bit changed is refused, or loads to the same student."""
    rng, broken = random.Random(0), 0
    with tempfile.TemporaryDirectory() as folder:
        student = opu.students.mlp(6, 3, (16, 16))
        opu.calibrate(student, torch.randn(100, 6))
        student.save(folder)
        path = Path(folder) / "model.safetensors"
        whole, before = path.read_bytes(), {n: w.clone() for n, w in student.state_dict().items()}
        for _ in range(count):
            place = rng.randrange(len(whole))
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :])
            try:
                loaded = opu.load(folder).state_dict()
            except ValueError:
                continue
            except Exception:  # anything else that a reader may raise
                broken += 1
                continue
            broken += loaded.keys() != before.keys() or any(not torch.equal(loaded[n], w) for n, w in before.items())
    return [Outcome("a file with one bit changed is refused, or loads unchanged", count, broken)]


def together(rounds: int = 8) -> list[Outcome]:
    """Of two processes in one run folder, one runs."""
    broken = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            children = [_start(_DISTILLING, f"{folder}/run") for _ in range(2)]
            time.sleep(4)  # both have imported what they need
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            codes = sorted(child.wait() for child in children)
            broken += codes != [0, 2]
    return [Outcome("of two processes in one run folder one runs", rounds, broken)]


def threads(calls: int = 600) -> list[Outcome]:
    """Four threads get the particles of one, and leave the network as it was."""
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    net.train()
    teacher, x = opu.teachers.MCDropout(net), torch.randn(32, 4)
    broken: list[int] = []

    def work() -> None:
        for _ in range(calls // 4):
            try:
                particles = teacher(x, 16)
                spread = particles.std(0).amin() > 0  # every row varies, by masks of its own
                broken.append(int(particles.shape != (16, 32, 3) or not bool(spread)))
            except Exception:  # whatever a race may raise
                broken.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    modes = sum(not module.training for module in net.modules())
    return [
        Outcome("particles from four threads are right", calls, sum(broken)),
        Outcome("the network's modes are as they were", len(list(net.modules())), modes),
    ]


def bombs() -> list[Outcome]:
    """A small file does not make its reader take a gigabyte."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.npz"
        np.savez_compressed(path, particles=np.zeros((100, 1_000_000, 4), dtype=np.float32))
        done = subprocess.run(
            [sys.executable, "-c", _BANK, str(path)],
            capture_output=True,
            text=True,
            env=os.environ,
            preexec_fn=_limited,
        )
        peak = int(done.stdout.split()[-1]) if done.stdout.split() else 2**31
    return [Outcome("a compressed file of 1.6 GB of zeros takes less than 1 GB", 1, int(peak > 2**20))]


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))


def simplex(calls: int = 20_000) -> list[Outcome]:
    """A good network is not refused for one row that looks like probabilities."""
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)) for _ in range(5)]
    with torch.no_grad():
        for member in members:
            last = list(member.children())[-1]
            assert isinstance(last, nn.Linear)
            last.bias.fill_(0.5)
            last.weight.mul_(0.3)
    teacher = opu.teachers.Ensemble(members)
    x = torch.randn(calls, 1, 4)
    broken = sum(refused(lambda row=row: teacher(row, 5)) for row in x)  # type: ignore[misc]
    return [Outcome("good networks are not refused for their outputs", calls, broken)]


def _start(code: str, folder: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


ATTACKS = (kills, damage, together, threads, bombs, simplex)
