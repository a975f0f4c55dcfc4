"""The command line. A user's mistake costs one line on stderr and exit code 2, never a traceback."""

import re
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from opu._version import __version__
from opu.cli.bench import app as bench_app
from opu.cli.data import data_app

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")


@app.callback()
def root() -> None:
    """One-Pass Uncertainty: the whole predictive uncertainty of a Bayesian classifier in one forward pass."""


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for metrics, student and pictures.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier run in that folder.")] = False,
) -> None:
    """Distil an MC-dropout network on scikit-learn's digits and show what the student knows; needs no download."""
    from opu.demo import run_demo

    run_demo(out, seed=seed, overwrite=overwrite)


@app.command()
def reproduce(
    table: Annotated[str, typer.Argument(help="mnist, emnist, either with -held-out or -robust, blr, gp, or figure.")],
    out: Annotated[Path, typer.Option(help="Folder for results, models and logs; a stopped run goes on there.")] = Path(
        "runs/reproduce"
    ),
    seeds: Annotated[str, typer.Option(help="Which seeds, such as 0,1,2.")] = "0",
    rows: Annotated[
        str,
        typer.Option(
            help="Only rows with one of these texts in their name, such as robust,BDK; of blr and gp, pima,sound."
        ),
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    quick: Annotated[bool, typer.Option(help="A small version that takes minutes on two CPU cores.")] = False,
) -> None:
    """Run a table of the paper, every row, and print it beside the paper's numbers; or draw its figure."""
    from reproduction.paper import figure
    from reproduction.paper.reproduce import reproduce as run
    from reproduction.paper.rows import TABLES
    from reproduction.paper.table import show
    from reproduction.tabular.reproduce import reproduce_tabular
    from reproduction.tabular.setups import SETUPS
    from reproduction.tabular.table import show as show_tabular

    if table == "figure":
        if rows or quick:
            raise ValueError("the figure is drawn whole, so --rows and --quick do not go with it; leave them out.")
        figure.draw(out, seed=_numbers(seeds)[0])
        return
    wanted = _texts(rows)
    if table in SETUPS:
        show_tabular(reproduce_tabular(table, out, seeds=_numbers(seeds), rows=wanted, quick=quick, device=device))
        return
    if table not in TABLES:
        raise ValueError(f"what can be reproduced is {', '.join([*TABLES, *SETUPS])} and figure; got {table!r}.")
    show(*run(table, out, seeds=_numbers(seeds), rows=wanted, device=device, quick=quick))


@app.command(name="run")
def run_experiment(
    experiment: Annotated[str, typer.Argument(help="rivals.")],
    out: Annotated[Path, typer.Option(help="Folder for results; a stopped run goes on there.")] = Path("runs/rivals"),
    seeds: Annotated[str, typer.Option(help="Which seeds, such as 0,1,2.")] = "0",
    rows: Annotated[str, typer.Option(help="Only rivals with one of these texts in their name, such as OPU,BDK.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    quick: Annotated[bool, typer.Option(help="A small version that takes minutes on two CPU cores.")] = False,
) -> None:
    """Run an experiment of ours: what a user would pick instead of a student, side by side on MNIST."""
    from reproduction.comparison.run import run_comparison
    from reproduction.comparison.table import show

    if experiment != "rivals":
        raise ValueError(f"what can be run is rivals; got {experiment!r}. The paper's tables are under opu reproduce.")
    show(run_comparison(out, seeds=_numbers(seeds), rows=_texts(rows), device=device, quick=quick))


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="A CSV, TSV or Parquet file, one row for each case.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[Path, typer.Option(help="Folder for the classifier, its metrics and a picture.")],
    teacher: Annotated[str, typer.Option(help="polya-gamma, gp, forest, or ensemble.")] = "polya-gamma",
    folds: Annotated[int, typer.Option(min=2, help="Of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    header: Annotated[bool, typer.Option(help="Whether the first line holds names; else columns are 1, 2, ...")] = True,
) -> None:
    """Fit a classifier to a table, check it by cross-validation, and keep it for `opu predict`."""
    from opu.sklearn.run import fit_table

    console = Console()
    found = fit_table(data, target, out, teacher=teacher, folds=folds, seed=seed, header=header, console=console)
    checked = found["cross_validation"]
    console.print(
        f"{found['num_rows']} rows, {found['num_features']} features, {len(found['classes'])} classes. In "
        f"{checked['folds']}-fold cross-validation: accuracy {checked['accuracy']:.1f} %, ECE {checked['ece']:.1f} %, "
        f"intervals hold {100 * checked['coverage']['of_teacher']:.0f} % of the teacher's particles (asked: 90 %).",
        highlight=False,
    )
    for warning in found["warnings"]:
        console.print(f"Noticed: {warning}", highlight=False)
    console.print(f"The classifier is in {out}; use it with: opu predict {out} ROWS.csv", highlight=False)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A folder that `opu fit` wrote.")],
    data: Annotated[Path, typer.Argument(help="A CSV, TSV or Parquet file with the same columns.")],
    out: Annotated[Path, typer.Option(help="CSV file for the answers.")] = Path("predictions.csv"),
    level: Annotated[float, typer.Option(help="Of the credible intervals.")] = 0.9,
    header: Annotated[bool, typer.Option(help="Whether the first line holds names; else columns are 1, 2, ...")] = True,
) -> None:
    """Write class probabilities, credible intervals and novelty for each row of a table."""
    from opu.sklearn.run import predict_table

    console = Console()
    count = predict_table(run, data, out, level=level, header=header, console=console)
    console.print(f"{count} rows answered in {out}.", highlight=False)


@app.command()
def fidelity(
    run: Annotated[Path, typer.Argument(help="A run folder, or the folder of a saved student.")],
    inputs: Annotated[Path | None, typer.Option(help="Inputs (.npy), where the run holds none of its own.")] = None,
    particles: Annotated[
        Path | None, typer.Option(help="Their particles, (samples, inputs, classes): .npy, .npz or .safetensors.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Their classes (.npy), where calibration is wanted.")] = None,
    outputs: Annotated[
        str, typer.Option(help="What the particles are: probabilities, log_probabilities or logits.")
    ] = "probabilities",
) -> None:
    """Say how far a student is from its teacher, whether sampling, family or network is to blame, and what to change."""
    from opu.fidelity.run import report_on_run

    report_on_run(run, inputs=inputs, particles=particles, labels=labels, outputs=outputs)


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="A folder of opu demo, opu fit, or of a saved student.")],
    out: Annotated[Path | None, typer.Option(help="The file; student.onnx in that folder unless given.")] = None,
    format: Annotated[str, typer.Option(help="onnx, or pt2 of torch.export.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Layers in eight bits; a quarter of the size.")] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="Ordinary inputs (.npy) for int8, where the run holds none of its own.")
    ] = None,
    opset: Annotated[int, typer.Option(help="Version of ONNX's operators.")] = 18,
    classes: Annotated[str, typer.Option(help="Names of the classes with commas between them, kept in the file.")] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Write a student to one file that gives probabilities and every measure of uncertainty without Python."""
    from opu.export.drift import show_drift
    from opu.export.run import export_run

    found = export_run(
        source,
        out=out,
        format=format,
        int8=int8,
        calibration=calibration,
        opset=opset,
        classes=_texts(classes),
        overwrite=overwrite,
    )
    console = Console()
    console.print(f"{found.path}: {found.size / 1e6:.2f} MB, outputs {', '.join(found.outputs)}.", highlight=False)
    what = "Before quantisation it" if int8 else "It"
    console.print(f"{what} agrees with PyTorch to {max(found.differences.values()):.1g}.", highlight=False)
    if found.drift is not None:
        show_drift(found.drift, console)


@app.command()
def tables(
    documents: Annotated[list[Path], typer.Argument(help="Markdown files with table markers.")],
    results: Annotated[Path, typer.Option(help="Folder of result files.")] = Path("results"),
) -> None:
    """Render the tables of Markdown documents anew from result files."""
    from opu.files import write_atomically
    from reproduction.rendering import render

    for document in documents:
        text = document.read_text()
        write_atomically(document, render(text, results).encode())


def main() -> None:
    """Run the command line."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except typer.Abort:
        sys.exit(1)
    except (ValueError, OSError, ImportError) as error:
        _refuse(_sentence(error))
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        _refuse("the GPU's memory is full; free some of it, or run on the CPU with --device cpu.")
    except Exception as error:
        # A mistake in the options; typer keeps its own classes of these, which differ from release to release.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if "\n" in message:  # the help, where no command was given
            print(message)
            sys.exit(2)
        _refuse(f"{message.rstrip('.')}. See opu --help.")


def _refuse(sentence: str) -> NoReturn:
    Console(stderr=True, soft_wrap=True).print(f"opu: {sentence}", style="red", markup=False, highlight=False)
    sys.exit(2)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--seeds takes whole numbers with commas between them, such as 0,1,2; got {text!r}."
        ) from None
    if min(numbers) < 0:
        raise ValueError(f"seeds must be 0 or more; got {min(numbers)}.")
    return numbers


def _texts(text: str) -> list[str]:
    # A comma within brackets belongs to a row's name.
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _sentence(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(text.split())
