"""The ledger: one line of JSON a finished run, appended and never changed.

What we published ships with the package (`published/*.jsonl`, read only); a user's own runs are appended
to `ledger.jsonl` in a folder of their choice. Later lines win over earlier ones, and the user's over the
published ones. One process writes at a time. A line that is damaged, is not a record or was cut off by a
crash is reported and skipped.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout  # torch requires it

from ..protocol import Run
from .records import Record

_log = logging.getLogger("torchldr_paper")

FILE = "ledger.jsonl"
LOCK = ".ledger.lock"
PUBLISHED = Path(__file__).parent / "published"  # what ships with the package
_WAIT_SECONDS = 60.0


def default_results() -> Path:
    """`results/` of the checkout that this package runs from, or `./results` if it is installed."""
    root = Path(__file__).resolve().parents[4]
    inside = root / "paper" / "src" / "torchldr_paper" == Path(__file__).resolve().parents[1]
    if inside and any((root / mark).exists() for mark in ("pyproject.toml", ".git")):
        return root / "results"
    return Path("results")


class Ledger:
    """The runs that are known here.

    Args:
        results: the folder of one's own ledger; by default `default_results()`. It is made when
            something is written.
        published: whether to read what ships with the package too.
        curves: whether to keep the metrics by epoch in memory. Thousands of runs need some 100 kB each with
            them and 5 kB without; the file has them in any case.

    Attributes:
        results: the folder.
        problems: lines that could not be read, in words.
    """

    def __init__(
        self, results: str | os.PathLike[str] | None = None, *, published: bool = True, curves: bool = True
    ) -> None:
        self._curves = curves
        self.results = default_results() if results is None else Path(results).expanduser()
        self.problems: list[str] = []
        self._records: dict[str, dict[str, Record]] = {}  # by hash, then by fingerprint
        self._skipped: set[tuple[str, int]] = set()  # file and line of each problem
        self._bytes = self._lines = 0  # of one's own ledger that were read: whole lines
        if published:
            for name, text in _published():
                for number, line in enumerate(text.split("\n"), 1):
                    self._take(name, number, line, curves=curves)
        self._read(whole=False)

    def read_again(self) -> None:
        """Take in what other processes have written to one's own ledger since."""
        self._read(whole=True)

    def _read(self, *, whole: bool) -> None:
        """Read new lines; only whole ones if another process may be writing."""
        try:
            with self.path.open("rb") as stream:
                if stream.seek(0, os.SEEK_END) < self._bytes:  # another file has taken its place
                    self._bytes = self._lines = 0
                stream.seek(self._bytes)
                for line in stream:
                    torn = not line.endswith(b"\n")
                    if torn and whole:
                        break
                    text = line.decode("utf-8", errors="replace")
                    self._take(str(self.path), self._lines + 1, text, torn=torn)
                    if not torn:
                        self._bytes, self._lines = self._bytes + len(line), self._lines + 1
        except (FileNotFoundError, NotADirectoryError):
            return

    @property
    def path(self) -> Path:
        return self.results / FILE

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def __iter__(self) -> Iterator[Record]:
        return (record for found in self._records.values() for record in found.values())

    def find(self, run: Run, source: str | None = None, fingerprint: str | None = None) -> Record | None:
        """The record of a run, on official data before others; None if it was not run.

        Args:
            run: which.
            source: only "official", "stand-in" or "user" data.
            fingerprint: only data with this fingerprint.
        """
        found = [
            record
            for record in self._records.get(run.hash, {}).values()
            if source in (None, record.source) and fingerprint in (None, record.fingerprint)
        ]
        official = [record for record in found if record.source == "official"]
        kept = official or found
        return kept[-1] if kept else None

    def prepare(self) -> None:
        """Make the user's folder, so that a run that is trained can be kept; an OSError says why not."""
        try:
            self.results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"{self.results}: results cannot be kept here ({error.strerror}).") from error
        if not os.access(self.results, os.W_OK):
            raise OSError(f"{self.results}: results cannot be kept here (not writable).")

    def append(self, record: Record) -> None:
        """Write a finished run to the user's ledger, whole or not at all, under a lock."""
        line = f"{record.to_line()}\n".encode()
        self.prepare()
        try:
            lock = FileLock(self.results / LOCK, timeout=_WAIT_SECONDS)
            with lock, self.path.open("ab+", buffering=0) as stream:
                self.read_again()
                broken = append_line(stream, line)
                self._bytes, self._lines = stream.tell(), self._lines + 1 + broken
        except Timeout:
            message = f"{self.path}: another process has held the ledger for {_WAIT_SECONDS:.0f} s."
            raise OSError(message) from None
        except OSError as error:
            if error.filename is not None or error.errno is None:
                raise
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._remember(record)

    def _remember(self, record: Record) -> None:
        if not self._curves:
            brief = {key: value for key, value in record.result.items() if key != "metrics"}
            record = replace(record, result=brief)
        found = self._records.pop(record.hash, {})  # so that the latest is also last
        found.pop(record.fingerprint, None)
        self._records[record.hash] = {**found, record.fingerprint: record}

    def _take(self, name: str, number: int, line: str, *, torn: bool = False, curves: bool = True) -> None:
        """Read a line of a file, the metrics too unless not `curves`; a bad one goes to `problems`."""
        if not line.strip():
            return
        try:
            self._remember(Record.from_line(line.removesuffix("\n"), curves=curves))
        except Exception as error:
            # Whatever a strange line makes of the code that reads it: the others still count.
            if (name, number) in self._skipped:
                return
            said = " (cut off while it was written?)" if torn else ""
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            problem = f"{name}, line {number}: skipped{said}: {reason or type(error).__name__}"
            self._skipped.add((name, number))
            self.problems.append(problem)
            _log.warning("%s", problem)


def append_line(stream: IO[bytes], line: bytes) -> bool:
    """Write a whole line or nothing; returns whether the line before was cut off.

    A line that was cut off is ended here and stays as it is.
    """
    size, broken = stream.seek(0, os.SEEK_END), False
    if size:
        stream.seek(-1, os.SEEK_END)
        broken = stream.read(1) != b"\n"
    left = memoryview(b"\n" + line if broken else line)
    try:
        while left:
            left = left[stream.write(left) :]
        os.fsync(stream.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            stream.truncate(size)
        raise
    return broken


def merged(records: Iterable[Record]) -> str:
    """Records as the text of a ledger file, the latest of each run and data, ordered by label."""
    latest: Mapping[tuple[str, str], Record] = {(r.hash, r.fingerprint): r for r in records}
    ordered = sorted(latest.values(), key=lambda record: (record.run.label, record.hash))
    return "".join(f"{record.to_line()}\n" for record in ordered)


def _published() -> Iterator[tuple[str, str]]:
    for file in sorted(PUBLISHED.glob("*.jsonl")):
        yield f"published/{file.name}", file.read_text(encoding="utf-8")
