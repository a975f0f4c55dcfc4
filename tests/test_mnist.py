"""The robust recipe on real digits, small enough for every test run."""

import gzip

import numpy as np
import pytest
import torch
from torch import nn

import opu
from opu.evaluate import compare
from opu.tables import TEACHER_MEASURES


def read_idx(path):
    if not path.is_file():
        pytest.skip(f"no {path.name} in {path.parent}")
    raw = gzip.decompress(path.read_bytes())
    sizes = np.frombuffer(raw, ">i4", raw[3], 4)
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sizes).copy())


def pictures(path):
    return read_idx(path).float().div(127.5).sub(1).unsqueeze(1)


@pytest.mark.slow
def test_a_student_of_mnist_keeps_up_with_its_teacher(data_folder):
    folder = data_folder / "mnist"
    train, labels = (
        pictures(folder / "train-images-idx3-ubyte.gz")[:8000],
        read_idx(folder / "train-labels-idx1-ubyte.gz"),
    )
    held_out, test = pictures(folder / "t10k-images-idx3-ubyte.gz")[:3000].split([1000, 2000])
    test_labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz")[1000:3000].long()

    layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Dropout(0.5)]
    net = nn.Sequential(*layers, nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(8):
        for rows in torch.randperm(len(train)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(train[rows]), labels[rows].long()).backward()
            optimizer.step()

    teacher = opu.teachers.MCDropout(net, consistent=True)
    student = opu.students.mlp(784, 10, (128, 128)).start_mean_from(teacher)
    opu.distill(teacher, student, train, held_out=held_out, epochs=8, num_particles=16, progress=False)
    foreign = {"shifted": torch.roll(test, (8, 8), (2, 3)), "noise": torch.rand_like(test) * 2 - 1}
    result, _ = compare(student, teacher, test, test_labels, foreign, held_out, num_particles=100)

    assert result["accuracy"]["student"] >= result["accuracy"]["teacher"] - 1
    for name, row in result["ood"].items():
        best = max(row["teacher"][m]["auroc"] for m in TEACHER_MEASURES)
        assert row["student"]["novelty"]["auroc"] >= best - 1, name
    errors = result["misclassification"]
    assert errors["student"]["novelty"]["auroc"] >= errors["teacher"]["predictive_entropy"]["auroc"] - 3
    with torch.no_grad():
        p_values = student.novelty.p_value(student(test))
    # 1,000 inputs to calibrate on, 2,000 fresh ones: 5 % within about four standard errors of both.
    assert 0.02 < float((p_values < 0.05).float().mean()) < 0.085
