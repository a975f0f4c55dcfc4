"""The command line. A user's mistake costs one line on stderr and exit code 2, never a traceback."""

import sys
from typing import NoReturn

import typer
from rich.console import Console

from opu.cli import bench, compare, data, demo, export, fidelity, fit, predict, reproduce, tables, version

CHECKOUT = "From a source checkout"
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(demo.demo)
app.command()(fit.fit)
app.command()(predict.predict)
app.command()(fidelity.fidelity)
app.command()(export.export)
app.command()(version.version)
app.command(rich_help_panel=CHECKOUT)(reproduce.reproduce)
app.command(rich_help_panel=CHECKOUT)(compare.compare)
app.command(rich_help_panel=CHECKOUT)(tables.tables)
app.add_typer(data.app, name="data", rich_help_panel=CHECKOUT)
app.add_typer(bench.app, name="bench", rich_help_panel=CHECKOUT)


@app.callback()
def root() -> None:
    """One-Pass Uncertainty: the whole predictive uncertainty of a Bayesian classifier in one forward pass."""


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
        if not message or "\n" in message:  # no command was given: some releases print the help, others give it here
            print(message, end="")
            sys.exit(2)
        _refuse(f"{message if message.endswith(('.', '?')) else message + '.'} See opu --help.")


def _refuse(sentence: str) -> NoReturn:
    Console(stderr=True, soft_wrap=True).print(f"opu: {sentence}", style="red", markup=False, highlight=False)
    sys.exit(2)


def _sentence(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(text.split())
