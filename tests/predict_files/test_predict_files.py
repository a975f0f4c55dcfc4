"""Predictions for files are those of ``student.predict``, in order, whatever the batch size, the format and the memory."""

import csv
import io
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

import opu
from opu.distillation.outcome import keep_evaluation
from opu.predict_files import Pixels, predict_files
from opu.predict_files.images import layout_of
from opu.predict_files.run import NOT_FINITE

SHAPE = (1, 8, 8)
RANDOM = np.random.default_rng(0)


def images(count, shape=SHAPE, top=255):
    """Random whole numbers of pixels, one image per row."""
    return RANDOM.integers(0, top + 1, (count, *shape))


def scaled(pixels):
    return (pixels / 255).astype(np.float32)


def teacher(x, num_particles):
    weights = torch.randn(num_particles, 64, 3, generator=torch.Generator().manual_seed(0))
    return (x.flatten(1) @ weights / 4).log_softmax(-1)


@pytest.fixture
def run(tmp_path):
    """A run folder whose student takes grey images of 8 x 8 pixels in [0, 1]."""
    student = opu.students.mlp(64, 3, (8,))
    x = torch.from_numpy(scaled(images(200)))
    opu.calibrate(student, x)
    student.save(tmp_path / "run" / "student")
    keep_evaluation(tmp_path / "run", teacher, x[:50], None, None, 4)
    (tmp_path / "run" / "metrics.json").write_text(json.dumps({"classes": ["a", "b", "c"]}))
    return tmp_path / "run"


@pytest.fixture
def call(tmp_path):
    """Predict; what was written, and what was said."""

    def call(run, source, out="out.csv", **options):
        said = io.StringIO()
        options.setdefault("console", Console(file=said, width=2000))
        count = predict_files(run, source, tmp_path / out, **options)
        frame = (
            pd.read_parquet(tmp_path / out)
            if out.endswith("parquet")
            else pd.read_csv(tmp_path / out, dtype={"note": str, "input": object})
        )
        assert len(frame) == count
        assert not list(tmp_path.glob(".*.tmp"))
        return frame, said.getvalue()

    return call


