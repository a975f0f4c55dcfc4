"""What a newcomer broke: each of these went wrong without a word, or with a raw error."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import opu
from opu.inputs.checksums import chosen
from opu.teachers import MCDropout, ParticleBank

RECIPE = opu.Recipe(epochs=2, num_particles=4, batch_size=16)


def dropout_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def distill(teacher=None, student=None, inputs=None, **options):
    teacher = teacher or MCDropout(dropout_net())
    student = opu.students.mlp(8, 3, (16,)) if student is None else student
    inputs = torch.randn(100, 8) if inputs is None else inputs
    recipe = options.pop("recipe", RECIPE)
    return opu.distill(teacher, student, inputs, recipe=recipe, progress=False, **options)


class Noting:
    """A teacher that notes what it is asked about."""

    def __init__(self):
        self.teacher, self.asked = MCDropout(dropout_net()), []

    def __call__(self, x, num_particles):
        self.asked.append(x.clone())
        return self.teacher(x, num_particles)


class Weights(nn.Module):
    """Dropout on weights, which have no axis of rows, and on activations."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
        self.of_weights, self.drop = nn.Dropout(0.5), nn.Dropout(0.01)

    def forward(self, x):
        return self.last(self.drop(nn.functional.linear(x, self.of_weights(self.first.weight)).relu()))


def test_dropout_on_weights_gets_a_mask_for_each_particle():
    net, x = Weights(), torch.randn(20, 8)
    found = MCDropout(net)(x, 300).exp().std(0).mean()
    net.train()
    with torch.no_grad():
        expected = torch.stack([net(x).softmax(-1) for _ in range(300)]).std(0).mean()
    assert float(found) == pytest.approx(float(expected), rel=0.15)


def test_rows_without_content_are_held_out_like_all_others():
    x = torch.zeros(1, 8)
    assert not any(chosen(torch.zeros(5, 8), 0.1)) or not any(chosen(torch.ones(5, 8), 0.1))
    found = [chosen(torch.full((1, 8), float(i)), 0.1)[0] for i in range(3000)]
    assert np.mean(found) == pytest.approx(0.1, abs=0.02)
    assert len(chosen(x, 0.1)) == 1


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("left", [False, True])
def test_padding_does_not_change_what_is_held_out(pad, left):
    for ids in torch.randint(2, 50, (200, 6)):
        plain = {"input_ids": ids[None], "attention_mask": torch.ones(1, 6, dtype=torch.long)}
        filler, hidden = torch.full((1, 3), pad), torch.zeros(1, 3, dtype=torch.long)
        order = (lambda a, b: [b, a]) if left else (lambda a, b: [a, b])
        padded = {
            "input_ids": torch.cat(order(plain["input_ids"], filler), 1),
            "attention_mask": torch.cat(order(plain["attention_mask"], hidden), 1),
        }
        assert chosen(plain, 0.3) == chosen(padded, 0.3)


class Alike(IterableDataset):
    def __iter__(self):
        return iter(torch.zeros(1500, 8))


def test_a_stream_of_equal_rows_says_that_they_are_held_out_together():
    with pytest.warns(UserWarning, match="held out in place of 10%: many are the same"):
        distill(inputs=Alike(), recipe=opu.Recipe(epochs=1, num_particles=4))


@pytest.mark.parametrize("batch_size", [7, 50])
def test_every_row_of_a_loader_in_order_is_seen_with_and_without_augmentation(batch_size):
    x, teacher = torch.randn(100, 8), Noting()
    known = {row.numpy().tobytes() for row in x}
    recipe = opu.Recipe(epochs=12, num_particles=2)
    distill(teacher, inputs=DataLoader(TensorDataset(x), batch_size), recipe=recipe, held_out=0)
    asked = [row.numpy().tobytes() for batch in teacher.asked[1:] for row in batch]
    clean = [row for row in asked if row in known]
    assert set(clean) == known  # in twelve epochs each is left alone at least once
    assert 0.3 < 1 - len(clean) / len(asked) < 0.7


@pytest.mark.parametrize("loader", [False, True])
def test_batches_of_one_row_are_augmented_now_and_then_and_the_default_says_that_it_cannot(loader):
    x = torch.randn(40, 8)
    inputs, teacher = DataLoader(TensorDataset(x), 1) if loader else x, Noting()
    recipe = opu.Recipe(epochs=3, num_particles=2, batch_size=1, augment=lambda x, g: x + 100.0)
    distill(teacher, inputs=inputs, recipe=recipe, held_out=0)
    assert 0.3 < float((torch.cat(teacher.asked[1:]).mean(1) > 50).double().mean()) < 0.7
    with pytest.warns(UserWarning, match="batches of one row cannot be augmented"):
        distill(inputs=inputs, recipe=opu.Recipe(epochs=1, num_particles=2, batch_size=1), held_out=0)


def test_an_augmentation_in_place_leaves_the_other_rows_alone():
    x, teacher = torch.randn(100, 8), Noting()
    before = x.clone()
    distill(teacher, inputs=x, recipe=opu.Recipe(epochs=1, num_particles=2, augment=lambda x, g: x.add_(100.0)))
    assert torch.equal(x, before)
    asked = torch.cat(teacher.asked)
    assert 0.3 < float((asked.mean(1) > 50).double().mean()) < 0.6


@pytest.mark.parametrize(
    ("augment", "sentence"),
    [
        (lambda x: x, r"called as augment\(batch, generator\)"),
        (lambda x, g: x[:3], "must return a batch like the one that it is given"),
        (lambda x, g: None, "must return a batch like the one that it is given"),
    ],
)
def test_augmentations_that_return_something_else_are_refused(augment, sentence):
    with pytest.raises(ValueError, match=sentence):
        distill(recipe=opu.Recipe(epochs=1, num_particles=2, augment=augment))


