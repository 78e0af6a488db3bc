"""A run on a pseudo-terminal, started by a shell with job control: the progress bar, messages above it, a window that changes its
width, Ctrl-Z and fg, Ctrl-C. What the program writes is replayed on a small terminal, and the screen must be clean.

  run_terminal.py PROGRAM      prints a line for each case; status 1 if one fails
"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

LIMIT_S = 90
LINE = re.compile(r"iteration +\d+/\d+ \| loss [\d.]+ \| .*(lr [\d.]+e-\d+|tokens/s|B|ETA \S+|%|\d)$")
TINY = ["model.num_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "model.vocab_size=64", "dataset.type=mock",
        "train.seq_length=16", "train.micro_batch_size=1", "train.global_batch_size=4", "train.num_threads=1", "kernels=order",
        "logger.peak_tflops=1", "logger.tensorboard=false", "checkpoint.save=ck", "logger.dir=log"]


class Screen:
    """The rows that a terminal shows, without an upper end."""

    def __init__(self, width):
        self.width, self.rows, self.column, self.wrapped = width, [[]], 0, []

    def write(self, text):
        at = 0
        while at < len(text):
            c = text[at]
            at += 1
            if c == "\x1b":
                match = re.compile(r"\[(\??[\d;]*)([A-Za-z])").match(text, at)
                if match is None:
                    raise ValueError(f"escape {text[at - 1:at + 8]!r}")
                at = match.end()
                row = self.rows[-1]
                if match.group(2) == "K" and match.group(1) in ("", "0"):
                    del row[self.column:]
                elif match.group(2) == "K" and match.group(1) == "2":
                    row[:] = [" "] * self.column
                elif match.group(2) not in "hlm":  # modes and colors of the shell
                    raise ValueError(f"escape {match.group(0)!r}")
            elif c == "\r":
                self.column = 0
            elif c == "\n":
                self.rows.append([])
                self.column = 0
            elif c == "\b":
                self.column = max(0, self.column - 1)
            elif c != "\a":
                if self.column == self.width:
                    self.wrapped.append("".join(self.rows[-1]))
                    self.rows.append([])
                    self.column = 0
                row = self.rows[-1]
                row.extend(" " * (self.column + 1 - len(row)))
                row[self.column] = c
                self.column += 1

    def lines(self):
        return ["".join(row).rstrip() for row in self.rows]


class Shell:
    def __init__(self, folder, width):
        self.screen, self.output, self.width = Screen(width), "", width
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            environment = {**os.environ, "PS1": "$ ", "TERM": "xterm"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        self.resize(width)

    def resize(self, width):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        self.width = width

    def send(self, text):
        os.write(self.fd, text.encode())

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return
        try:
            text = os.read(self.fd, 65536).decode(errors="replace")
        except OSError:  # the shell has ended
            text = ""
        self.output += text
        self.screen.write(text)

    def wait(self, pattern, after=0):
        """Until `pattern` appears behind position `after` of the output; the position behind it."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            match = re.compile(pattern).search(self.output, after)
            if match:
                return match.end()
            self.read(0.05)
        raise AssertionError(f"no {pattern!r} in\n{self.output[-3000:]}")

    def close(self):
        os.close(self.fd)
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)


def script(folder, program, *arguments):
    with open(os.path.join(folder, "t"), "w", encoding="utf-8") as file:
        file.write("exec " + " ".join(f"'{word}'" for word in (program, *arguments)) + "\n")


def check(condition, what, shell):
    if not condition:
        raise AssertionError(f"{what}\n" + "\n".join(shell.screen.lines()[-40:]))


def check_bars(shell, width, begin):
    """Every bar that was drawn since position `begin` fits."""
    for bar in re.findall(r"\x1b\[K(training \[[^\r\n\x1b]*)", shell.output[begin:]):
        check(len(bar) <= width - 2, f"a bar of {len(bar)} columns on {width}: {bar!r}", shell)


