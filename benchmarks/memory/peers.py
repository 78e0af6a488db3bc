#!/usr/bin/env python3
"""Peak memory and time of the same training step in pentatron, in Hugging Face transformers, and in torch FSDP2 on two ranks:
a Llama with 8 layers (hidden 512, ffn 1408, vocabulary 32000), 2 samples of 1024 tokens, AdamW. Prints a markdown table.
With --model gpt2_124m: GPT-2 with 124 million parameters, 1 sample, which two ranks cannot share.

    benchmarks/memory/peers.py --python .deps/peers/bin/python --pentatron build/release/pentatron [--steps 4]
                               [--model gpt2_124m] [--only "all bf16"]

Resident memory of a whole process during the measured steps; for two ranks: the larger of the two processes.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PEERS = pathlib.Path(__file__).resolve().parent.parent / "peers"
MODELS = {
    "llama_8x512": "model.preset=llama3_8b model.num_layers=8 model.hidden_size=512 model.num_attention_heads=8 model.num_query_groups=4 "
                   "model.ffn_hidden_size=1408 model.vocab_size=32000 model.max_position_embeddings=1024 train.global_batch_size=2",
    "gpt2_124m": "model.preset=gpt2_124m model.hidden_dropout=0 model.attention_dropout=0 train.global_batch_size=1",
}
SHARED = "dataset.type=mock train.seq_length=1024 seed=1 device=cpu optimizer.lr=1e-4 optimizer.clip_grad=1.0".split()
SMALL_STATE = "optimizer.store_param_remainders=true optimizer.exp_avg_dtype=bf16 optimizer.exp_avg_sq_dtype=bf16".split()
ZERO3 = ["--ranks", "2", "--backend", "sockets", "ddp.zero_stage=3", "train.micro_batch_size=1"]
ONE = ["train.micro_batch_size=BATCH"]
FULL = ["train.recompute=full"]

# Heading -> (options of bench_hf.py, or None; keys of pentatron)
GROUPS = {
    "fp32": [["--precision", "fp32"], ["--precision", "fp32", "--compile"], [*ONE, "dtype=fp32"]],
    "fp32, recomputation of layers": [["--precision", "fp32", "--checkpointing"], [*ONE, *FULL, "dtype=fp32"]],
    "bf16, fp32 weights": [["--precision", "autocast"], ["--precision", "autocast", "--compile"], [*ONE, "dtype=bf16"]],
    "bf16, recomputation of layers": [["--precision", "autocast", "--checkpointing"], [*ONE, *FULL, "dtype=bf16"]],
    "all bf16": [["--precision", "bf16"], ["--precision", "bf16", "--compile"], [*ONE, "dtype=bf16", *SMALL_STATE]],
    "all bf16, recomputation of layers": [["--precision", "bf16", "--checkpointing"], [*ONE, *FULL, "dtype=bf16", *SMALL_STATE]],
    "two ranks, fp32": [["--precision", "fp32", "--ranks", "2"], [*ZERO3, "dtype=fp32"]],
    "two ranks, bf16": [["--precision", "autocast", "--ranks", "2"], [*ZERO3, "dtype=bf16"]],
    "two ranks, bf16, recomputation": [["--precision", "autocast", "--ranks", "2", "--checkpointing"], [*ZERO3, *FULL, "dtype=bf16"]],
    "two ranks, all bf16": [["--precision", "bf16", "--ranks", "2"], [*ZERO3, "dtype=bf16", *SMALL_STATE]],
}


def high_water_mb(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return next((int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM")), 0)
    except (OSError, ProcessLookupError):
        return 0


def family(pid):
    """A process and all that it started."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        children = []
    return [pid, *(p for child in children for p in family(int(child)))]


def run_and_watch(command, environment):
    """What a command printed, and the largest peak of its processes, MB."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, stdin=subprocess.DEVNULL)
        peak, ended = 0, threading.Event()

        def watch():
            nonlocal peak
            while not ended.is_set():
                peak = max([peak, *map(high_water_mb, family(process.pid))])
                time.sleep(0.05)

        watcher = threading.Thread(target=watch)
        watcher.start()
        status = process.wait()
        ended.set()
        watcher.join()
        out.seek(0)
        if status != 0:
            err.seek(0)
            sys.exit(f"{' '.join(command)}\nended with {status}:\n{err.read()[-3000:]}")
        return out.read(), peak


def measure_peer(args, options, environment):
    text, _ = run_and_watch([args.python, str(PEERS / "bench_hf.py"), "--model", args.model, "--steps", str(args.steps),
                             "--warmup", "2", *options], environment)
    result = json.loads(text.strip().splitlines()[-1])
    return result["peak_mb"], statistics.median(result["step_times_s"])


def measure_pentatron(args, options, environment):
    batch = "2" if args.model == "llama_8x512" else "1"
    keys = [*MODELS[args.model].split(), *SHARED, *(option.replace("BATCH", batch) for option in options)]
    with tempfile.TemporaryDirectory() as folder:
        _, peak = run_and_watch([args.pentatron, "train", *keys, f"train.train_iters={args.steps + 2}",
                                 f"logger.dir={folder}/run", "logger.log_interval=1"], environment)
        lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return peak, statistics.median([line["step_time_s"] for line in lines if "step_time_s" in line][2:])


def name_of(options):
    if options[0] != "--precision":
        return "pentatron, ZeRO-3" if "ddp.zero_stage=3" in options else "pentatron"
    if "--ranks" in options:
        return "torch FSDP2"
    return "transformers, compiled" if "--compile" in options else "transformers"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python with torch and transformers")
    parser.add_argument("--pentatron", required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--model", choices=MODELS, default="llama_8x512")
    parser.add_argument("--only", default="", help="settings whose name contains this")
    args = parser.parse_args()
    print("| setting | program | peak MB | relative to the smallest peer | step s |\n|---|---|---|---|---|")
    for setting, contenders in GROUPS.items():
        if args.only not in setting or (args.model == "gpt2_124m" and setting.startswith("two ranks")):
            continue
        leanest = None
        for options in contenders:
            threads = "1" if setting.startswith("two ranks") else "2"
            environment = dict(os.environ, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
            is_peer = options[0] == "--precision"
            peak, seconds = (measure_peer if is_peer else measure_pentatron)(args, options + (["--threads", threads] if is_peer else []), environment)
            if is_peer:
                leanest = min(leanest or peak, peak)
            print(f"| {setting} | {name_of(options)} | {peak:.0f} | {'' if is_peer else f'{peak / leanest:.2f}x'} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
