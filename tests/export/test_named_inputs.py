"""Files with several inputs: each has its own name, rows and lengths vary, and outputs are the library's."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from torch import nn

import opu
from opu.cli import main
from opu.export import onnx_file, write
from opu.students import from_teacher
from opu.teachers import MCDropout
from tests.several_inputs import ImageAndTable, OfDataclass, Visit

RECIPE = opu.Recipe(epochs=1, batch_size=32, num_particles=4)


class Words(nn.Module):
    """Tokens of any length with a mask, and a row of a table."""

    def __init__(self):
        super().__init__()
        self.words, self.drop, self.last = nn.Embedding(9, 6), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask, table):
        mask = attention_mask[..., None].to(table.dtype)
        held = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return self.last(self.drop(torch.cat([held, table], -1)))


def of_tuple(rows):
    return torch.randn(rows, 1, 8, 8), torch.randn(rows, 4)


def of_dict(rows):
    return dict(zip(("image", "table"), of_tuple(rows), strict=True))


def of_words(rows, length=7):
    ids, mask = torch.randint(9, (rows, length)), torch.ones(rows, length, dtype=torch.int64)
    mask[1::2, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "table": torch.randn(rows, 2)}


CASES = {
    "tuple": (ImageAndTable, of_tuple, ["inputs_0", "inputs_1"]),
    "dict": (ImageAndTable, of_dict, ["image", "table"]),
    "dataclass": (OfDataclass, lambda rows: Visit(*of_tuple(rows)), ["image", "table"]),
    "words": (Words, of_words, ["input_ids", "attention_mask", "table"]),
}


def slow_but(*names):
    """All cases, of which a quick run takes only these."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in CASES]


def distilled(name, folder, rows=60):
    make, inputs, _ = CASES[name]
    net, x = make().eval(), inputs(rows)
    student = from_teacher(net, example=x)
    opu.distill(MCDropout(net), student, x, recipe=RECIPE, held_out=0.5, out=folder, progress=False)
    return student, x


def agrees(student, path, x):
    """The outputs of ONNX Runtime, by the names of its inputs and nothing else of ours, beside ``predict``."""
    session = onnxruntime.InferenceSession(path)
    arrays = [t.numpy() for t in opu.batches.tensors(x).values()]
    named = dict(zip([each.name for each in session.get_inputs()], arrays, strict=True))
    said = dict(zip([each.name for each in session.get_outputs()], session.run(None, named), strict=True))
    prediction = student.predict(x)
    np.testing.assert_allclose(said["probabilities"], prediction.probabilities, rtol=1e-4, atol=1e-5)
    for measure in ("predictive_entropy", "mutual_information", "differential_entropy"):
        np.testing.assert_allclose(said[measure], prediction.scores[measure], rtol=1e-4, atol=1e-5, err_msg=measure)
    off = np.abs(said["novelty_p_value"] - prediction.novelty_p_value)
    assert np.mean(off > 1e-3) <= 0.1  # where calibration inputs nearly tie, rounding decides between two ranks


def run(*words, monkeypatch):
    monkeypatch.setattr("sys.argv", ["opu", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("name", slow_but("tuple", "words"))
def test_inputs_have_their_names_and_any_number_of_rows(name, tmp_path):
    student, x = distilled(name, None)
    path = write(student, tmp_path / "student.onnx", x).path
    assert [each.name for each in onnx.load(path).graph.input] == CASES[name][2]
    for rows in (1, 2, 7, 60):
        agrees(student, path, opu.batches.take(x, slice(0, rows)))
    if name == "words":
        for length in (2, 4, 12):
            agrees(student, path, of_words(5, length))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "dataclass")) for name in CASES]
)
def test_the_command_exports_a_run_folder_and_needs_nothing_else(name, tmp_path, monkeypatch, capsys):
    student, x = distilled(name, tmp_path / "run")
    assert run("export", tmp_path / "run", monkeypatch=monkeypatch) == 0, capsys.readouterr().err
    path = tmp_path / "run" / "student.onnx"
    assert [each.name for each in onnx.load(path).graph.input] == CASES[name][2]
    agrees(student, path, x)


