"""Where the program is, how it is started, and its errors as exceptions."""
from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import threading
from typing import IO, Dict, List, Mapping, Optional, Sequence

_LOG = logging.getLogger("pentatron")
_STATUS_OF_USAGE = 2  # "The command line or the configuration is not valid", docs/cli.md


class Error(RuntimeError):
    """An error that the program reported. `suggestion` is its `try:` line, `exit_status` its exit status (negative: a signal)."""

    def __init__(self, message: str, suggestion: Optional[str] = None, exit_status: int = 1) -> None:
        super().__init__(message if suggestion is None else f"{message}\n  try: {suggestion}")
        self.message = message
        self.suggestion = suggestion
        self.exit_status = exit_status


class ConfigError(Error):
    """The configuration or the command line is not valid; the program did nothing."""


def program() -> str:
    """The path of the program: PENTATRON_PROGRAM, the one in this package, or the one in PATH."""
    named = os.environ.get("PENTATRON_PROGRAM")
    if named:
        if os.access(named, os.X_OK):
            return named
        raise Error(f"PENTATRON_PROGRAM={named} is not a program", "unset PENTATRON_PROGRAM, or build/release/pentatron")
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "pentatron")
    if os.access(own, os.X_OK):
        return own
    found = shutil.which("pentatron")
    if found:
        return found
    raise Error("the program pentatron is neither in this package nor in PATH",
                "PENTATRON_PROGRAM=/path/to/build/release/pentatron, or install the wheel")


def environment() -> Dict[str, str]:
    """The environment of the program: TORCH_ROOT is the torch of this Python, unless it is set."""
    variables = dict(os.environ)
    if "TORCH_ROOT" not in variables:
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.submodule_search_locations:
            variables["TORCH_ROOT"] = list(spec.submodule_search_locations)[0]
    return variables


def error_of(text: str, exit_status: int) -> Error:
    """The exception for a program that ended with this text on standard error."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    kind = ConfigError if exit_status == _STATUS_OF_USAGE else Error
    if not starts:
        how = f"was ended by signal {-exit_status}" if exit_status < 0 else f"ended with exit status {exit_status}"
        return kind("\n".join([f"pentatron {how}"] + lines[-5:]), None, exit_status)
    message: List[str] = []
    suggestion = None
    for line in lines[starts[-1]:]:
        if line.startswith("  try: ") and suggestion is None:
            suggestion = line[len("  try: "):]
        else:
            message.append(line)
    message[0] = message[0][len("error: "):]
    return kind("\n".join(message), suggestion, exit_status)


class Process:
    """A running program. Its standard error goes line by line to the logger "pentatron"; it also contains the error, if any."""

    def __init__(self, arguments: Sequence[str], cwd: Optional[str] = None) -> None:
        self._process = subprocess.Popen([program(), *arguments], cwd=cwd, env=environment(), text=True, encoding="utf-8",
                                         errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE)
        self._stdout: List[str] = []
        self._stderr: List[str] = []
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [threading.Thread(target=self._read, args=(self._process.stdout, self._stdout, None), daemon=True),
                         threading.Thread(target=self._read, args=(self._process.stderr, self._stderr, _LOG), daemon=True)]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: IO[str], lines: List[str], log: Optional[logging.Logger]) -> None:
        for line in stream:
            lines.append(line)
            if log is not None:
                log.info("%s", line.rstrip("\n"))

    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        if self.running():
            self._process.send_signal(number)

    def wait(self) -> str:
        """Standard output, when the program has ended. Raises its error."""
        status = self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        if status != 0:
            raise error_of("".join(self._stderr), status)
        return "".join(self._stdout)


def output_of(arguments: Sequence[str]) -> str:
    """Standard output of a command of the program. Raises its error."""
    return Process(arguments).wait()


def options(values: Mapping[str, object]) -> List[str]:
    """Command line options: {"top_k": 5, "ignore_eos": True, "stop": ["a", "b"]} is --top-k 5 --ignore-eos --stop a --stop b."""
    arguments: List[str] = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(flag)
        else:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                arguments.append(f"{flag}={one}")
    return arguments
