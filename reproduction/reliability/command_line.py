"""Attacks through the command line: names that look like markup, extreme columns, and files of no kind that we read."""

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from reproduction.reliability.attack import Outcome

_NAMES = ("[/red]", "[bold]", "[link=x]y", "a[0]", "\x1b[31mred", ":smile:", "[/]", "café")


def names() -> list[Outcome]:
    """A column, and a class, of any name is fitted and predicted."""
    broken = 0
    for name in _NAMES:
        with tempfile.TemporaryDirectory() as folder:
            table, run, out = (Path(folder) / each for each in ("table.csv", "run", "out.csv"))
            rng = random.Random(0)
            classes = [name if rng.random() < 0.5 else "other" for _ in range(80)]
            values = [
                f"{rng.gauss(0, 1):.3f}" if rng.random() < 0.9 else "" for _ in classes
            ]  # commands tell of the gaps
            rows = [f"{value},{kind}" for value, kind in zip(values, classes, strict=True)]
            table.write_text("\n".join([f"{name},target", *rows]) + "\n", encoding="utf-8")
            fitted = _opu("fit", table, "--target", "target", "--out", run, "--teacher", "ensemble")
            predicted = _opu("predict", run, table, "--out", out)
            lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
            broken += fitted.returncode != 0 or predicted.returncode != 0 or len(lines) != 81
    return [Outcome("columns and classes may have any name", len(_NAMES), broken)]


def extremes() -> list[Outcome]:
    """One value of 1e300 or 1e308 in a column: it is said by name, and predictions of other rows still differ."""
    cases = broken = 0
    for value in ("1e300", "1e308", "-1e308"):
        with tempfile.TemporaryDirectory() as folder:
            table, run, out = (Path(folder) / each for each in ("table.csv", "run", "out.csv"))
            x = np.random.default_rng(0).normal(size=(120, 2))
            cells = [[f"{a:.4f}", f"{b:.4f}", str(int(a + b > 0))] for a, b in x]
            cells[7][0] = value
            table.write_text("\n".join(["height,width,ill", *map(",".join, cells)]) + "\n")
            fitted = _opu("fit", table, "--target", "ill", "--out", run, "--teacher", "ensemble")
            said = "height" in fitted.stdout + fitted.stderr
            predicted = _opu("predict", run, table, "--out", out) if fitted.returncode == 0 else None
            constant = predicted is not None and _spread(out) < 0.1
            cases, broken = cases + 1, broken + int(not said or constant or fitted.returncode not in (0, 2))
    return [Outcome("a value that spoils its column is said by name", cases, broken)]


def refusals() -> list[Outcome]:
    """Files that are not what a command reads cost one line and exit code 2."""
    cases = broken = 0
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        contents = {
            "empty": b"",
            "noise": rng.randbytes(5000),
            "deep": b"[" * 100_000 + b"]" * 100_000,
            "list": b"[1, 2]",
            "object": b'{"architecture": ["mlp"], "hidden": [100000000]}',
        }
        for name, content in contents.items():
            (home / f"{name}.csv").write_bytes(content)
            (home / f"{name}.npy").write_bytes(content)
            (home / name).mkdir()
            for file in ("config.json", "model.safetensors", "classifier.json", "encoding.json"):
                (home / name / file).write_bytes(content)
            commands = [
                ("fit", home / f"{name}.csv", "--target", "a", "--out", home / "run"),
                ("predict", home / name, home / "object.npy", "--out", home / "out.csv"),
                ("export", home / name, "--out", home / "out.onnx"),
            ]
            for command in commands:
                done = _opu(*command)
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                cases, broken = cases + 1, broken + int(done.returncode != 2 or "Traceback" in done.stderr or not lines)
    return [Outcome("a file that is damaged or foreign costs one sentence", cases, broken)]


def fits(rounds: int = 5) -> list[Outcome]:
    """Of two fits into one folder that start together, one runs and the other is told at its start."""
    broken = 0
    for seed in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            table, run = Path(folder) / "table.csv", Path(folder) / "run"
            rng = random.Random(seed)
            rows = [f"{rng.gauss(0, 1):.3f},{rng.gauss(0, 1):.3f},{rng.randrange(2)}" for _ in range(300)]
            table.write_text("\n".join(["a,b,c", *rows]) + "\n")
            words = ("fit", table, "--target", "c", "--out", run, "--teacher", "ensemble")
            both = [subprocess.Popen(_words(words), env=_ENV, **_QUIET) for _ in range(2)]  # type: ignore[call-overload]
            ended = [0.0, 0.0]
            while not all(ended):
                for number, each in enumerate(both):
                    ended[number] = ended[number] or (time.monotonic() if each.poll() is not None else 0.0)
                time.sleep(0.01)
            codes = [each.returncode for each in sorted(both, key=lambda each: ended[both.index(each)])]
            broken += codes != [2, 0] or not (run / "metrics.json").exists()
    return [Outcome("of two fits into one folder one runs, the other is told at its start", rounds, broken)]


