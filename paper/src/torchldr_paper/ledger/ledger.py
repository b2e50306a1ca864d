"""The ledger: one line of JSON a finished run, appended and never changed.

What we published ships with the package (`published/*.jsonl`, read only); a user's own runs are appended
to `ledger.jsonl` in a folder of their choice. Later lines win over earlier ones and the user's over the
published ones. One process writes at a time; a line that was cut off by a crash is reported and skipped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import IO, Any

from ..protocol import Run
from .records import Record

_log = logging.getLogger("torchldr_paper")

FILE = "ledger.jsonl"
LOCK = ".ledger.lock"
_WAIT_SECONDS = 60.0


def default_results() -> Path:
    """`results/` of the checkout that this package runs from, or `./results` where it is installed."""
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

    Attributes:
        results: the folder.
        problems: lines that could not be read, in words.
    """

    def __init__(self, results: str | os.PathLike[str] | None = None, *, published: bool = True) -> None:
        self.results = default_results() if results is None else Path(results).expanduser()
        self.problems: list[str] = []
        self._records: dict[tuple[str, str], Record] = {}
        if published:
            for name, text in _published():
                self._take(name, text)
        self.read_again()

    def read_again(self) -> None:
        """Take in what other processes have written to one's own ledger since."""
        if self.path.is_file():
            self._take(str(self.path), self.path.read_text(encoding="utf-8", errors="replace"))

    @property
    def path(self) -> Path:
        return self.results / FILE

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def find(self, run: Run, source: str | None = None, fingerprint: str | None = None) -> Record | None:
        """The record of a run, official data before others; None where it was not run.

        Args:
            run: which.
            source: "official", "stand-in" or "user", where only that counts.
            fingerprint: of the data, where only that counts.
        """
        found = [
            record
            for (key, _), record in self._records.items()
            if key == run.hash
            and source in (None, record.source)
            and fingerprint in (None, record.fingerprint)
        ]
        official = [record for record in found if record.source == "official"]
        kept = official or found
        return kept[-1] if kept else None

    def prepare(self) -> None:
        """Make the user's folder, so that a run that is trained can be kept.

        Raises:
            OSError: where that cannot be, with a sentence.
        """
        try:
            self.results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"{self.results}: results cannot be kept here ({error.strerror}).") from error
        if not os.access(self.results, os.W_OK):
            raise OSError(f"{self.results}: results cannot be kept here (not writable).")

    def append(self, record: Record) -> None:
        """Write a finished run to the user's ledger, whole or not at all, under a lock."""
        line = json.dumps(record.to_json(), separators=(",", ":"), allow_nan=False)
        self.prepare()
        with self._locked(), self.path.open("ab+") as stream:
            if _cut_off(stream):
                line = f"\n{line}"  # the broken line ends here and stays what it is
            stream.write(f"{line}\n".encode())
            stream.flush()
            os.fsync(stream.fileno())
        self._remember(record)

    def _remember(self, record: Record) -> None:
        key = record.hash, record.fingerprint
        self._records.pop(key, None)  # so that the latest is also last
        self._records[key] = record

    def _take(self, name: str, text: str) -> None:
        """Read the lines of a file; the reasons for those that cannot be read go to `problems`."""
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                self._remember(Record.from_json(json.loads(line)))
            except (ValueError, TypeError, KeyError) as error:
                torn = " (cut off while it was written?)" if number == len(lines) else ""
                problem = f"{name}, line {number}: skipped{torn}: {error}"
                self.problems.append(problem)
                _log.warning("%s", problem)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.results / LOCK).open("a") as stream:
            _lock(stream, self.results / LOCK)
            try:
                yield
            finally:
                _unlock(stream)


def merged(records: Iterable[Record]) -> str:
    """Records as the text of a ledger file, the latest of each run and data, ordered by label."""
    latest: Mapping[tuple[str, str], Record] = {(r.hash, r.fingerprint): r for r in records}
    ordered = sorted(latest.values(), key=lambda record: (record.run.label, record.hash))
    return "".join(json.dumps(r.to_json(), separators=(",", ":"), allow_nan=False) + "\n" for r in ordered)


def _published() -> Iterator[tuple[str, str]]:
    folder = resources.files("torchldr_paper.ledger") / "published"
    if not folder.is_dir():
        return
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".jsonl"):
            yield f"published/{file.name}", file.read_text(encoding="utf-8")


def _cut_off(stream: IO[bytes]) -> bool:
    """Whether the file's last line has no end."""
    if stream.seek(0, os.SEEK_END) == 0:
        return False
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) != b"\n"


try:
    import fcntl

    def _try_lock(stream: IO[Any]) -> bool:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(stream: IO[Any]) -> None:
        fcntl.flock(stream, fcntl.LOCK_UN)

except ImportError:  # Windows
    import msvcrt

    def _try_lock(stream: IO[Any]) -> bool:
        stream.seek(0)
        try:
            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            return False
        return True

    def _unlock(stream: IO[Any]) -> None:
        stream.seek(0)
        msvcrt.locking(stream.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined, unused-ignore]


def _lock(stream: IO[Any], path: Path) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not _try_lock(stream):
        if time.monotonic() > deadline:
            raise OSError(f"{path}: another process has held the ledger for {_WAIT_SECONDS:.0f} s.")
        time.sleep(0.05)