def save_images(folder, pixels, names=None):
    folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(pixels):
        path = folder / (names[number] if names else f"{number:03d}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.squeeze(each).astype(np.uint8)).save(path)
    return folder


def same(frame, expected, classes="abc", **tolerance):
    """Whether rows of a file are these predictions."""
    columns = expected.columns(list(classes))
    assert list(frame.columns) == ["input", *columns, "note"]
    for name, values in columns.items():
        if name == "prediction":
            assert frame[name].tolist() == values.tolist()
        else:
            close = {"rtol": 2e-5, "atol": 1e-30} | tolerance
            np.testing.assert_allclose(frame[name].astype(float), values, err_msg=name, **close)


# --- arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 8), (8, 8), (8, 8, 1), (64,)])
def test_rows_of_an_array_are_predicted_as_by_the_student(run, call, tmp_path, shape):
    x = scaled(images(30))
    np.save(tmp_path / "x.npy", x.reshape(30, *shape))
    frame, said = call(run, tmp_path / "x.npy")
    same(frame, opu.load(run).predict(x))
    assert [int(each) for each in frame["input"]] == list(range(30))
    assert frame["note"].isna().all()
    assert "of inputs like the training data, about 1 %" in said


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_the_batch_size_does_not_matter(run, call, tmp_path, batch_size):
    x = scaled(images(30))
    x[[0, 13]] = np.nan
    np.save(tmp_path / "x.npy", x)
    frame, _ = call(run, tmp_path / "x.npy", batch_size=batch_size)
    good = np.isfinite(x).all((1, 2, 3))
    same(frame[good], opu.load(run).predict(x[good]), atol=1e-7)


def test_csv_and_parquet_agree_and_have_gaps_where_nothing_can_be_predicted(run, call, tmp_path):
    x = scaled(images(9)).astype(np.float64)
    x[0, 0, 0, 0], x[1, 0, 0, 0], x[5, 0, 0, 0] = np.nan, np.inf, 1e300  # which no float32 can hold
    np.save(tmp_path / "x.npy", x)
    text, said = call(run, tmp_path / "x.npy", batch_size=2)
    table, _ = call(run, tmp_path / "x.npy", "out.parquet", batch_size=2)
    assert list(text.columns) == list(table.columns)
    assert text["input"].astype(int).tolist() == table["input"].tolist()
    for name in text.columns[2:-1]:
        np.testing.assert_allclose(text[name].astype(float), table[name].astype(float), rtol=1e-5)
    for frame in (text, table):
        assert frame["note"].notna().tolist() == [True, True, *[False] * 3, True, *[False] * 3]
        assert set(frame["note"].dropna()) == {NOT_FINITE}
        bad = frame.loc[[0, 1, 5]]
        assert bad.drop(columns=["input", "note", "novelty", "novelty_p_value", "finite"]).isna().all(axis=None)
        assert bad["novelty_p_value"].tolist() == pytest.approx([1 / 201] * 3)
        assert bad["finite"].tolist() == [False] * 3
        assert frame.loc[[2, 3, 4, 6, 7, 8]].drop(columns="note").notna().all(axis=None)
    assert f"3 of 9, 0 ({NOT_FINITE}), 1 ({NOT_FINITE}), 5 ({NOT_FINITE})." in said


def test_memory_does_not_grow_with_the_array(run, tmp_path):
    def peak(rows):
        np.save(tmp_path / "x.npy", np.zeros((rows, 64), dtype=np.float32))
        tracemalloc.start()
        predict_files(
            run, tmp_path / "x.npy", tmp_path / "o.csv", batch_size=64, overwrite=True, console=Console(quiet=True)
        )
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few = peak(256)
    assert peak(4096) < few + 2**18  # where the array alone has a mebibyte, and its predictions more


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, left, right):
        return self.layer(torch.cat([left, right], 1))


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_named_arrays_are_the_inputs_of_a_student_with_several(call, tmp_path, kind):
    parts = {"left": torch.randn(20, 2), "right": torch.randn(20, 3)}
    batch = parts if kind == "dict" else tuple(parts.values())
    student = opu.students.from_teacher(opu.teachers.Ensemble([TwoInputs(), TwoInputs()]), example=batch)
    student.save(tmp_path / "student")
    arrays = {name: part.numpy() for name, part in parts.items()}
    if kind == "dict":
        np.savez(tmp_path / "x.npz", labels=np.arange(20), **dict(reversed(arrays.items())))
    else:
        np.savez(tmp_path / "x.npz", *arrays.values())
    frame, said = call(tmp_path / "student", tmp_path / "x.npz", classes=["a", "b", "c"], batch_size=6)
    same(frame, student.predict(batch), rtol=1e-4)
    assert ("Arrays that the student does not take: labels." in said) == (kind == "dict")
    assert "novelty is not calibrated" in said

    np.savez(tmp_path / "less.npz", left=arrays["left"])
    np.save(tmp_path / "one.npy", arrays["left"])
    (tmp_path / "photos").mkdir()
    for source, message in (
        ("less.npz", r"takes the inputs .*; .*less\.npz holds left\. Save the missing ones"),
        ("one.npy", r"takes several inputs, .*; one\.npy holds one array\. Save them with numpy\.savez"),
        ("photos", r"takes several inputs, .*; give them as a \.npz file"),
    ):
        with pytest.raises(ValueError, match=message):
            call(tmp_path / "student", tmp_path / source, "other.csv")


