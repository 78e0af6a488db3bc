"""What every part needs: the programs of the bundle, their environment, and a list of results that is written at once."""
import glob
import json
import os
import platform
import subprocess
import sys
import threading
import time

import torch


def machine(device):
    found = {"torch": torch.__version__, "python": platform.python_version(), "libc": " ".join(platform.libc_ver()), "gpus": []}
    if device != "cuda":
        return found
    try:
        found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        properties = torch.cuda.get_device_properties(0)
        found.update(compute_capability=f"{properties.major}.{properties.minor}", gpu_memory_gib=round(properties.total_memory / 2**30, 1))
    except (RuntimeError, AssertionError) as error:  # of a driver, or none
        found["problem"] = str(error)
    return found


class Part:
    """Arguments of a part: BUNDLE DEVICE OUT.json SECONDS. Results go to OUT.json one by one; what would begin in the last fifth of
    the time is left out."""

    def __init__(self):
        self.bundle, self.device, self.path = sys.argv[1:4]
        self.end = time.monotonic() + 0.8 * float(sys.argv[4])
        self.hard_end = time.monotonic() + 0.88 * float(sys.argv[4])
        self.scratch = os.path.dirname(self.path)
        self.program = os.path.join(self.bundle, "bin", "pentatron")
        self.data = os.path.join(self.bundle, "check", "data")
        self.results = {"machine": machine(self.device), "checks": [], "figures": {}}
        self.lock = threading.Lock()

    def write(self):
        with self.lock:
            with open(self.path + ".partial", "w", encoding="utf-8") as file:
                json.dump(self.results, file, indent=1)
            os.replace(self.path + ".partial", self.path)

    def check(self, name, ok, **details):
        """Records whether something holds; `details` are figures or texts."""
        self.results["checks"].append({"name": name, "ok": None if ok is None else bool(ok), **details})
        self.write()

    def skip(self, name, reason):
        self.check(name, None, skipped=reason)

    def figure(self, name, value):
        self.results["figures"][name] = value
        self.write()

    def environment(self):
        """That of the program, and the folders of shared libraries for test programs, which `pentatron` does not start."""
        root = os.path.dirname(torch.__file__)
        folders = [os.path.join(root, "lib"), *sorted(glob.glob(os.path.join(os.path.dirname(root), "nvidia", "*", "lib"))),
                   os.path.join(self.bundle, "lib")]
        return dict(os.environ, TORCH_ROOT=root, LD_LIBRARY_PATH=":".join(folders), OMP_WAIT_POLICY="PASSIVE")

    def run(self, command, timeout=120, **variables):
        """Standard output of a command, in an environment with `variables`; raises RuntimeError with the end of its output if it fails,
        or lasts beyond the part."""
        timeout = max(2, min(timeout, self.hard_end - time.monotonic()))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**self.environment(), **variables},
                                  check=False, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"no end after {timeout:.0f} s") from error
        if done.returncode != 0:
            raise RuntimeError(f"exit status {done.returncode}: {(done.stdout[-500:] + done.stderr[-1500:]).strip()}")
        return done.stdout

    def train(self, name, *keys, ranks=(), timeout=120):
        """The lines of metrics.jsonl of a training run."""
        out = os.path.join(self.scratch, name)
        self.run([self.program, "train", *ranks, f"device={self.device}", f"logger.dir={out}", "logger.tensorboard=false",
                  "logger.plot=false", "logger.log_interval=1", *keys], timeout)
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def attempt(self, name, function):
        """Records what `function` returns as (ok, details), or its failure."""
        if time.monotonic() > self.end:
            return self.skip(name, "no time was left")
        try:
            ok, details = function()
        except (RuntimeError, OSError, KeyError, ValueError, IndexError) as error:
            ok, details = False, {"error": f"{type(error).__name__}: {error}"}
        self.check(name, ok, **details)
        return ok


def read_safetensors(path):
    """The tensors of a Safetensors file, without the package of that name."""
    types = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        body = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in types:
            begin, end = entry["data_offsets"]
            kind = types[entry["dtype"]]
            flat = torch.frombuffer(body, dtype=kind, count=(end - begin) // kind.itemsize, offset=begin) if end > begin else \
                torch.empty(0, dtype=kind)
            tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


def relative(a, b):
    return abs(a - b) / abs(b)
