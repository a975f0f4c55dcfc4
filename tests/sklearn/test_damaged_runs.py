"""What a run folder says about itself is checked when it is read; each check has its sentence."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from opu.distillation.outcome import EVALUATION, keep_evaluation, read_evaluation
from opu.files import read_json, read_state, write_state
from opu.sklearn import OnePassClassifier
from opu.sklearn.encoding import Encoding
from opu.sklearn.run import predict_table, read_encoding


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not whole json"),
        ('{"a": 1', "is not whole json"),
        ("[1]", "must hold a json object; got list"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "occurs twice"),
        ("[" * 100_000, "is not whole json"),
        ('{"a": ' + "1" * 5000 + "}", "is not whole json"),
    ],
)
def test_json_that_is_not_whole_is_refused(text, message, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.json {message}|a\.json .*{message}"):
        read_json(tmp_path / "a.json")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    x = np.random.default_rng(0).normal(size=(60, 2))
    x[:5, 1] = np.nan
    frame = pd.DataFrame(x, columns=["a", "b"])
    OnePassClassifier("ensemble", hidden=(8,), epochs=2, random_state=0).fit(
        frame, np.where(x[:, 0] > 0, "p", "q")
    ).save(folder)
    return folder


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [0.0]},
        {"fill": [[0.0, 1.0]]},
        {"scale": [1.0, 0.0, 1.0]},
        {"mean": [0.0, 1e400, 1.0]},
        {"indicated": [7]},
        {"classes": ["q", "p"]},
        {"classes": ["p", "q", "r"]},
        {"feature_names": ["a"]},
        {"mean": [10**400] * 3},
        {"kind": "other"},
    ],
)
def test_a_description_that_was_edited_is_refused(change, model, tmp_path):
    found = json.loads((model / "classifier.json").read_text()) | change
    (tmp_path / "student").symlink_to(model / "student")
    (tmp_path / "classifier.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="is not the description of a classifier"):
        OnePassClassifier.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numbers": "ab"}, "names and categories must be different texts"),
        ({"numbers": ["a", "a"]}, "names and categories must be different texts"),
        ({"texts": {"kind": [1]}}, "names and categories must be different texts"),
        ({"texts": {"a": ["x"]}}, "the columns of numbers and of texts must differ"),
        ({"numbers": []}, "the columns of numbers and of texts must differ"),
        ({"target": None}, "the target must be a text"),
        ({"num_columns": True}, "the target must be a text, and the number of columns a whole number"),
        ({"texts": 3}, "cannot be read"),
    ],
)
def test_an_encoding_that_does_not_agree_with_itself_is_refused(change, message, tmp_path):
    described = Encoding("ill", ("a",), {}).as_dict()
    del described["checksum"]  # as files of versions before it, which are read
    (tmp_path / "encoding.json").write_text(json.dumps(described))
    assert read_encoding(tmp_path / "encoding.json").numbers == ("a",)
    (tmp_path / "encoding.json").write_text(json.dumps(described | change))
    with pytest.raises(ValueError, match=message):
        read_encoding(tmp_path / "encoding.json")


@pytest.mark.parametrize("change", [{"numbers": ["b", "a"]}, {"texts": {"kind": ["y", "x"]}}, {"ids": ["a"]}])
def test_an_encoding_that_was_edited_is_refused(change, tmp_path):
    path = tmp_path / "encoding.json"
    described = Encoding("ill", ("a", "b"), {"kind": ("x", "y")}).as_dict()
    path.write_text(json.dumps(described))
    assert read_encoding(path).features == ["a", "b", "kind=x", "kind=y"]
    path.write_text(json.dumps(described | change))
    with pytest.raises(
        ValueError, match=r"encoding.json cannot be read \(it is damaged, or was edited; fit the table again"
    ):
        read_encoding(path)


def test_an_encoding_of_another_model_is_refused(model, tmp_path):
    for name in ("classifier.json", "student"):
        (tmp_path / name).symlink_to(model / name)
    (tmp_path / "encoding.json").write_text(json.dumps(Encoding("ill", ("a", "b", "c"), {}).as_dict()))
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(ValueError, match=r"encoding.json describes 3 features, and classifier.json 2"):
        predict_table(tmp_path, tmp_path / "rows.csv", tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "other"}, "its kind is 'other'"),
        ({"inputs": torch.tensor(1.0)}, "its inputs are not tensors with the same number of rows"),
        ({"inputs": [torch.zeros(9, 2), torch.zeros(8, 2)]}, "its inputs are not tensors with the same number of rows"),
        ({"log_particles": torch.zeros(4, 9, 3).int()}, "its particles are not a tensor of floating-point numbers"),
        ({"log_particles": torch.zeros(4, 9, 3)}, "particles must be log-probabilities"),
        ({"inputs": torch.zeros(8, 2)}, "one column for each of the 8 inputs"),
        ({"labels": torch.zeros(8)}, "its labels are not one for each input"),
        ({"seen_log_particles": torch.zeros(3, 5, 3).log_softmax(-1)}, "its particles have several sizes"),
        ({"seen": None}, None),
        ({"seen": torch.zeros(5, 3)}, None),  # sequences have several lengths
        ({"labels": None}, None),
    ],
)
def test_an_evaluation_that_does_not_agree_with_itself_is_refused(change, message, tmp_path):
    keep_evaluation(
        tmp_path,
        lambda x, s: torch.randn(s, len(x), 3).log_softmax(-1),
        torch.rand(9, 2),
        torch.arange(9),
        torch.rand(5, 2),
        4,
    )
    write_state(tmp_path / EVALUATION, read_state(tmp_path / EVALUATION) | change)
    if message is None:
        assert read_evaluation(tmp_path)["inputs"].shape == (9, 2)
        return
    with pytest.raises(ValueError, match=rf"evaluation.safetensors does not hold the particles of a run \(.*{message}"):
        read_evaluation(tmp_path)