def test_one_array_of_an_archive_is_chosen_by_its_name(run, call, tmp_path):
    x = scaled(images(4))
    np.savez(tmp_path / "one.npz", anything=x)
    np.savez_compressed(tmp_path / "two.npz", labels=np.arange(4), inputs=x)
    np.savez(tmp_path / "unclear.npz", x=x, y=np.arange(4))
    for name in ("one.npz", "two.npz"):
        frame, _ = call(run, tmp_path / name, overwrite=True)
        same(frame, opu.load(run).predict(x))
    with pytest.raises(ValueError, match=r"takes one array; .* holds x, y\. Save the right one under the name inputs"):
        call(run, tmp_path / "unclear.npz", "other.csv")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 5)), r"takes inputs of shape \(1, 8, 8\); each row of .* has shape \(5,\), which it cannot read"),
        (np.zeros((4, 4, 4, 4)), r"each row of .* has shape \(4, 4, 4\), the same numbers in another order"),
        (np.zeros((1, 8, 8)), "shape of a single example|that of a single example. Give it a leading axis"),
        (np.zeros(64), r"must hold one row for each input; its array has shape \(64,\)"),
        (np.zeros((0, 64)), "holds no inputs"),
        (np.full((3, 64), np.nan), rf"no input in .* can be predicted, of 3: 0 \({NOT_FINITE}\)"),
        (np.array([["a"]]), "an array must hold numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_and_leave_nothing(run, call, tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ValueError, match=message):
        call(run, tmp_path / "x.npy")
    assert not (tmp_path / "out.csv").exists()
    assert not list(tmp_path.glob(".*.tmp"))


def test_an_array_of_another_scale_is_noticed(run, call, tmp_path):
    np.save(tmp_path / "x.npy", images(40))
    for folder in (run, run / "student"):  # which finds the run that it belongs to, and its names of classes
        frame, said = call(folder, tmp_path / "x.npy", overwrite=True)
        assert "The inputs in x.npy lie between 0 and 255, those of the run between 0 and 1; prepare them" in said
        assert "probability_a" in frame


# --- images ----------------------------------------------------------------------------------------------------------


def test_images_are_predicted_in_the_order_of_their_paths(run, call, tmp_path):
    pixels = images(6)
    names = ["b.png", "a/z.bmp", "a/b/c.PNG", "c.tif", "a.gif", "d.webp"]
    folder = save_images(tmp_path / "photos", pixels[:5], names[:5])
    Image.fromarray(pixels[5, 0].astype(np.uint8)).save(folder / names[5], lossless=True)
    save_images(folder, pixels[:1], [".hidden.png"])
    save_images(folder / ".cache", pixels[:1], ["x.png"])
    (folder / "labels.csv").write_text("x")
    frame, said = call(run, folder, batch_size=4)
    order = sorted(range(6), key=names.__getitem__)
    assert frame["input"].tolist() == [names[i] for i in order]
    same(frame, opu.load(run).predict(scaled(pixels[order])), rtol=1e-3, atol=1e-4)  # webp is close, the rest exact
    assert "that are not images were left out: 1." in said
    assert "Resized" not in said


def test_one_image_is_enough(run, call, tmp_path):
    pixels = images(1)
    save_images(tmp_path / "photos", pixels, ["one.png"])
    frame, _ = call(run, tmp_path / "photos" / "one.png")
    assert frame["input"].tolist() == ["one.png"]
    same(frame, opu.load(run).predict(scaled(pixels)))


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (Pixels(), lambda x: x / 255),
        (Pixels(-1, 1), lambda x: x / 127.5 - 1),
        (Pixels(0, 255), lambda x: x),
        (Pixels(1, 0), lambda x: 1 - x / 255),
        (
            Pixels(mean=(0.5, 0.4, 0.3), std=(0.2,)),
            lambda x: (x / 255 - np.array([0.5, 0.4, 0.3])[:, None, None]) / 0.2,
        ),
    ],
)
@pytest.mark.parametrize("channels_first", [True, False])
def test_pixels_become_the_numbers_of_training(call, tmp_path, pixels, expected, channels_first):
    colours = images(5, (3, 6, 4))
    student = opu.students.mlp(72, 3, (8,))
    x = expected(colours)
    x = torch.tensor(x if channels_first else np.moveaxis(x, 1, -1), dtype=torch.float32)
    opu.calibrate(student, torch.rand(40, *x.shape[1:]))
    student.save(tmp_path / "student")
    folder = save_images(tmp_path / "photos", np.moveaxis(colours, 1, -1))
    frame, _ = call(tmp_path / "student", folder, pixels=pixels, classes=["a", "b", "c"])
    same(frame, student.predict(x), rtol=1e-4)


