"""Saves and loads the same 500 MB with this program's checkpoints and with what others have, in turn in one run, on the disk
of the current folder. Prints the median of the rounds.

checkpoints.py BENCH_CHECKPOINT [ROUNDS]
  raw           the bytes by plain writes and one fsync
  ours          bench_checkpoint: checksums, manifest, renamed folder, everything synced; loading checks every byte, mapped as
                generate does it, or copied into tensors that are there, as training does it
  safetensors   save_file, then fsync; loading: load_file, then every byte is read once (summed), or copied likewise
  torch.save    then fsync
  torch dcp     torch.distributed.checkpoint, which syncs nothing
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

import safetensors.torch
import torch
import torch.distributed.checkpoint

TENSORS, ROWS, COLUMNS = 30, 4096, 1024
PLACE = "pentatron-bench-peers"


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def raw(tensors, path):
    with open(path, "wb") as file:
        for tensor in tensors.values():
            file.write(memoryview(tensor.numpy()))
        file.flush()
        os.fsync(file.fileno())


def with_safetensors(tensors, path):
    safetensors.torch.save_file(tensors, path)
    sync(path)


def with_torch(tensors, path):
    torch.save(tensors, path)
    sync(path)


def with_dcp(tensors, path):
    torch.distributed.checkpoint.save(tensors, checkpoint_id=path, no_dist=True)


def load_safetensors(path):
    return sum(float(tensor.sum()) for tensor in safetensors.torch.load_file(path).values())


def load_safetensors_into(tensors, path):
    for name, tensor in safetensors.torch.load_file(path).items():
        tensors[name].copy_(tensor)


def timed(function, *arguments):
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def ours(program, name):
    output = subprocess.run([program, f"--benchmark_filter={name}", "--benchmark_format=json"], check=True,
                            capture_output=True, text=True).stdout
    return json.loads(output)["benchmarks"][0]["real_time"] / 1000


def main(program, rounds="5"):
    program = os.path.abspath(program)
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(1)
    tensors = {f"layers.{i}.weight": torch.randn(ROWS, COLUMNS, generator=generator) for i in range(TENSORS)}
    savers = {"raw": raw, "safetensors": with_safetensors, "torch.save": with_torch, "torch dcp": with_dcp}
    targets = {name: tensor.clone() for name, tensor in tensors.items()}
    times = {}
    os.makedirs(PLACE, exist_ok=True)
    for turn in range(int(rounds)):
        for name, saver in savers.items():
            path = os.path.join(PLACE, "peer")
            times.setdefault(f"save {name}", []).append(timed(saver, tensors, path))
            if name == "safetensors":
                times.setdefault("load safetensors, summed", []).append(timed(load_safetensors, path))
                times.setdefault("load safetensors, copied", []).append(timed(load_safetensors_into, targets, path))
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            os.sync()  # nothing of one weighs on the next
        own = {"save raw, C++": "BM_WriteRaw", "save ours": "BM_Save/chunk_KiB:1024"}
        for name in sorted(own, reverse=turn % 2 == 1):  # a disk that has just been written to takes longer
            times.setdefault(name, []).append(ours(program, own[name]))
            os.sync()
        times.setdefault("load ours, copied", []).append(ours(program, "BM_Read/chunk_KiB:1024"))
        times.setdefault("load ours, mapped", []).append(ours(program, "BM_Map/chunk_KiB:1024"))
    for name, values in sorted(times.items()):
        print(f"{name:24} {statistics.median(values):6.3f} s   best {min(values):6.3f}, worst {max(values):6.3f}")
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main(*sys.argv[1:])