def foreign() -> list[Outcome]:
    """`opu demo --overwrite` on folders that no demo wrote, each with a config.json: no file in them changes."""
    folders = (
        {"config.json": '{"architectures": ["BertModel"]}', "thesis.txt": "precious", "data/weights.bin": "w"},
        {"config.json": "{}"},
        {"config.json": "[]", "metrics.json": '{"settings": {"hidden": 3}}', "notes.md": "mine"},
        {"config.json": '{"distill": {}}', "metrics.json": '{"accuracy": 1.0}', "model.safetensors": "w"},
        {"config.json": "no JSON", "checkpoint/old": "w"},
    )
    broken = 0
    for files in folders:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "mine"
            for name, text in files.items():
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (out / name).write_text(text)
            broken += _changed(("demo", "--out", out, "--overwrite"), out, files)
    return [Outcome("the demo's --overwrite leaves folders that are not a demo's", len(folders), broken)]


def _changed(words: tuple[object, ...], out: Path, files: dict[str, str], seconds: float = 20.0) -> bool:
    """Whether a command that is killed after some seconds changes or adds files in a folder."""
    process = subprocess.Popen(_words(words), env=_ENV, **_QUIET)  # type: ignore[call-overload]
    end, changed = time.monotonic() + seconds, False
    while process.poll() is None and time.monotonic() < end and not changed:
        time.sleep(0.05)
        changed = _contents(out) != files
    process.kill()
    process.wait()
    return changed or _contents(out) != files


def _contents(folder: Path) -> dict[str, str]:
    """The text of all files; none where one went away while they were read."""
    try:
        found = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes().decode(errors="replace") for path in found}
    except OSError:
        return {}


def nested() -> list[Outcome]:
    """A Parquet file of kilobytes with lists or structs of a gigabyte is refused before it takes memory."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    texts, numbers = pa.array(["z" * 3_000_000] * 70), pa.array(np.zeros(70 * 350_000))
    starts = np.arange(71, dtype=np.int32)
    columns = {
        "lists": pa.ListArray.from_arrays(pa.array(350_000 * starts), numbers),
        "structs": pa.StructArray.from_arrays([texts], ["text"]),
        "lists of texts": pa.ListArray.from_arrays(pa.array(starts), texts),
    }
    broken = 0
    for cells in columns.values():
        with tempfile.TemporaryDirectory() as place:
            path, run = Path(place) / "table.parquet", Path(place) / "run"
            table = pa.table({"a": [1.0] * 70, "more": cells, "target": ["u", "v"] * 35})
            with pq.ParquetWriter(path, table.schema, compression="zstd") as file:
                for _ in range(7):  # 1.4 GB in all
                    file.write_table(table)
            broken += _takes_a_gigabyte(("fit", path, "--target", "target", "--out", run, "--teacher", "ensemble"))
    return [Outcome("a Parquet file with nested columns takes less than 1 GB", len(columns), broken)]


def _takes_a_gigabyte(words: tuple[object, ...], seconds: float = 60.0) -> bool:
    """Whether a command's memory grows beyond 1 GB, at which it is killed."""
    process = subprocess.Popen(_words(words), env=_ENV, preexec_fn=_limited, **_QUIET)  # type: ignore[call-overload]
    end, peak = time.monotonic() + seconds, 0
    while process.poll() is None and time.monotonic() < end and peak < 2**20:
        time.sleep(0.01)
        peak = _peak(process.pid)
    process.kill()
    process.wait()
    return peak >= 2**20


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))


def _peak(pid: int) -> int:
    """The most memory that a process had at once, in kilobytes; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


_ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
_QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _words(words: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "opu", *map(str, words)]


def _opu(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(_words(words), capture_output=True, text=True, env=_ENV, check=False)


def _spread(path: Path) -> float:
    """How much the probability of the first class varies over the rows, 0 if there are none."""
    import pandas as pd

    if not path.exists():
        return 0.0
    frame = pd.read_csv(path)
    column = next(name for name in frame.columns if name.startswith("probability"))
    return float(frame[column].max() - frame[column].min())


ATTACKS = (names, extremes, refusals, fits, foreign, nested)
