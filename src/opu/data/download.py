"""One address to one file: with a progress bar, timeouts, and patience with connections that are cut."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opu._version import __version__

Report = Callable[[int, int | None], None]  # bytes that are here, bytes in all

# An attempt that brought this much has not failed: a large file may take many connections.
FAIR_PROGRESS = 1 << 20
# Servers say these when they are busy or ill, and may be well again in a moment.
PASSING = {408, 425, 429, 500, 502, 503, 504}


class SourceFailed(Exception):
    """One source did not give the file, in words that follow its address; the next one may."""


class _Cut(Exception):
    """A connection ended early, or has to be begun anew."""


@dataclass(frozen=True)
class Patience:
    """How long a download waits, and how often it tries.

    Args:
        connect: Seconds until a server has taken the connection.
        read: Seconds of silence in a connection.
        attempts: Connections in a row that bring next to nothing, until the source is given up.
        wait: Seconds before the second attempt; twice as long before each one after it.
    """

    connect: float | int = 10
    read: float | int = 30
    attempts: int = 3
    wait: float | int = 1


def download(url: str, part: Path, patience: Patience, report: Report) -> None:
    """Bring an address into a file, and go on from what is already in it where the server can do that."""
    import requests
    from urllib3.exceptions import HTTPError

    failures = 0
    while True:
        before = _length(part)
        try:
            return _go_on(url, part, patience, report)
        except (requests.RequestException, HTTPError, _Cut) as error:
            reason = _in_words(error)
        failures = 0 if _length(part) - before >= FAIR_PROGRESS else failures + 1
        if failures >= patience.attempts:
            raise SourceFailed(f"{reason}, {failures} times in a row")
        time.sleep(patience.wait * 2 ** max(0, failures - 1))


def _go_on(url: str, part: Path, patience: Patience, report: Report) -> None:
    import requests

    have = _length(part)
    # Checksums are of the bytes as they are stored, so no server shall pack or unpack them on the way.
    headers = {"User-Agent": f"opu/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=(patience.connect, patience.read)) as answer:
        if answer.status_code == 416 and _whole_length(answer) == have:
            return
        _refuse_errors(answer)
        resumed = answer.status_code == 206 and _first_byte(answer) == have
        if answer.status_code == 416 or (answer.status_code == 206 and not resumed):
            part.unlink()
            raise _Cut("did not go on from where an earlier connection ended")
        _save(answer, part, have if resumed else 0, report)


def _save(answer: Any, part: Path, start: int, report: Report) -> None:
    length = answer.headers.get("Content-Length")
    total = start + int(length) if length else None
    here = start
    with part.open("ab" if start else "wb") as file:
        for chunk in answer.raw.stream(1 << 16, decode_content=False):
            file.write(chunk)
            here += len(chunk)
            report(here, total)
    if total is not None and here < total:
        raise _Cut(f"cut the connection after {here:,} of {total:,} bytes")


def _refuse_errors(answer: Any) -> None:
    status = answer.status_code
    if status < 400 or status == 416:
        return
    said = f"answered {status} {answer.reason}"
    if status in PASSING:
        raise _Cut(said)
    raise SourceFailed(said)


def _first_byte(answer: Any) -> int | None:
    match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _whole_length(answer: Any) -> int | None:
    match = re.match(r"bytes \*/(\d+)", answer.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _in_words(error: Exception) -> str:
    import requests
    from urllib3 import exceptions

    if isinstance(error, _Cut):
        return str(error)
    if isinstance(error, requests.Timeout | exceptions.TimeoutError):
        return "did not answer in time"
    # requests wraps what urllib3 says before an answer has begun, and leaves it bare afterwards.
    if any(isinstance(each, exceptions.ProtocolError) for each in (error, *error.args)):
        return "cut the connection"
    if isinstance(error, requests.ConnectionError):
        return "could not be reached"
    return f"failed ({type(error).__name__}: {' '.join(str(error).split())})"


@contextmanager
def progress_bar(label: str) -> Iterator[Report]:
    """A bar on stderr while a file comes in, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda here, total: bar.update(task, completed=here, total=total)
