"""Download one address into a file, with timeouts, retries, resumption and a progress bar."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opu._version import __version__
from opu.terminal import printable

Report = Callable[[int, int | None], None]  # bytes so far, bytes in all

# A connection that brought this many bytes does not count as a failure: a large file may take many connections.
FAIR_PROGRESS = 1 << 20
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}  # HTTP statuses that may pass in a moment


class SourceFailed(Exception):
    """A source did not give the file, in words that follow its address; the next source may."""


class _Interrupted(Exception):
    """A connection failed, in words that follow its address; another attempt may succeed."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long a download waits and how often it tries.

    Args:
        connect: Seconds until the server must have accepted the connection.
        read: Seconds without a byte after which a connection is given up.
        attempts: Number of failed connections in a row after which the source is given up.
        wait: Seconds before the second attempt; they double before each further one.
    """

    connect: float | int = 10
    read: float | int = 30
    attempts: int = 3
    wait: float | int = 1


def download(url: str, part: Path, retry: RetryPolicy, report: Report) -> None:
    """Download an address into a file; continue after the bytes it already has if the server allows it."""
    import requests
    from urllib3.exceptions import HTTPError

    failures = 0
    while True:
        before = _length(part)
        try:
            return _continue(url, part, retry, report)
        except (requests.RequestException, HTTPError, _Interrupted) as error:
            reason = _reason(error)
        failures = 0 if _length(part) - before >= FAIR_PROGRESS else failures + 1
        if failures >= retry.attempts:
            raise SourceFailed(f"{reason}, {failures} times in a row")
        time.sleep(retry.wait * 2 ** max(0, failures - 1))


def _continue(url: str, part: Path, retry: RetryPolicy, report: Report) -> None:
    import requests

    have = _length(part)
    # Checksums belong to the bytes as they are stored, so the server must not compress them.
    headers = {"User-Agent": f"opu/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=(retry.connect, retry.read)) as response:
        status, served = response.status_code, response.headers.get("Content-Range", "")
        if status == 416 and served == f"bytes */{have}":
            return  # the file is complete
        if status >= 400 and status != 416:
            error = _Interrupted if status in TRANSIENT else SourceFailed
            raise error(f"replied {status} {response.reason}")
        resumed = status == 206 and served.startswith(f"bytes {have}-")
        if status in (206, 416) and not resumed:
            part.unlink(missing_ok=True)
            raise _Interrupted("did not continue where an earlier connection ended")
        _save(response, part, have if resumed else 0, report)


def _save(response: Any, part: Path, start: int, report: Report) -> None:
    length = response.headers.get("Content-Length")
    total = start + int(length) if length else None
    here = start
    with part.open("ab" if start else "wb") as file:
        for chunk in response.raw.stream(1 << 16, decode_content=False):
            file.write(chunk)
            here += len(chunk)
            report(here, total)
    if total is not None and here < total:
        raise _Interrupted(f"cut the connection after {here:,} of {total:,} bytes")


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: Exception) -> str:
    import requests
    from urllib3 import exceptions

    if isinstance(error, _Interrupted):
        return str(error)
    if isinstance(error, requests.Timeout | exceptions.TimeoutError):
        return "did not respond in time"
    # requests wraps the errors of urllib3 until the response has begun, and not afterwards.
    if any(isinstance(each, exceptions.ProtocolError) for each in (error, *error.args)):
        return "cut the connection"
    if isinstance(error, requests.ConnectionError):
        return "could not be reached"
    return f"failed ({type(error).__name__}: {' '.join(str(error).split())})"


@contextmanager
def progress_bar(label: str) -> Iterator[Report]:
    """A progress bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(printable(label), total=None)
        yield lambda here, total: bar.update(task, completed=here, total=total)