def stopped_run(program, width, more):
    with tempfile.TemporaryDirectory() as folder:
        script(folder, program, "train", *TINY, "train.train_iters=1000000", "logger.log_interval=5", *more)
        shell = Shell(folder, width)
        try:
            shell.wait(r"\$ ")
            shell.send("sh t\n")
            at = shell.wait(r"training \[[#>-]+\]")
            at = shell.wait(r"iteration +\d+/1000000 \|", at)
            at = shell.wait(r"iteration +\d+/1000000 \|[^\n]*\n[^\n]*training \[", at)
            check_bars(shell, width, 0)
            # Ctrl-Z: the bar goes, and comes back with fg.
            shell.send("\x1a")
            at = shell.wait(r"Stopped[^\n]*\n", at)
            at = shell.wait(r"\$ ", at)
            check(not any("training [" in line for line in shell.screen.lines()), "a bar stays behind Ctrl-Z", shell)
            shell.send("fg\n")
            at = shell.wait(r"training \[", at)
            # Ctrl-C: the answer, a checkpoint, and no bar.
            shell.wait(r"iteration +\d+/1000000 \|", at)
            shell.send("\x03")
            at = shell.wait("is finished and saved first", at)
            at = shell.wait("stopped by a signal after iteration", at)
            at = shell.wait(r"\$ ", at)
            shell.send("echo status=$?\n")
            shell.wait(r"status=0\r", at)
            lines = shell.screen.lines()
            check(not any("training [" in line for line in lines), "a bar stays on the screen", shell)
            answers = ("stopping; an iteration that has begun", "press Ctrl-C")
            check(all(line.startswith(answers) for line in lines if any(answer in line for answer in answers)),
                  "the answer shares a line", shell)
            shown = [line for line in lines if re.match(r"iteration +\d+/1000000 \|", line)]
            check(len(shown) > 2, "no training lines", shell)
            for line in shown:
                check(LINE.match(line) and len(line) <= width, f"not a whole line: {line!r}", shell)
            check(not any(line.startswith(("iteration", "training [")) for line in shell.screen.wrapped), "a line is wrapped",
                  shell)
            with open(os.path.join(folder, "log", "run.json"), encoding="utf-8") as file:
                reason = json.load(file)["exit_reason"]
            check(reason == "signal SIGINT", f"run.json says {reason}", shell)
            check(os.path.exists(os.path.join(folder, "ck", "latest")), "nothing is saved", shell)
        finally:
            shell.close()


def finished_run(program, width, more):
    with tempfile.TemporaryDirectory() as folder:
        script(folder, program, "train", *TINY, "train.train_iters=3000", "logger.log_interval=100", *more)
        shell = Shell(folder, width)
        try:
            shell.wait(r"\$ ")
            shell.send("sh t\n")
            at = shell.wait(r"training \[")
            begin = len(shell.output)
            shell.resize(60)
            shell.wait(r"training \[", begin + 2000)  # a few are drawn for the old width
            narrow = len(shell.output)
            at = shell.wait(r"iterations   3000", at)
            at = shell.wait(r"\$ ", at)
            lines = shell.screen.lines()
            check(not any("training [" in line for line in lines), "a bar stays on the screen", shell)
            check("loss.svg" in shell.output, "no report", shell)
            check_bars(shell, 60, narrow)
        finally:
            shell.close()


def verified(program, width, more):
    """A command without signal handlers of its own: Ctrl-C leaves a clean line."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(os.path.join(folder, "pipe"))
        script(folder, program, "train", *TINY, "train.train_iters=2", "logger.progress=off", *more)
        shell = Shell(folder, width)
        try:
            shell.wait(r"\$ ")
            shell.send("sh t\n")
            at = shell.wait(r"iterations   2")
            at = shell.wait(r"\$ ", at)
            check("training [" not in shell.output, "a bar with logger.progress=off", shell)
            script(folder, program, "checkpoint", "verify", "ck")
            shell.send("sh t\n")
            at = shell.wait(r"all checksums match", at)
            shell.wait(r"\$ ", at)
            check("verifying [" in shell.output, "no progress of the verification", shell)
            check(not any("verifying [" in line for line in shell.screen.lines()), "a bar stays on the screen", shell)
        finally:
            shell.close()


def help_fits(program, width, more):
    """Help and the overview of a checkpoint are folded where the terminal ends."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "train", *TINY, "train.train_iters=1", "logger.progress=off", *more], cwd=folder, check=True,
                       capture_output=True)
        shell = Shell(folder, width)
        try:
            at = shell.wait(r"\$ ")
            for command in (["train", "--help"], ["evaluate", "--help"], ["checkpoint", "inspect", "ck"]):
                script(folder, program, *command)
                begin = len(shell.output)
                shell.send("sh t\n")
                at = shell.wait(r"\$ $", at)
                lines = [line.rstrip() for line in shell.output[begin:].splitlines()]
                wide = [line for line in lines if len(line) > width and not line.lstrip().startswith("pentatron ")]
                check(len(lines) > 10 and not wide, f"{command}: wider than {width}: {wide[:2]}", shell)
        finally:
            shell.close()