def test_sixteen_bits_palettes_and_colours_are_read_by_their_meaning(run, call, tmp_path):
    grey = images(1)[0, 0].astype(np.uint8)
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.fromarray(grey.astype(np.uint16) * 257).save(folder / "a.png")
    Image.fromarray(grey).convert("RGB").save(folder / "b.png")
    Image.fromarray(grey).convert("P").save(folder / "c.png")
    Image.fromarray(grey).convert("RGBA").save(folder / "d.png")
    frame, _ = call(run, folder)
    same(frame, opu.load(run).predict(np.repeat(scaled(grey[None, None]), 4, 0)), rtol=1e-4)


def test_integers_of_32_bits_have_no_known_scale(run, call, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.fromarray(images(1)[0, 0].astype(np.int32)).save(folder / "a.tif")
    Image.fromarray(images(1)[0, 0].astype(np.uint8)).save(folder / "b.tif")
    frame, _ = call(run, folder)
    assert "32-bit integers of unknown scale" in frame["note"][0]
    assert np.isnan(float(frame["novelty_p_value"][0]))
    assert float(frame["novelty_p_value"][1]) > 0


def test_images_are_resized_and_it_is_said(run, call, tmp_path):
    small = images(3)
    folder = save_images(tmp_path / "photos", small)
    flat = [np.full((20, 10), 51), np.full((30, 40), 102)]
    for name, each in zip(("x.png", "y.png"), flat, strict=True):
        save_images(folder, [each], [name])
    frame, said = call(run, folder)
    assert "Resized 2 of 5 images from 2 sizes (10 x 20 to 40 x 30) to 8 x 8 pixels, the student's size." in said
    x = np.concatenate([scaled(small), np.full((1, *SHAPE), 0.2), np.full((1, *SHAPE), 0.4)]).astype(np.float32)
    same(frame, opu.load(run).predict(x), rtol=1e-4)


def test_broken_images_have_a_note_and_the_others_their_prediction(run, call, tmp_path):
    pixels = images(5)
    folder = save_images(tmp_path / "photos", pixels)
    whole = (folder / "000.png").read_bytes()
    (folder / "000.png").write_bytes(b"no image")
    (folder / "003.png").write_bytes(whole[:60])
    (folder / "004.png").write_bytes(b"")
    frame, said = call(run, folder, batch_size=1)
    assert frame["note"].notna().tolist() == [True, False, False, True, True]
    assert frame["note"][0] == "cannot be read: it is not an image that Pillow knows"
    same(frame[1:3], opu.load(run).predict(scaled(pixels[1:3])))
    assert "Inputs with a note in place of a prediction: 3 of 5, 000.png (cannot be read" in said
    for number in (1, 2):
        (folder / f"00{number}.png").write_bytes(whole[:60])
    with pytest.raises(ValueError, match=r"no input in .* can be predicted, of 5: 000\.png .*, and 2 more\."):
        call(run, folder, "other.csv")
    assert not (tmp_path / "other.csv").exists()


@pytest.mark.parametrize(
    ("low", "high", "advice"),
    [(-1, 1, "give --scale=-1,1"), (0, 255, "give --scale=0,255"), (0, 16, "give --scale=0,16"), (-2.1, 2.6, "--std")],
)
def test_another_scale_than_that_of_training_is_said_before_predicting(run, call, tmp_path, low, high, advice):
    folder = save_images(tmp_path / "photos", images(3))
    x = torch.rand(50, *SHAPE) * (high - low) + low
    x[0, 0, 0, 0], x[0, 0, 0, 1] = low, high
    keep_evaluation(run, teacher, x, None, None, 4)
    _, said = call(run, folder)
    assert f"inputs of the run lie between {low:.3g} and {high:.3g}, pixels here between 0 and 1;" in said
    assert advice in said
    pixels = Pixels(low, high) if low > -2 else Pixels(mean=(0.45,), std=(0.21,))
    _, said = call(run, folder, overwrite=True, pixels=pixels)
    assert "inputs of the run" not in said


def test_inputs_that_are_mostly_flagged_call_for_a_look_at_the_scale(tmp_path, call):
    student = opu.students.mlp(64, 3, (32,))
    recipe = opu.Recipe(epochs=15, num_particles=16)
    x = torch.rand(400, *SHAPE) * 0.2
    opu.distill(teacher, student, x, recipe=recipe, held_out=torch.rand(300, *SHAPE) * 0.2, progress=False)
    student.save(tmp_path / "student")
    folder = save_images(tmp_path / "photos", (x[:50].numpy() * 255).round())
    frame, said = call(tmp_path / "student", folder)
    assert "unlike the training data" not in said
    frame, said = call(tmp_path / "student", folder, overwrite=True, pixels=Pixels(-100, 100))
    flagged = int((frame["novelty_p_value"] < 0.01).sum())
    assert f"below 0.01: {flagged} of 50 ({2 * flagged} %)" in said
    assert flagged > 25
    assert (
        "Most inputs look unlike the training data. Scale or preprocessing may differ from training; see --scale"
        in said
    )


def test_few_calibration_inputs_allow_for_a_larger_rate_only(tmp_path, call):
    student = opu.students.mlp(64, 3, (8,))
    opu.calibrate(student, torch.rand(30, 64))
    student.save(tmp_path / "student")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((5, 64)))
    _, said = call(tmp_path / "student", tmp_path / "x.npy")
    assert "novelty p-value below 0.05" in said
    assert "about 5 %" in said


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((3, 20, 10), None, (20, 10, 3, True)),
        ((1, 20, 10), None, (20, 10, 1, True)),
        ((20, 10, 3), None, (20, 10, 3, False)),
        ((20, 10), None, (20, 10, 1, False)),
        ((784,), None, (28, 28, 1, False)),
        ((784,), (14, 56), (14, 56, 1, False)),
        ((200,), (20, 10), (20, 10, 1, False)),
        ((784,), (100, 100), (28, 28, 1, False)),
    ],
)
def test_shapes_are_read_as_those_of_images(shape, size, expected):
    found = layout_of(shape, size)
    assert (found.height, found.width, found.channels, found.channels_first) == expected
    assert found.arrange(np.zeros((found.height, found.width, found.channels))).shape == shape


