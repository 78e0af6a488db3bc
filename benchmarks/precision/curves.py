#!/usr/bin/env python3
"""What each type and recipe does to a loss curve: trains a small GPT-2 and a small Llama on the bundled novels, once in fp32 and
once in every other type and recipe, with the same seed, samples and settings.

    benchmarks/precision/curves.py build/dev/pentatron runs/precision [--iters 500] [--models llama gpt2] [--only fp32 bf16 ...]

A run that has ended is not repeated, so that the command can be stopped and started again. At the end it prints a table of the
losses at the end (mean of the last 50 steps, and on validation data) and draws one picture for each model. Hours on 2 cores.
"""
import argparse
import json
import pathlib
import subprocess
import sys

RUNS = {
    "fp32": ["dtype=fp32"],
    "bf16": ["dtype=bf16"],
    "fp16": ["mixed_precision.recipe=fp16_mixed", "mixed_precision.initial_loss_scale=65536"],
    "mxfp8": ["mixed_precision.recipe=bf16_with_mxfp8_mixed"],
    "fp8_tensorwise": ["dtype=bf16", "mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=tensorwise"],
    "fp8_delayed": ["dtype=bf16", "mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=delayed"],
    "fp8_blockwise": ["dtype=bf16", "mixed_precision.fp8=e4m3", "mixed_precision.fp8_recipe=blockwise"],
    "nvfp4": ["mixed_precision.recipe=bf16_with_nvfp4_mixed"],
}
SIZES = ["model.num_layers=6", "model.hidden_size=384", "model.num_attention_heads=6", "model.vocab_size=257",
         "model.max_position_embeddings=128"]
MODELS = {
    "llama": SIZES + ["model.ffn_hidden_size=1024"],
    "gpt2": SIZES + ["model.ffn_hidden_size=1536", "model.position_embedding_type=learned_absolute", "model.normalization=layernorm",
                     "model.activation_func=gelu_tanh", "model.add_qkv_bias=true", "model.add_attention_proj_bias=true", "model.add_mlp_bias=true"],
}
TRAINING = ["train.seq_length=128", "train.micro_batch_size=4", "train.global_batch_size=4", "optimizer.lr=1e-3",
            "optimizer.min_lr=1e-4", "scheduler.lr_warmup_fraction=0.1", "train.eval_iters=50", "logger.log_interval=10"]


def train(program, folder, model, name, iters):
    if (folder / "run.json").exists() and json.loads((folder / "run.json").read_text()).get("iteration") == iters:
        return
    command = [program, "train", *MODELS[model], *TRAINING, *RUNS[name], f"train.train_iters={iters}",
               f"train.eval_interval={iters}", f"logger.dir={folder}"]
    print("+", " ".join(command), file=sys.stderr, flush=True)
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"error: {folder} did not end; its log is above")


def losses(folder):
    """The mean training loss of the last 50 steps, and the last validation loss."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    training = [line["loss"] for line in lines if "loss" in line][-50:]
    validation = [line["validation_loss"] for line in lines if "validation_loss" in line]
    return sum(training) / len(training), validation[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("runs", type=pathlib.Path)
    parser.add_argument("--iters", type=int, default=500)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    args = parser.parse_args()
    for model in args.models:
        for name in args.only:
            train(args.program, args.runs / model / name, model, name, args.iters)
        folders = [str(args.runs / model / name) for name in args.only]
        subprocess.run([args.program, "plot", *folders, "--title", f"{model}, 10M parameters", "--output",
                        str(args.runs / f"{model}.svg"), "--overwrite"], check=True)
    print("| model | type or recipe | training loss | beside fp32 | validation loss | beside fp32 |\n|---|---|---|---|---|---|")
    for model in args.models:
        base = losses(args.runs / model / args.only[0])
        for name in args.only:
            own = losses(args.runs / model / name)
            print(f"| {model} | {name} | {own[0]:.4f} | {own[0] - base[0]:+.4f} | {own[1]:.4f} | {own[1] - base[1]:+.4f} |")


main()
