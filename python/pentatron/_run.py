"""Training runs: a running program, and the lines that it adds to metrics.jsonl."""
from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from types import TracebackType
from typing import Any, Dict, Iterator, Mapping, Optional, Type, Union

from pentatron._config import Config, arguments_of
from pentatron._program import Error, Process, options, output_of

_POLL_S = 0.05


def _folder_of(arguments: "list[str]") -> str:
    """logger.dir of a configuration, as the program understands it."""
    for line in output_of(["config", "show", "--origin", *arguments]).splitlines():
        if line.startswith("logger.dir: "):
            text = line[len("logger.dir: "):]
            if text.startswith('"'):
                return str(json.JSONDecoder().raw_decode(text)[0])
            return text.split(" #")[0].strip()
    return ""


def _read_json(path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


class Run:
    """A training run. Iterate over it for its metrics: the lines of metrics.jsonl (docs/monitoring.md) as dicts, in order,
    until the run ends; then its error is raised, if it has one. As a context manager it stops the run at the end."""

    def __init__(self, arguments: "list[str]", folder: str, temporary: bool) -> None:
        self.folder = folder  #: logger.dir of the run; a temporary folder if the configuration names none
        self._temporary = temporary
        self._before = self._state()
        self._process = Process(arguments)

    def summary(self) -> Dict[str, Any]:
        """run.json: how the run ended, last and best losses, tokens, time. Empty before the run has started."""
        return _read_json(os.path.join(self.folder, "run.json"))

    def _state(self) -> "Optional[tuple[int, int]]":
        """Changes when run.json is written."""
        try:
            status = os.stat(os.path.join(self.folder, "run.json"))
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def stop(self) -> None:
        """Asks the run to end after the current step, with a checkpoint if it has checkpoint.save, and waits for it."""
        self._process.signal(signal.SIGINT)
        try:
            self.wait()
        except Error as error:
            if error.exit_status not in (-signal.SIGINT, 128 + signal.SIGINT):
                raise

    def wait(self) -> Dict[str, Any]:
        """Waits for the end of the run. Returns summary(); raises the run's error."""
        self._process.wait()
        return self.summary()

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        offset, first = 0, None
        while True:
            running = self._process.running()
            if first is None and self._state() != self._before:
                # Written when the run starts, after the lines that it replaces were removed from metrics.jsonl.
                first = (self.summary().get("resumed_iteration") or 0) + 1
            if first is not None:
                for entry, offset in self._lines(offset):
                    if entry.get("iteration", 0) >= first:
                        yield entry
            if not running:
                break
            time.sleep(_POLL_S)
        self.wait()

    def _lines(self, offset: int) -> "Iterator[tuple[Dict[str, Any], int]]":
        """The complete lines of metrics.jsonl from an offset, each with the offset after it."""
        try:
            file = open(os.path.join(self.folder, "metrics.jsonl"), "rb")
        except OSError:
            return
        with file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                try:
                    yield json.loads(line), offset
                except ValueError:
                    continue

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        try:
            if self._process.running():
                self.stop()
        finally:
            if self._temporary:
                shutil.rmtree(self.folder, ignore_errors=True)


def run(config: Union[str, "os.PathLike[str]", Mapping[str, Any], Config, None] = None,
        overrides: Optional[Mapping[str, Any]] = None, **command_options: Any) -> Run:
    """Starts `pentatron train` and returns the run; iterate over it for its metrics.

    config: a YAML file, a Config or a dict; overrides: settings that come after it, as {"optimizer.lr": 1e-4}.
    command_options: the command's options, as ranks=2, backend="sockets".
    Raises ConfigError immediately if a key or value does not match the schema; errors that the program finds later are raised by the
    iteration, by wait() and by stop().
    """
    arguments = arguments_of(config, overrides)
    folder = _folder_of(arguments)
    temporary = not folder
    if temporary:
        folder = tempfile.mkdtemp(prefix="pentatron-")
        arguments += [f"logger.dir={json.dumps(folder)}", "logger.plot=false", "logger.tensorboard=false"]
    return Run(["train", *options(command_options), *arguments], folder, temporary)