@pytest.mark.parametrize("shape", [(5, 20, 10), (200,), (3072,), (1, 1, 2, 3)])
def test_shapes_of_no_image_are_refused(shape):
    with pytest.raises(ValueError, match=r"is not that of an image; give them as a \.npy array"):
        layout_of(shape)
    with pytest.raises(ValueError, match="it is not known what this student's inputs look like"):
        layout_of(None)


def test_flat_inputs_are_the_pixels_of_grey_images_row_by_row(tmp_path, call):
    student = opu.students.mlp(24, 3, (8,))
    student.save(tmp_path / "student")
    pixels = images(3, (4, 6))
    frame, said = call(tmp_path / "student", save_images(tmp_path / "photos", pixels), classes=["a", "b", "c"])
    same(frame, student.predict(scaled(pixels).reshape(3, 24)))
    assert "The student takes 24 numbers; they are the pixels of 6 x 4 grey images, row by row." in said


# --- the file --------------------------------------------------------------------------------------------------------


def test_names_of_classes_may_hold_anything_a_table_can(run, call, tmp_path):
    np.save(tmp_path / "x.npy", scaled(images(3)))
    names = ['a "quoted", name', "b", "ü"]
    for out in ("out.csv", "out.parquet"):
        frame, _ = call(run, tmp_path / "x.npy", out, classes=names)
        assert f"probability_{names[0]}" in frame
    with pytest.raises(ValueError, match="--classes must name all 3 classes; got 2: a, b"):
        call(run, tmp_path / "x.npy", "o.csv", classes=["a", "b"])
    with pytest.raises(ValueError, match="names of classes must differ; got a, a, b"):
        call(run, tmp_path / "x.npy", "o.csv", classes=["a", "a", "b"])


