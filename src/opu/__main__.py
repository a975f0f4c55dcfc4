"""``python -m opu`` is ``opu``."""

from opu.cli import main

if __name__ == "__main__":
    main("python -m opu")
