"""Running a table: every row is kept when it is there, and a run that was stopped goes on."""

import io
import json
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from opu.cli import main
from opu.distillation import Diverged
from opu.teachers import LangevinSettings, as_teacher
from reproduction.paper import reproduce as module
from reproduction.paper.domains import Domain, held_out_classes
from reproduction.paper.models import Models, Scale
from reproduction.paper.presets import PRESETS
from reproduction.paper.reproduce import reproduce
from reproduction.paper.summary import show

TINY = Scale(
    "quick",
    teacher_epochs=1,
    langevin=LangevinSettings(burn_in=10, thinning=2, num_samples=8, batch_size=32),
    num_particles=8,
    hidden=(12,),
    epochs=1,
    step_particles=4,
    prior_network_epochs=1,
    vgg_channels=(2, 2),
    transport_steps=2,
    transport_points=4,
)


def tiny_domain():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat(60)
    centres = torch.randn(10, 1, 28, 28, generator=generator)
    x = centres[labels] + 0.5 * torch.randn(600, 1, 28, 28, generator=generator)
    ood = {name: torch.randn(40, 1, 28, 28, generator=generator) for name in ("omniglot", "semeion", "noise")}
    parts = x.split([300, 100, 200])
    of = labels.split([300, 100, 200])
    return Domain("mnist", 10, parts[0], of[0], parts[1], of[1], parts[2], of[2], ood)


@pytest.fixture
def _tiny(monkeypatch):
    monkeypatch.setitem(module.DOMAINS, "mnist", tiny_domain)
    monkeypatch.setitem(module.QUICK, "mnist", TINY)
    monkeypatch.setitem(module.QUICK_SIZES, "mnist", (300, 200, 40))


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_every_row_of_table_1_can_be_run(tmp_path):
    (record,), times = reproduce("mnist", tmp_path, seeds=[3], quick=True)
    assert json.loads((tmp_path / "mnist-quick-seed3.json").read_text()) == record
    assert json.loads((tmp_path / "mnist-quick-times.json").read_text()) == times
    assert record["seed"] == 3
    assert len(record["rows"]) == len(module.select("mnist", None))
    for name, row in record["rows"].items():
        assert 0 <= row["accuracy"] <= 100, name
        assert row["ood"].keys() == {"omniglot", "semeion", "noise"}, name
        assert row["ood"]["noise"]["count"] == 40
        known = [entry for entry in row["ood"]["noise"].values() if isinstance(entry, dict)]
        assert known, name
        assert all(0 <= entry["auroc"] <= 100 for entry in known), name
        assert row["commit"] == record["environment"]["commit"]
    novelty = {name for name, row in record["rows"].items() if "novelty" in row["ood"]["noise"]}
    assert novelty == {name for name in record["rows"] if name.startswith(("OPU", "BDK-DIR"))}
    assert times["seconds"].keys() == {"mc_dropout", "sgld", "opu", "bdk", "dpn_vgg"}


@pytest.mark.usefixtures("_tiny")
def test_held_out_classes_are_the_ood_set_and_turn_with_the_seed(tmp_path):
    rows = ["MCDP-KL", "BDK-MCDP", "DPN (MLP)"]
    records, _ = reproduce("mnist-held-out", tmp_path, seeds=[1, 4], rows=rows, quick=True)
    assert [record["domain"] for record in records] == ["mnist-without-1-mod-5", "mnist-without-4-mod-5"]
    for record in records:
        assert list(record["rows"]) == ["MCDP-KL", "BDK-MCDP (augmented)", "DPN (MLP)"]
        for row in record["rows"].values():
            # Two of ten classes of twenty test inputs each.
            assert row["ood"].keys() == {"held_out_classes"}
            assert row["ood"]["held_out_classes"]["count"] == 40
            assert row["ood"]["held_out_classes"]["base_rate"] == pytest.approx(20)
            assert row["accuracy"] > 100 / 8


@pytest.mark.usefixtures("_tiny")
def test_our_recipe_meets_an_ensemble_and_photographs(tmp_path, monkeypatch):
    console = Console(file=io.StringIO(), width=200)
    rows = ["ENS", "MCDP-KL", "MCDP (robust)"]
    records, times = reproduce("mnist-robust", tmp_path, seeds=[2], rows=rows, quick=True, console=console)
    found = records[0]["rows"]
    both = ["OPU-ENS (robust)", "OPU-ENS (robust, logistic-normal)"]
    assert list(found) == ["MCDP-KL", "OPU-MCDP (robust)", "ENS-KL", *both]
    assert [found[name]["row"]["family"] for name in both] == ["dirichlet", "logistic_normal"]
    assert all(len(found[name]["agreement"]["coverage"]["predicted"]) == 10 for name in both)
    assert all(row["ood"]["photographs"]["count"] == 40 for row in found.values())
    assert len(list((tmp_path / "mnist-robust-quick-seed2").glob("member-*.safetensors"))) == 5
    monkeypatch.setattr(Models, "train", lambda *_: pytest.fail("a teacher was trained again"))
    again, _ = reproduce("mnist-robust", tmp_path, seeds=[2], rows=rows, quick=True, console=console)
    assert again[0]["rows"] == found
    show(records, times, console)
    assert "OPU-ENS (robust): N" in console.file.getvalue().split("less their teachers' best")[1]


