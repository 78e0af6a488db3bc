"""Trains with the program while its calls to the system are disturbed, goes on with checkpoint.load=auto, and wants the
weights of the run that was left alone: for saves at once and in the background, of one rank and of two.

run_faults.py PROGRAM SHIM [--full]     without --full at a sample of the calls; the shim is that of tests/checkpoint
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

SCENARIOS = {
    "async": ["checkpoint.async_save=true", "checkpoint.parity=1"],
    "async of two ranks": ["--ranks", "2", "ddp.zero_stage=1", "checkpoint.async_save=true"],
    "at once, of two ranks": ["--ranks", "2", "ddp.zero_stage=1"],
}
TRAIN = ("train dataset.type=mock model.num_layers=1 model.hidden_size=32 model.num_attention_heads=2 model.vocab_size=64 "
         "train.seq_length=16 train.micro_batch_size=1 train.global_batch_size=4 train.train_iters=6 train.num_threads=1 "
         "logger.peak_tflops=1 checkpoint.load=auto checkpoint.save_interval=2 checkpoint.on_error=continue").split()
ENDS = ("kill", "killafter", "torn")


class Campaign:
    def __init__(self, program, shim, scratch):
        self.program, self.shim, self.scratch = program, shim, scratch

    def train(self, folder, keys, **settings):
        environment = dict(os.environ)
        if settings:
            environment["LD_PRELOAD"] = self.shim
            environment.update({f"IO_SHIM_{key.upper()}": str(value) for key, value in settings.items()})
        return subprocess.run([self.program, *TRAIN, f"checkpoint.save={folder}", *keys], env=environment,
                              capture_output=True, text=True, timeout=120)

    def fresh(self, name):
        folder = os.path.join(self.scratch, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        return folder

    def weights(self, folder):
        """The shards of the last step, by name."""
        last = os.path.join(folder, "step_00000006")
        if not os.path.isdir(last):
            return None
        contents = {}
        for name in os.listdir(last):
            if name.endswith(".safetensors"):
                with open(os.path.join(last, name), "rb") as file:
                    contents[name] = file.read()
        return contents

    def fault(self, keys, whole, mode, at):
        root = self.fresh(f"{mode}_{at}")
        folder = os.path.join(root, "run")
        first = self.train(folder, keys, root=root, mode=mode, at=at)
        found = []
        saved = [int(n) for n in re.findall(r"saved \S+/step_(\d+)", first.stderr)]
        refused = "is not a writable folder" in first.stderr  # before the first step
        lost = mode not in ENDS and 6 not in saved and "the run has ended, but the checkpoint of iteration" in first.stderr
        if first.returncode not in ((-9, 0) if mode in ENDS else (1,) if refused or lost else (0,)):
            found.append(f"ended with {first.returncode}: {first.stderr.strip()[-300:]}")
        second = self.train(folder, keys)
        resumed = re.search(r"resumed from \S+/step_(\d+)", second.stderr)
        if second.returncode != 0:
            found.append(f"does not go on: {second.stderr.strip()[-300:]}")
        elif saved and (resumed is None or int(resumed.group(1)) < max(saved)):
            found.append(f"went on from {resumed and resumed.group(0)} though {max(saved)} was saved")
        verified = subprocess.run([self.program, "checkpoint", "verify", folder], capture_output=True, text=True, timeout=60)
        if verified.returncode != 0:
            found.append(f"verify: {verified.stdout.strip()[-300:]} {verified.stderr.strip()[-300:]}")
        if self.weights(folder) != whole:
            found.append("other weights than those of the run that was left alone")
        if "saved " in second.stderr and any(".tmp-" in name for name in os.listdir(folder)):
            found.append(f"{os.listdir(folder)} was left behind")
        shutil.rmtree(root, ignore_errors=True)
        return first.returncode == -9, [f"{mode} at call {at}: {line}" for line in found]


def main(program, shim, *options):
    full = "--full" in options
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    scratch = tempfile.mkdtemp(prefix="pentatron-run-faults-", dir=base)
    campaign = Campaign(program, shim, scratch)
    found, points, killed, begin = [], 0, 0, time.monotonic()
    workers = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    try:
        for name, keys in SCENARIOS.items():
            root = campaign.fresh("count")
            folder, count = os.path.join(root, "run"), os.path.join(scratch, "calls")
            result = campaign.train(folder, keys, root=root, count=count)
            assert result.returncode == 0, result.stderr
            with open(count, encoding="ascii") as file:
                calls = int(file.read())
            whole = campaign.weights(folder)
            assert whole
            ended = 0
            number = min(calls, 60) if full else 2
            faults = [(mode, 1 + (calls * i + m * number % calls) // number)
                      for m, mode in enumerate((*ENDS, "enospc", "eio")) for i in range(number)]
            for future in [workers.submit(campaign.fault, keys, whole, mode, at) for mode, at in faults]:
                was_killed, lines = future.result()
                found += [f"{name}: {line}" for line in lines]
                points += 1
                ended += was_killed
                if points % 50 == 0:
                    print(f"{points} faults, {len(found)} findings, {time.monotonic() - begin:.0f} s", flush=True)
            killed += ended
            if ended < 5:
                found.append(f"{name}: only {ended} runs were killed")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for line in found[:50]:
        print(line)
    print(f"{points} faults, {killed} of them ended the run; {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