@pytest.mark.slow
def test_a_saved_student_alone_is_exported_from_the_shapes_that_it_knows(tmp_path, monkeypatch, capsys):
    student, x = distilled("words", None)
    student.save(tmp_path)
    assert run("export", tmp_path, monkeypatch=monkeypatch) == 0, capsys.readouterr().err
    agrees(student, tmp_path / "student.onnx", x)
    agrees(student, tmp_path / "student.onnx", of_words(5, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tuple", "words"])
def test_a_pt2_file_takes_the_parts_in_their_order(name, tmp_path):
    student, x = distilled(name, None)
    found = write(student, tmp_path / "student.pt2", x)
    module = torch.export.load(found.path).module()
    batches = [opu.batches.take(x, slice(0, 5))] + ([of_words(4, 3)] if name == "words" else [])
    for batch in batches:
        said = dict(zip(found.outputs, module(*opu.batches.tensors(batch).values()), strict=True))
        expected = student.predict(batch)
        np.testing.assert_allclose(said["probabilities"].detach(), expected.probabilities, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tuple", "dict"])
def test_int8_of_a_network_with_two_inputs(name, tmp_path):
    student, x = distilled(name, None, rows=300)
    whole = write(student, tmp_path / "student.onnx", x)
    small = write(student, tmp_path / "int8.onnx", x, int8=True, calibration=x, test=(CASES[name][1](200), None))
    assert small.drift["num_inputs"] == 200
    said, exact = (onnx_file.runner(onnx.load(each.path))(x) for each in (small, whole))
    assert np.abs(said["probabilities"] - exact["probabilities"]).max() < 0.05
    assert [each.name for each in onnx.load(small.path).graph.input] == CASES[name][2]
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(small.path).graph.node}


@pytest.mark.slow
def test_int8_of_a_run_folder_is_calibrated_on_the_inputs_that_it_kept(tmp_path, monkeypatch, capsys):
    distilled("dict", tmp_path / "run", rows=500)
    assert run("export", tmp_path / "run", "--int8", monkeypatch=monkeypatch) == 0, capsys.readouterr().err
    graph = onnx.load(tmp_path / "run" / "student-int8.onnx").graph
    assert [each.name for each in graph.input] == ["image", "table"]


def test_calibration_inputs_of_other_parts_are_refused(tmp_path):
    student, x = distilled("dict", None)
    others = {**of_dict(200), "table": torch.randn(200, 3)}
    with pytest.raises(ValueError, match=r"must be of shape .*'table', \(4,\).* got .*'table', \(3,\)"):
        write(student, tmp_path / "int8.onnx", x, int8=True, calibration=others)
    with pytest.raises(ValueError, match=r"missing.*'table'"):
        write(student, tmp_path / "student.onnx", {"image": x["image"]})
    assert not list(tmp_path.iterdir())


def test_a_classifier_of_transformers_goes_into_a_file_with_named_inputs(tmp_path, monkeypatch, capsys):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=9, num_labels=3, max_position_embeddings=40, **sizes)
    net, x = transformers.BertForSequenceClassification(config), of_words(40)
    del x["table"]
    teacher = MCDropout(net)
    student = from_teacher(teacher, example=x)
    opu.distill(teacher, student, x, recipe=RECIPE, held_out=0.5, out=tmp_path / "run", progress=False)
    assert run("export", tmp_path / "run", monkeypatch=monkeypatch) == 0, capsys.readouterr().err
    path = tmp_path / "run" / "student.onnx"
    assert [each.name for each in onnx.load(path).graph.input] == ["input_ids", "attention_mask"]
    agrees(student, path, x)
    for rows, length in ((1, 3), (6, 15)):
        others = of_words(rows, length)
        del others["table"]
        agrees(student, path, others)


class Looking(nn.Module):
    """Looks indices up in some way, beside whole numbers that are only computed with."""

    def __init__(self, how):
        super().__init__()
        self.how, self.words = how, nn.Embedding(20, 6)
        self.positions, self.drop, self.last = nn.Embedding(5, 6), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, tokens, counts):
        if self.how == "one-hot":
            held = nn.functional.one_hot(tokens, 20).float().mean(1)[:, :6]
        elif self.how == "floats":
            held = self.words(tokens[:, 0].long())
        elif self.how == "flattened":
            held = self.words(tokens.reshape(-1)).reshape(*tokens.shape, 6).mean(1)
        else:
            place = torch.arange(tokens.shape[1], device=tokens.device)
            held = (self.words(tokens + (self.how == "shifted")) + self.positions(place)).mean(1)
        return self.last(self.drop(torch.cat([held, counts.float()], -1)))


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("how", ["plain", "shifted", "one-hot", "floats", "flattened"])
def test_indices_that_a_table_lacks_have_no_prediction_and_negative_numbers_do(how, int8, tmp_path):
    x = {"tokens": torch.randint(19, (300, 5)), "counts": torch.randint(-3, 4, (300, 2))}
    if how == "floats":
        x["tokens"] = x["tokens"].float()
    student = from_teacher(MCDropout(Looking(how)), example=x)
    opu.calibrate(student, x)
    path = write(student, tmp_path / "s.onnx", x, int8=int8, calibration=x if int8 else None).path
    session = onnxruntime.InferenceSession(path.read_bytes())
    rows = {name: values[:4].numpy().copy() for name, values in x.items()}
    rows["tokens"][0, 0], rows["tokens"][1, 0], rows["tokens"][2, 0] = -2, -100, 20
    rows["counts"][3] = -2
    found = dict(zip([each.name for each in session.get_outputs()], session.run(None, rows), strict=True))
    assert found["finite"].tolist() == [False, False, False, True]
    assert np.isnan(found["probabilities"][:3]).all()
    assert found["novelty_p_value"][:3] == pytest.approx(1 / 301)
    empty = session.run(None, {name: values[:0] for name, values in rows.items()})
    assert all(len(each) == 0 for each in empty)
    for row in range(3):
        with pytest.raises(ValueError, match="cannot read inputs"):
            student.predict({name: values[row : row + 1] for name, values in rows.items()})


def test_int8_flags_whole_numbers_outside_its_range(tmp_path):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.drop, self.last = nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 3)

        def forward(self, x):
            return self.last(self.drop(torch.relu(self.first(x.float() / 50))))

    x = torch.randint(-100, 100, (400, 6))
    student = from_teacher(MCDropout(Whole()), example=x)
    opu.calibrate(student, x)
    path = write(student, tmp_path / "s.onnx", x[:8], int8=True, calibration=x).path
    session = onnxruntime.InferenceSession(path.read_bytes())
    names = [each.name for each in session.get_outputs()]
    far, near = (dict(zip(names, session.run(None, {"inputs": t.numpy()}), strict=True)) for t in (100 * x, x))
    assert (far["novelty_p_value"] < 0.01).all()
    assert (near["novelty_p_value"] < 0.01).mean() < 0.02
