"""Random sources go on after a pause as if there had been none."""

import random

import numpy as np
import torch

from opu.files import read_state, write_state
from opu.inputs.random_state import random_state, restore_random_state


def draws() -> list[object]:
    return [
        *torch.randn(5).tolist(),
        *np.random.normal(size=3).tolist(),  # noqa: NPY002
        *[random.gauss(0, 1) for _ in range(3)],
        random.random(),
    ]


def test_every_random_source_goes_on_where_it_was_through_a_file(tmp_path):
    draws()
    write_state(tmp_path / "state", random_state())
    expected = draws() + draws()
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002
    torch.manual_seed(99)
    restore_random_state(read_state(tmp_path / "state"))
    assert draws() + draws() == expected
