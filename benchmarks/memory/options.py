#!/usr/bin/env python3
"""What each option of recomputation and offload saves, and what it costs: trains the same model a few steps with each, and
prints the peak of all tensors beside the estimate made before the first step, and the time of a step.

    benchmarks/memory/options.py build/dev/pentatron [--dir /var/tmp] [--model llama] [--steps 6]

Losses of all rows are compared: they must be equal to the last digit.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

LLAMA = ["model.num_layers=12", "model.hidden_size=512", "model.num_attention_heads=8", "model.num_query_groups=4",
         "model.ffn_hidden_size=1408", "model.vocab_size=8192", "model.max_position_embeddings=512"]
MODELS = {
    "llama": LLAMA,
    "moe": ["model.num_layers=6", "model.hidden_size=384", "model.num_attention_heads=6", "model.vocab_size=8192",
            "model.max_position_embeddings=512", "model.num_moe_experts=8", "model.moe_router_topk=2",
            "model.moe_ffn_hidden_size=768", "model.moe_shared_expert_intermediate_size=768"],
    "latent": ["model.num_layers=8", "model.hidden_size=512", "model.num_attention_heads=8", "model.vocab_size=8192",
               "model.max_position_embeddings=512", "model.multi_latent_attention=true", "model.q_lora_rank=256",
               "model.kv_lora_rank=128"],
}
SHARED = ["dataset.type=mock", "train.seq_length=512", "train.micro_batch_size=2", "train.global_batch_size=2", "device=cpu"]
SELECTIVE = ["train.recompute=selective"]


def options(model, folder):
    parts = ["layernorm", "core_attn", "mlp"] if model != "moe" else ["layernorm", "core_attn", "moe_act", "shared_experts", "moe"]
    if model == "latent":
        parts.insert(0, "mla_up_proj")
    away = ["offload.activations=true", f"offload.dir={folder}"]
    rows = {"nothing": [], "selective": SELECTIVE}
    for part in parts:
        rows[f"selective, {part}"] = SELECTIVE + [f"train.recompute_modules=[{part}]"]
    rows |= {
        "full, block of 4 layers": ["train.recompute=full", "train.recompute_method=block", "train.recompute_num_layers=4"],
        "full": ["train.recompute=full"],
        "full, groups of 2 layers": ["train.recompute=full", "train.recompute_num_layers=2"],
        "offload": away,
        "offload of 4 layers": away + ["offload.num_layers=4"],
        "offload, full": away + ["train.recompute=full"],
        "optimizer's state on disk": ["offload.optimizer=true", f"offload.dir={folder}"],
        "half of it on disk": ["offload.optimizer=true", "offload.optimizer_fraction=0.5", f"offload.dir={folder}"],
    }
    return rows


def measure(program, keys, steps):
    """(peak bytes, estimated MiB, seconds of a step, loss)"""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([program, "train", *keys, f"train.train_iters={steps}", f"logger.dir={folder}/run"],
                             capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stderr)
        lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    parts = re.findall(r"memory peak .*?: (.*)", run.stderr)[-1]  # each with its estimate; the sum of all is rounded
    units = {"B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 1024}
    estimated = sum(float(number) * units[unit] for number, unit in re.findall(r"\(([\d.]+) (\w+)\)", parts))
    steps = [line["step_time_s"] for line in lines if "step_time_s" in line][1:]
    return (max(line["memory_bytes"] for line in lines if "memory_bytes" in line),
            estimated, statistics.median(steps),
            [line["loss"] for line in lines if "loss" in line][-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    print("| recomputation, offload | peak MiB | of the first row | estimated MiB | step s | of the first row |\n|---|---|---|---|---|---|")
    first = None
    for name, keys in options(args.model, args.dir).items():
        peak, estimated, step, loss = measure(args.program, [*MODELS[args.model], *SHARED, f"dtype={args.dtype}", *keys], args.steps)
        first = first or (peak, step, loss)
        if loss != first[2]:
            sys.exit(f"error: {name} ends with a loss of {loss} instead of {first[2]}")
        print(f"| {name} | {peak / 2**20:.0f} | {peak / first[0]:.2f} | {estimated:.0f} | {step:.2f} | {step / first[1]:.2f} |", flush=True)


main()
