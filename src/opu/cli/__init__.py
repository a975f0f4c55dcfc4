"""The command line: one file for each command."""

from opu.cli.entry import app, main

__all__ = ["app", "main"]
