"""``opu --version``, and ``opu version`` for scripts that still call it."""

import typer

from opu._version import __version__


def print_and_exit(asked: bool) -> bool:
    """Print the version, if it was asked for, and do nothing else."""
    if asked:
        version()
        raise typer.Exit
    return asked


def version() -> None:
    """Print the version, as `opu --version` does."""
    print(__version__)