def test_a_domain_without_classes_keeps_the_others_whole():
    whole = tiny_domain()
    without = whole.without((2, 7))
    names = torch.tensor([0, 1, 3, 4, 5, 6, 8, 9])
    assert without.num_classes == 8
    for inputs, labels in (("x", "labels"), ("held_out", "held_out_labels"), ("test", "test_labels")):
        kept = torch.isin(getattr(whole, labels), names)
        assert torch.equal(getattr(without, inputs), getattr(whole, inputs)[kept])
        assert torch.equal(names[getattr(without, labels)], getattr(whole, labels)[kept])
    left_out = torch.isin(whole.test_labels, torch.tensor([2, 7]))
    assert without.ood.keys() == {"held_out_classes"}
    assert torch.equal(without.ood["held_out_classes"], whole.test[left_out])


@pytest.mark.parametrize("num_classes", [10, 47])
def test_five_seeds_leave_out_every_class_once(num_classes):
    labels = torch.arange(num_classes)
    rows = torch.zeros(num_classes, 1, 28, 28) + labels[:, None, None, None]
    whole = Domain("any", num_classes, rows, labels, rows, labels, rows, labels, {})
    left_out = torch.cat([held_out_classes(whole, seed).ood["held_out_classes"][:, 0, 0, 0] for seed in range(5)])
    assert torch.equal(left_out.sort().values, labels.float())


@pytest.mark.usefixtures("_tiny")
def test_of_our_own_sets_few_are_fitted_and_all_are_asked(tmp_path, monkeypatch):
    def scores(out):
        (record,), _ = reproduce("mnist", out, seeds=[0], rows=["MCDP-KL (clamped"], quick=True)
        return record["rows"]["MCDP-KL (clamped)"]["ood"]

    whole = scores(tmp_path / "whole")
    monkeypatch.setattr(module, "MOST_POINTWISE", 7)
    fewer = scores(tmp_path / "fewer")
    assert fewer["omniglot"] == whole["omniglot"]  # the paper's sets are fitted whole
    assert fewer["noise"]["count"] == whole["noise"]["count"] == 40
    for measure in ("predictive_entropy", "least_confidence", "mutual_information"):
        assert fewer["noise"][measure] == whole["noise"][measure]
    assert fewer["noise"]["negative_log_precision"] != whole["noise"]["negative_log_precision"]


@pytest.mark.usefixtures("_tiny")
def test_a_row_whose_settings_changed_is_not_taken_for_done(tmp_path):
    reproduce("mnist", tmp_path, seeds=[0], rows=["DPN (MLP)"], quick=True)
    path = tmp_path / "mnist-quick-seed0" / "dpn-mlp.json"
    kept = json.loads(path.read_text())
    kept["row"]["kind"] = "dpn_mlp_errors"
    path.write_text(json.dumps(kept))
    with pytest.raises(ValueError, match="the same row with other settings"):
        reproduce("mnist", tmp_path, seeds=[0], rows=["DPN (MLP)"], quick=True)


@pytest.mark.usefixtures("_tiny")
def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    first = reproduce("mnist", tmp_path, seeds=[0], rows=["MCDP-KL (paper", "BDK-MCDP"], quick=True)[0]
    monkeypatch.setattr(Models, "make", lambda self, row: pytest.fail(f"{row.name} was made again"))
    again = reproduce("mnist", tmp_path, seeds=[0], rows=["MCDP-KL (paper", "BDK-MCDP"], quick=True)[0]
    assert again[0]["rows"] == first[0]["rows"]


@pytest.mark.usefixtures("_tiny")
def test_rows_of_an_earlier_run_stay_in_the_record(tmp_path):
    reproduce("mnist", tmp_path, seeds=[0], rows=["MCDP-KL (paper"], quick=True)
    (tmp_path / "mnist-quick-times.json").unlink()  # as if the first run had been stopped before its end
    (record,), times = reproduce("mnist", tmp_path, seeds=[0, 0], rows=["DPN (MLP)"], quick=True)
    assert list(record["rows"]) == ["OPU-MCDP-KL (paper)", "DPN (MLP)"]
    assert "mc_dropout" in times["seconds"]


