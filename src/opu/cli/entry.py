"""The command line. A user's mistake costs one line on stderr and exit code 2, never a traceback."""

import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from opu.cli import bench, compare, data, demo, export, fidelity, fit, predict, reproduce, tables, version
from opu.terminal import printable, say

MAINTAINERS = "For maintainers: experiments and benchmarks, which need a source checkout"
_FULL = "the memory of this machine is full; free some of it, or give fewer rows at once."
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(demo.demo)
app.command()(fit.fit)
app.command()(predict.predict)
app.command()(fidelity.fidelity)
app.command()(export.export)
app.command(hidden=True)(version.version)
app.command(rich_help_panel=MAINTAINERS)(reproduce.reproduce)
app.command(rich_help_panel=MAINTAINERS)(compare.compare)
app.command(rich_help_panel=MAINTAINERS)(tables.tables)
app.add_typer(data.app, name="data", rich_help_panel=MAINTAINERS)
app.add_typer(bench.app, name="bench", rich_help_panel=MAINTAINERS)


@app.callback(epilog="Help on one command: opu demo --help")
def root(
    asked: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=version.print_and_exit),
    ] = False,
) -> None:
    """The whole predictive uncertainty of a Bayesian classifier in one forward pass.

    A teacher (MC dropout, an ensemble, posterior samples) is distilled into a
    student, a network that predicts a Dirichlet. Start with `opu demo`, which
    needs no data, or with `opu fit` on a table of yours.
    """


def main(program: str = "opu") -> None:
    """Run the command line.

    Args:
        program: What the user typed to get here, as usage and advice repeat it.
    """
    try:
        sys.exit(app(standalone_mode=False, prog_name=program) or 0)
    except typer.Abort:
        sys.exit(1)
    except (ValueError, OSError, ImportError) as error:
        _refuse(_sentence(error))
    except MemoryError:
        _refuse(_FULL)
    except RuntimeError as error:
        if "DefaultCPUAllocator" in str(error):  # PyTorch, which raises no MemoryError
            _refuse(_FULL)
        if "out of memory" not in str(error):
            raise
        _refuse("the GPU's memory is full; free some of it, or run on the CPU with --device cpu.")
    except Exception as error:
        # A mistake in the options; typer keeps its own classes of these, which differ from release to release.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if not message or "\n" in message:  # no command was given: some releases print the help, others give it here
            print("".join(f"{printable(line)}\n" for line in message.splitlines()), end="")
            sys.exit(2)
        _refuse(f"{message if message.endswith(('.', '?')) else message + '.'} See {program} --help.")


def _refuse(sentence: str) -> NoReturn:
    say(Console(stderr=True), f"opu: {sentence}", style="red", soft_wrap=True)
    sys.exit(2)


def _sentence(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(text.split())