def test_a_file_is_replaced_only_if_asked_and_only_when_all_is_well(run, call, tmp_path):
    np.save(tmp_path / "x.npy", scaled(images(3)))
    np.save(tmp_path / "bad.npy", np.full((3, 64), np.nan))
    (tmp_path / "out.csv").write_text("mine")
    with pytest.raises(
        ValueError, match="exists already and was not changed; choose another --out, or say --overwrite"
    ):
        call(run, tmp_path / "x.npy")
    with pytest.raises(ValueError, match="no input in"):
        call(run, tmp_path / "bad.npy", overwrite=True)
    assert (tmp_path / "out.csv").read_text() == "mine"
    frame, _ = call(run, tmp_path / "x.npy", overwrite=True)
    assert len(frame) == 3


def test_mistakes_are_one_sentence(run, call, tmp_path):
    np.save(tmp_path / "x.npy", scaled(images(3)))
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dir.csv").mkdir()
    photos = save_images(tmp_path / "photos", images(1))
    x = tmp_path / "x.npy"
    for source, out, options, message in (
        (x, "out.xlsx", {}, r"--out must end in \.csv or \.parquet; got 'out\.xlsx'"),
        (x, "dir.csv", {}, "--out must be a file; .* is a folder"),
        (x, "o.csv", {"level": 90}, "--level must lie between 0 and 1; got 90"),
        (x, "o.csv", {"batch_size": 0}, "batch_size must be at least 1"),
        (x, "o.csv", {"pixels": Pixels()}, "--scale, --mean and --std are for images"),
        (tmp_path / "no.npy", "o.csv", {}, "there is no file or folder"),
        (tmp_path / "empty", "o.csv", {}, "there is no image in .*; images end in png, jpg"),
        (tmp_path / "table.csv", "o.csv", {}, "got 'table.csv'. A table needs a run of `opu fit`"),
        (photos, "o.csv", {"pixels": Pixels(mean=(0.1, 0.2))}, "--mean takes one number, or one for each channel"),
    ):
        with pytest.raises(ValueError, match=message):
            call(run, source, out, **options)
    with pytest.raises(ValueError, match="there is no saved classifier or student in"):
        call(tmp_path / "empty", x)
    for wrong, message in (
        ({"low": 1.0}, "two different numbers"),
        ({"std": (0.0,)}, "positive"),
        ({"high": float("nan")}, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            Pixels(**wrong)


def test_csv_needs_neither_pandas_nor_pillow(run, tmp_path):
    np.save(tmp_path / "x.npy", scaled(images(3)))
    code = (
        "import sys; from pathlib import Path; from rich.console import Console\n"
        "for name in ('pandas', 'pyarrow', 'PIL'): sys.modules[name] = None\n"
        "from opu.predict_files import predict_files\n"
        "folder = Path(sys.argv[1])\n"
        "predict_files(folder / 'run', folder / 'x.npy', folder / 'o.csv', console=Console(quiet=True))\n"
        "for source, out in (('x.npy', 'o.parquet'), ('.', 'p.csv')):\n"
        "    (folder / 'a.png').touch()\n"
        "    try: predict_files(folder / 'run', folder / source, folder / out, console=Console(quiet=True))\n"
        "    except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "o.csv").open() as file:
        assert len(list(csv.reader(file))) == 4
    assert 'pyarrow; install it with: pip install "one-pass-uncertainty[tables]"' in done.stdout
    assert 'PIL; install it with: pip install "one-pass-uncertainty[plot]"' in done.stdout


def test_a_terminal_sees_a_bar_that_does_not_stay(run, tmp_path):
    np.save(tmp_path / "x.npy", scaled(images(3)))
    for terminal in (True, False):
        said = io.StringIO()
        console = Console(file=said, force_terminal=terminal, width=80)
        predict_files(run, tmp_path / "x.npy", tmp_path / "o.csv", overwrite=True, console=console)
        assert ("predicting" in said.getvalue()) == terminal


def test_a_file_of_postscript_in_disguise_starts_no_other_program(run, tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", None)  # to call it would fail
    (tmp_path / "images").mkdir()
    text = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "images" / "innocent.png").write_text(text)
    save_images(tmp_path / "images", images(2))
    predict_files(run, tmp_path / "images", tmp_path / "out.csv", console=Console(quiet=True))
    notes = pd.read_csv(tmp_path / "out.csv").set_index("input")["note"]
    assert "cannot identify image file" in notes["innocent.png"] or "not an image" in notes["innocent.png"]