@pytest.mark.usefixtures("_tiny")
def test_settings_may_be_added_but_results_of_other_settings_are_not_mixed(tmp_path, monkeypatch):
    def again():
        reproduce("mnist", tmp_path, seeds=[0], rows=["DPN (MLP)"], quick=True)

    again()
    monkeypatch.setitem(PRESETS, "new", PRESETS["paper"].changed(epochs=3))
    again()
    monkeypatch.setitem(PRESETS, "new", PRESETS["paper"].changed(epochs=4))
    with pytest.raises(ValueError, match=r"presets\.new\.recipe\.epochs was 3 and is 4 now"):
        again()
    monkeypatch.setitem(PRESETS, "new", PRESETS["paper"].changed(epochs=3))
    monkeypatch.setitem(module.QUICK, "mnist", replace(TINY, prior_network_epochs=2))
    with pytest.raises(ValueError, match=r"scale\.prior_network_epochs was 1 and is 2 now"):
        again()


@pytest.mark.usefixtures("_tiny")
def test_a_result_depends_on_row_and_seed_and_not_on_what_ran_before(tmp_path):
    def result(out, *rows):
        for row in rows:
            (record,), _ = reproduce("mnist", out, seeds=[1], rows=[row], quick=True)
        return {key: value for key, value in record["rows"]["BDK-MCDP (augmented)"].items() if key != "seconds"}

    alone = result(tmp_path / "alone", "BDK-MCDP")
    assert result(tmp_path / "after", "OPU-MCDP-KL (paper", "BDK-MCDP") == alone


@pytest.mark.usefixtures("_tiny")
def test_a_row_that_diverges_does_not_end_the_table(tmp_path, monkeypatch):
    make = Models.make

    def diverging(self, row):
        if row.kind == "opu":
            raise Diverged("the loss was nan at step 3.")
        return make(self, row)

    monkeypatch.setattr(Models, "make", diverging)
    text = io.StringIO()
    (record,), _ = reproduce(
        "mnist", tmp_path, seeds=[0], rows=["MCDP-KL (paper", "BDK-MCDP"], quick=True, console=Console(file=text)
    )
    assert list(record["rows"]) == ["BDK-MCDP (augmented)"]
    assert "has no result: the loss was nan" in " ".join(text.getvalue().split())


@pytest.mark.usefixtures("_tiny")
def test_a_teacher_that_was_kept_is_the_one_that_goes_on(tmp_path):
    domain = tiny_domain()
    models = [Models(domain, TINY, 0, tmp_path, torch.device("cpu"), progress=False) for _ in range(2)]
    for name in ("mc_dropout", "sgld"):
        first, second = (as_teacher(each.teacher(name)).network().state_dict() for each in models)
        # SGLD's samples are kept in half precision.
        torch.testing.assert_close(dict(first), dict(second), rtol=1e-3, atol=1e-3)
    weights = tmp_path / "mc_dropout.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    with pytest.raises(ValueError, match="not a whole file of weights"):
        Models(domain, TINY, 0, tmp_path, torch.device("cpu")).teacher("mc_dropout")


KILLED = """
    import sys
    from pathlib import Path
    sys.path[:0] = [{root!r}, {tests!r}]
    from test_reproduce import TINY, module, reproduce, tiny_domain
    module.DOMAINS["mnist"], module.QUICK["mnist"], module.QUICK_SIZES["mnist"] = tiny_domain, TINY, (300, 200, 40)
    reproduce("mnist", Path({out!r}), seeds=[0], rows=["MCDP-KL"], quick=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path):
    here = Path(__file__).parent
    code = textwrap.dedent(KILLED).format(root=str(here.parents[2]), tests=str(here), out=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    done = tmp_path / "mnist-quick-seed0" / "mcdp-kl.json"
    deadline = time.monotonic() + 120
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert done.exists()
    assert not (tmp_path / "mnist-quick-seed0.json").exists()
    before = done.stat().st_mtime_ns
    (resumed,), _ = reproduce("mnist", tmp_path, seeds=[0], rows=["MCDP-KL"], quick=True)
    assert done.stat().st_mtime_ns == before
    assert len(resumed["rows"]) == 4
    # The same as a run that nobody stopped.
    (whole,), _ = reproduce("mnist", tmp_path / "whole", seeds=[0], rows=["MCDP-KL"], quick=True)
    for name, row in whole["rows"].items():
        assert {**resumed["rows"][name], "seconds": 0} == {**row, "seconds": 0}, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["reproduce", "cifar"],
            "emnist-held-out, mnist-robust, emnist-robust, blr, gp and figure; got 'cifar'",
        ),
        (["reproduce", "mnist", "--seeds", "a,b"], "--seeds takes whole numbers"),
        (["reproduce", "mnist", "--seeds", "-1"], "--seeds takes whole numbers of at least 0"),
        (["reproduce", "mnist", "--rows", "nonsense"], "no row of mnist has 'nonsense' in its name"),
        (["reproduce", "mnist", "--device", "warp"], "--device takes cpu, cuda or auto; 'warp' cannot be used"),
    ],
)
def test_mistakes_cost_one_line(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["opu", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert message in " ".join(printed.split())
    assert "Traceback" not in printed
    assert list(tmp_path.iterdir()) == []


def test_without_data_the_command_to_get_it_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OPU_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["opu", "reproduce", "mnist", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "opu data fetch mnist" in " ".join(capsys.readouterr().err.split())
