"""Functions and writers are told about each epoch."""

import math

import pytest
import torch

import opu
from opu.distillation.watching import Epoch, as_watchers

RECIPE = opu.Recipe(epochs=3, batch_size=16, num_particles=4)
NAMES = ["best_epoch", "epoch", "held_out", "learning_rate", "loss"]


def distilled(on_epoch, recipe=RECIPE, **options):
    torch.manual_seed(0)

    def teacher(x, s):
        return torch.randn(s, len(x), 3).log_softmax(-1)

    student = opu.students.mlp(4, 3, (8,))
    x = torch.randn(80, 4)
    return opu.distill(teacher, student, x, recipe=recipe, progress=False, on_epoch=on_epoch, **options)


class Writer:
    """As in TensorBoard."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))


class Log:
    """As a run of Weights & Biases."""

    def __init__(self):
        self.logged = []

    def log(self, values, step=None):
        self.logged.append((values, step))


def test_a_function_is_told_how_the_run_stands():
    seen = []
    result = distilled(seen.append)
    assert [each.epoch for each in seen] == [1, 2, 3]
    assert [each.step for each in seen] == [4, 8, 12]
    assert [each.held_out for each in seen] == result.held_out
    for number, each in enumerate(seen):
        assert isinstance(each, Epoch)
        assert each.loss == pytest.approx(sum(result.losses[4 * number : 4 * number + 4]) / 4)
        assert each.learning_rate == pytest.approx(1e-3 * 0.5 * (1 + math.cos(math.pi * (each.step - 1) / 12)))
        best = min(range(number + 1), key=result.held_out.__getitem__)
        assert each.best_epoch == best + 1
    assert seen[-1].best_epoch == result.best_epoch


def test_writers_and_lists_of_them_are_told_the_same():
    seen, writer, run = [], Writer(), Log()
    distilled([seen.append, (writer, run)])
    assert len(run.logged) == 3
    for epoch, (values, step) in zip(seen, run.logged, strict=True):
        assert sorted(values) == [f"distill/{name}" for name in NAMES]
        assert step == epoch.step
        assert values["distill/loss"] == epoch.loss
        assert {(name, value) for name, value, at in writer.scalars if at == step} == set(values.items())


def test_tensorboard_writes_what_it_is_told(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            result = distilled(writer)
        events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["scalars"]) == [f"distill/{name}" for name in NAMES]
    assert [event.step for event in events.Scalars("distill/held_out")] == [4, 8, 12]
    assert [event.value for event in events.Scalars("distill/held_out")] == pytest.approx(result.held_out)


def test_watching_changes_nothing():
    assert distilled(lambda epoch: None) == distilled(None)


def test_without_held_out_inputs_there_is_no_number():
    seen = []
    distilled(seen.append, held_out=0)
    assert all(math.isnan(each.held_out) for each in seen)


def test_a_run_with_steps_is_told_about_thirty_times():
    seen = []
    distilled(seen.append, opu.Recipe(steps=62, batch_size=16, num_particles=4))
    assert [each.step for each in seen] == [*range(3, 62, 3), 62]


def test_a_resumed_run_tells_the_rest(tmp_path):
    class Killed(RuntimeError):
        pass

    def stop(epoch):
        if epoch.epoch == 2:
            raise Killed

    whole, rest = [], []
    distilled(whole.append)
    with pytest.raises(Killed):
        distilled(stop, out=tmp_path / "run")
    distilled(rest.append, out=tmp_path / "run", resume=True)
    assert rest == whole[1:]


@pytest.mark.parametrize("wrong", [5, "tensorboard", [print, 5], object()])
def test_what_cannot_be_told_is_refused_at_once(wrong):
    with pytest.raises(ValueError, match="on_epoch must be a function of an epoch, a writer"):
        distilled(wrong)
    assert as_watchers(None) == []
