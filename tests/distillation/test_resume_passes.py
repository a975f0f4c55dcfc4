"""A run over a loader or a stream that was stopped anywhere goes on and ends with the same bits."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import opu

X = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))


class Noisy(Dataset):
    """Rows with a random change that is drawn where they are read (not by Python's random, which type checks draw from)."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index] + 0.1 * torch.randn(4) + np.random.rand(), index % 3  # noqa: NPY002


class Stream(IterableDataset):
    def __init__(self, endless=False):
        self.endless = endless

    def __iter__(self):
        yield from X
        while self.endless:
            yield torch.randn(4)


SOURCES = {
    "shuffled loader": lambda: DataLoader(Noisy(), 16, shuffle=True),
    "loader with a generator": lambda: DataLoader(
        Noisy(), 16, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "weighted loader": lambda: DataLoader(Noisy(), 16, sampler=WeightedRandomSampler(torch.rand(90), 70)),
    "loader with workers": lambda: DataLoader(Noisy(), 16, shuffle=True, num_workers=2),
    "stream": lambda: Stream(),
    "endless stream": lambda: Stream(endless=True),
    "generator": lambda: (torch.randn(16, 4) for _ in iter(int, 1)),
    "dataset": Noisy,
}


class Stopped(RuntimeError):
    pass


def distilled(make, out, stop_at=None):
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    dropout, calls = opu.teachers.MCDropout(net), []

    def teacher(x, num_particles):
        calls.append(1)
        if len(calls) == stop_at:
            raise Stopped
        return dropout(x, num_particles)

    student = opu.students.mlp(4, 3, (8,))
    recipe = opu.Recipe(steps=17, batch_size=16, num_particles=4, checkpoint_every=4)
    opu.distill(teacher, student, make(), recipe=recipe, out=out, resume=True, progress=False)
    return student.state_dict()


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_stopped_run_ends_with_the_same_bits(make, tmp_path):
    whole = distilled(make, tmp_path / "whole")
    for stop_at in (5, 12, 9):  # of the calls since the last start, in the middle of a pass and of two checkpoints
        with pytest.raises(Stopped):
            distilled(make, tmp_path / "stopped", stop_at)
    again = distilled(make, tmp_path / "stopped")
    assert all(torch.equal(w, again[name]) for name, w in whole.items())
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "stopped")]
    assert logs[0] == logs[1]
