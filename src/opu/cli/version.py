"""``opu version``."""

from opu._version import __version__


def version() -> None:
    """Print the version."""
    print(__version__)
