"""A stream is never collected: five gigabytes go through in less than one."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys, torch, opu
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
torch.manual_seed(0)
ROWS, WIDTH = 12_500, 100_000

class Rows(IterableDataset):
    def __iter__(self):
        base = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
        return (base.roll(number) for number in range(ROWS))

read = 0
def collate(rows):
    global read
    read += len(rows) * WIDTH * 4
    return torch.stack(rows)

def teacher(x, num_particles):
    noise = torch.randn(num_particles, len(x), 3)
    return (x[:, :3] + noise).log_softmax(-1)

inputs = {
    "stream": lambda: DataLoader(Rows(), 25, collate_fn=collate),
    "generator": lambda: (collate([row] * 25) for row in Rows()),
}
student = opu.students.mlp(WIDTH, 3, (2,), shared_trunk=True)
recipe = opu.Recipe(steps=500, num_particles=4, objective="clipped_kl")
result = opu.distill(teacher, student, inputs[sys.argv[1]](), recipe=recipe, progress=False)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak": peak, "read": read, "steps": len(result.losses)}))
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["stream", "generator"])
def test_five_gigabytes_are_streamed_in_less_than_one(kind):
    done = subprocess.run([sys.executable, "-c", SCRIPT, kind], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 500
    assert found["read"] >= 5e9
    assert found["peak"] < 1e9, f"{found['peak'] / 1e9:.2f} GB"