def errors_fit(program, width, more):
    """Errors and warnings are folded where the terminal ends, and nowhere else; commands to copy are not."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = ["train", *TINY, "train.train_iters=1", "parallel.tensor_model_parallel_size=3", *more]
        plain = subprocess.run([program, *wrong], cwd=folder, check=False, capture_output=True, text=True).stderr
        check_text = re.sub(r"\s+", " ", plain).strip()
        shell = Shell(folder, width)
        try:
            at = shell.wait(r"\$ ")
            script(folder, program, *wrong)
            begin = len(shell.output)
            shell.send("sh t\n")
            shell.wait(r"\$ $", at + 4)
            shown = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shell.output[begin:])
            lines = [line.rstrip() for line in shown.splitlines()]
            check(any(len(line) > width for line in plain.splitlines()), f"too short to be folded: {plain!r}", shell)
            wide = [line for line in lines if len(line) > width and " " in line.strip()]
            check(not wide, f"wider than {width}: {wide[:2]}", shell)
            check(check_text in re.sub(r"\s+", " ", shown), f"not the words of {plain!r}", shell)
        finally:
            shell.close()


def text_cannot_steer(program, width, more):
    """Control characters of a text, also those of U+0080 to U+009F, are not sent to the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        text = "a \x1b[5mtext\u009b31m that steers \u0090 ".ljust(80, "x")
        with open(os.path.join(folder, "text.jsonl"), "w", encoding="utf-8") as file:
            for _ in range(4):
                file.write(json.dumps({"text": text}) + "\n")
        shell = Shell(folder, width)
        try:
            at = shell.wait(r"\$ ")
            script(folder, program, "inspect", "samples", "dataset.type=bert", "dataset.path=text.jsonl", "dataset.bert_binary_head=none",
                   "train.seq_length=128", "--index", "0", "--text", *more)
            begin = len(shell.output)
            shell.send("sh t\n")
            shell.wait(r"\$ $", at + 4)
            shown = re.sub(r"\x1b\[(?:1;32|0)m|\x1b\[K|\x1b\[\?2004[hl]", "", shell.output[begin:])
            check("steers" in shown or "[MASK]" in shown, f"no sample: {shown!r}", shell)
            check("?" in shown and not re.search(r"[\x1b\x80-\x9f]", shown), f"steers the terminal: {shown!r}", shell)
        finally:
            shell.close()


def closed_run(program, width, more):
    """A terminal that is closed takes neither the checkpoint nor the status, docs/cli.md."""
    with tempfile.TemporaryDirectory() as folder:
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execv(program, [program, "train", *TINY, "train.train_iters=1000000", "logger.log_interval=5", *more])
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        shown, end = b"", time.monotonic() + LIMIT_S
        while not re.search(rb"iteration +5/", shown) and time.monotonic() < end:
            if select.select([fd], [], [], 0.05)[0]:
                try:
                    shown += os.read(fd, 65536)
                except OSError:  # the program has ended
                    break
        os.close(fd)
        ended, status = os.waitpid(pid, os.WNOHANG)
        while not ended and time.monotonic() < end:
            time.sleep(0.05)
            ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
        if status != 0 or not os.path.exists(os.path.join(folder, "ck", "latest")):
            raise AssertionError(f"status {status:#x}, {os.listdir(folder)}\n{shown.decode(errors='replace')}")


CASES = [("stopped, 80 columns", stopped_run, 80, []),
         ("stopped, 120 columns, 2 threads", stopped_run, 120, ["--ranks=2"]),
         ("stopped, 100 columns, 2 processes", stopped_run, 100, ["--ranks=2", "--backend=sockets"]),
         ("closed terminal", closed_run, 80, []),
         ("closed terminal, 2 processes", closed_run, 80, ["--ranks=2", "--backend=sockets"]),
         ("finished, 120 columns, then 60", finished_run, 120, []),
         ("verification", verified, 80, []),
         ("help, 80 columns", help_fits, 80, []),
         ("help, 50 columns", help_fits, 50, []),
         ("errors, 50 columns", errors_fit, 50, []),
         ("text of a sample", text_cannot_steer, 120, [])]


def main():
    failed = 0
    for name, case, width, more in CASES:
        try:
            case(sys.argv[1], width, more)
            print(f"{name:40} well", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"{name:40} FAILED: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
