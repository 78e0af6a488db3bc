"""Trains with two processes on two GPUs in several layouts and wants the losses of one GPU.

run_cuda_ranks.py PROGRAM     exits with 77 where fewer than two GPUs answer
"""
import json
import os
import subprocess
import sys
import tempfile

TRAIN = ("train dataset.type=mock model.num_layers=4 model.hidden_size=64 model.num_attention_heads=4 model.vocab_size=256 "
         "train.seq_length=64 train.micro_batch_size=2 train.global_batch_size=16 train.train_iters=10 device=cuda dtype=fp32 "
         "logger.tensorboard=false logger.plot=false").split()
LAYOUTS = {
    "data": [],
    "data, ZeRO 3": ["ddp.zero_stage=3"],
    "tensor and sequence": ["parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"],
    "context": ["parallel.context_parallel_size=2"],
    "pipeline 1f1b": ["parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=1f1b"],
    "pipeline interleaved": ["parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=interleaved",
                             "parallel.virtual_pipeline_model_parallel_size=2"],
    "pipeline zb_v": ["parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=zb_v"],
    "pipeline dualpipe_v": ["parallel.pipeline_model_parallel_size=2", "parallel.pipeline_schedule=dualpipe_v"],
}
BOUND = 1e-4


def num_gpus():
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listing.splitlines())


def losses(program, keys, folder):
    command = [program, *TRAIN, f"logger.dir={folder}", *keys]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr[-3000:]}")
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        return [entry["loss"] for entry in map(json.loads, file) if "loss" in entry]


def main(program):
    if num_gpus() < 2:
        print("skipped: fewer than two GPUs")
        return 77
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        right = losses(program, [], os.path.join(scratch, "one"))
        for name, keys in LAYOUTS.items():
            folder = os.path.join(scratch, name.replace(" ", "_").replace(",", ""))
            got = losses(program, ["--ranks", "2", "--backend", "sockets", *keys], folder)
            worst = max(abs(a - b) / b for a, b in zip(got, right))
            good = len(got) == len(right) and worst <= BOUND
            failed += not good
            print(f"{name:24} {'ok' if good else 'FAILED'}: losses differ by at most {worst:.1e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