class ImageAndAge(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, image, age=None):
        age = torch.zeros(len(image)) if age is None else age
        return self.net(torch.cat([image, age[:, None]], 1))


def test_an_optional_input_of_one_number_is_used_by_name_and_never_dropped_without_a_word():
    x, age = torch.randn(100, 8), torch.rand(100)
    teacher = MCDropout(ImageAndAge())
    student = opu.students.from_teacher(teacher, example={"image": x[:2], "age": age[:2]})
    distill(teacher, student, {"image": x, "age": age})
    changed = (
        student.predict({"image": x, "age": 5 + age}).probabilities
        - student.predict({"image": x, "age": age}).probabilities
    )
    assert abs(changed).max() > 1e-3
    with pytest.raises(ValueError, match="is it an input or a target"):
        distill(teacher, student, TensorDataset(x, age))
    with pytest.raises(ValueError, match="but the inputs hold 'Age'"):
        distill(teacher, student, {"image": x, "Age": age})


def test_numbers_too_large_for_the_student_are_refused_in_training_and_novel_in_predictions():
    student = opu.students.mlp(8, 3, (4,))
    with pytest.raises(ValueError, match="finite in float32, the student's type of numbers"):
        opu.calibrate(student, np.full((20, 8), 1e39))
    opu.calibrate(student, np.random.default_rng(0).normal(size=(20, 8)))
    p = student.predict(np.full((1, 8), 1e39))
    assert not p.finite[0]
    assert p.novelty_p_value[0] == pytest.approx(1 / 21)


def test_predictions_leave_the_random_state_alone():
    student = opu.students.mlp(8, 3, (4,))
    for x in (np.zeros((2, 8)), np.zeros((2, 8), dtype=np.int64)):
        student.predict(x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "set_rng_state", lambda state: pytest.fail("another thread may be drawing"))
            student.predict(x)


def test_columns_of_a_data_frame_are_known_by_name(tmp_path):
    frame = pd.DataFrame(torch.randn(100, 8).numpy(), columns=list("abcdefgh"))
    student = opu.students.mlp(8, 3, (16,))
    distill(student=student, inputs=frame, out=tmp_path / "run")
    expected = student.predict(frame).probabilities
    for each in (student, opu.load(tmp_path / "run")):
        np.testing.assert_allclose(each.predict(frame[list("hgfedcba")]).probabilities, expected, rtol=1e-6)
        with pytest.raises(ValueError, match="columns a, b, c, d, e, f, g, h; a is missing"):
            each.predict(frame.rename(columns={"a": "z"}))


def test_masked_values_are_refused():
    with pytest.raises(ValueError, match="no masked values"):
        opu.students.mlp(8, 3, (4,)).predict(np.ma.masked_array(np.zeros((2, 8)), mask=True))


net = dropout_net()


def module_level_teacher(x, num_particles):
    return torch.stack([helper(x + 0.1 * torch.randn_like(x)) for _ in range(num_particles)])


def helper(x):
    return net(x).log_softmax(-1)


class Around(nn.Module):
    def __init__(self, view):
        super().__init__()
        self.net = net
        if view:
            self.net = None
            self.weight = nn.Parameter(net[0].weight.detach()[1:])

    def forward(self, x):
        z = self.net(x) if self.net is not None else (x @ self.weight.T)[:, :3]
        return opu.Dirichlet.from_logits(z, z[:, 0])


@pytest.mark.parametrize("view", [False, True])
def test_weights_are_shared_also_through_a_module_a_comprehension_a_helper_or_a_view(view):
    with pytest.raises(ValueError, match="shares weights with its teacher"):
        distill(module_level_teacher, Around(view))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.half(), "a student in float16 cannot be distilled"),
        (lambda s: s.requires_grad_(False), "no weights that learn"),
    ],
)
def test_students_that_cannot_learn_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        distill(student=change(opu.students.mlp(8, 3, (16,))))


def test_inputs_with_gradients_are_taken_without():
    distill(inputs=torch.randn(100, 8, requires_grad=True))


@pytest.mark.parametrize("kind", ["integers", "other order"])
def test_a_bank_knows_its_own_inputs(kind):
    particles = torch.randn(20, 60, 3).softmax(-1)
    if kind == "integers":
        x = torch.randint(0, 9, (60, 8))
        assert len(distill(ParticleBank(particles, x), inputs=x, held_out=0).losses) > 0
    x = {"a": torch.randn(60, 5), "b": torch.randn(60, 3)}
    bank = ParticleBank(particles, x)
    assert torch.equal(bank({"b": x["b"], "a": x["a"]}, 20), bank(x, 20))


def test_a_compiled_student_is_trained_and_saved_itself(tmp_path):
    student = opu.students.mlp(8, 3, (16,))
    distill(student=torch.compile(student, backend="eager"), out=tmp_path / "run")
    assert student.novelty is not None
    assert (tmp_path / "run" / "student" / "model.safetensors").is_file()


def test_a_logger_is_told_of_each_epoch(caplog):
    with caplog.at_level(logging.INFO):
        distill(on_epoch=logging.getLogger("runs"))
    assert len(caplog.records) == 2
    assert "held_out=" in caplog.records[0].message


def test_the_result_compares_student_and_teacher_and_says_if_novelty_is_not_calibrated():
    few = distill(inputs=torch.randn(40, 8))
    assert not few.calibrated
    assert "novelty not calibrated" in str(few)
    assert len(str(few).splitlines()) == 5
    result = distill()
    ours, theirs = result.mutual_information
    assert result.calibrated
    assert ours > 0
    assert theirs > 0
    assert f"mutual information {ours:.2g}, teacher {theirs:.2g}" in str(result)
