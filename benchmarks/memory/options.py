#!/usr/bin/env python3
"""The peak of all tensors with each option, beside the estimate made before the first step: trains the same model a few steps
with each, and prints a markdown table.

    benchmarks/memory/options.py build/release/pentatron [--table precision] [--model llama] [--steps 2] [--only muon]

Tables: recomputation (with offload; also the time of a step, for which --steps 6 and a quiet machine are needed), precision,
optimizer, ranks and layout (two ranks, one sample each; the largest peak of the two), bytes (of a parameter, estimated; nothing
is trained). Estimates that are more than 2 % off are named at the end. In the table recomputation, losses of all rows are
compared: they must be equal to the last digit.
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
    # The loss needs less than a layer in backward.
    "few_words": [*LLAMA, "model.vocab_size=512"],
    "moe": ["model.num_layers=6", "model.hidden_size=384", "model.num_attention_heads=6", "model.vocab_size=8192",
            "model.max_position_embeddings=512", "model.num_moe_experts=8", "model.moe_router_topk=2",
            "model.moe_ffn_hidden_size=768", "model.moe_shared_expert_intermediate_size=768"],
    "latent": ["model.num_layers=8", "model.hidden_size=512", "model.num_attention_heads=8", "model.vocab_size=8192",
               "model.max_position_embeddings=512", "model.multi_latent_attention=true", "model.q_lora_rank=256",
               "model.kv_lora_rank=128"],
}
SHARED = ["dataset.type=mock", "train.seq_length=512", "train.micro_batch_size=2", "train.global_batch_size=2", "device=cpu"]
SELECTIVE = ["train.recompute=selective"]
TWO = ["--ranks", "2", "train.micro_batch_size=1"]
APART = "model.untie_embeddings_and_output_weights=true"
ALLOWED = 0.02


def recomputation(model, folder):
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


def keys(text, *more):
    return [*text.split(), *more]


def narrow(mean, square="fp32"):
    """Of AdamW."""
    return f"optimizer.exp_avg_dtype={mean} optimizer.exp_avg_sq_dtype={square}"


ALL_BF16 = f"dtype=bf16 optimizer.store_param_remainders=true {narrow('bf16', 'bf16')}"


def precision(model, folder):
    fp8 = "dtype=bf16 mixed_precision.fp8=e4m3 mixed_precision.fp8_recipe="
    return {
        "fp64": keys("dtype=fp64"),
        "fp32": keys("dtype=fp32"),
        "bf16": keys("dtype=bf16"),
        "fp16": keys("dtype=fp16"),
        "FP8, tensorwise": keys(fp8 + "tensorwise"),
        "FP8, hybrid formats": keys("dtype=bf16 mixed_precision.fp8=hybrid mixed_precision.fp8_recipe=tensorwise"),
        "FP8, delayed": keys(fp8 + "delayed"),
        "FP8, blockwise": keys(fp8 + "blockwise"),
        "FP8, mxfp8": keys(fp8 + "mxfp8"),
        "NVFP4": keys("dtype=bf16 mixed_precision.fp4=e2m1"),
        "NVFP4, recipe": keys("mixed_precision.recipe=bf16_with_nvfp4_mixed"),
        "fp32 master weights as remainders": keys("dtype=bf16 optimizer.store_param_remainders=true"),
        "all bf16": keys(ALL_BF16),
        "bf16, capped logits": keys("dtype=bf16 model.final_logit_softcapping=30"),
    }


def rules():
    """Of the optimizer, by the name of a row."""
    adaptive = "optimizer.optimizer=adaptive_muon"
    return {
        "adam": "optimizer.optimizer=adam",
        "adam, means in bf16": narrow("bf16", "bf16"),
        "adam, means in fp16": narrow("fp16", "fp16"),
        "adam, means in fp8": narrow("fp8", "fp8"),
        "adam, mean in fp8, squares in fp16": narrow("fp8", "fp16"),
        "sgd": "optimizer.optimizer=sgd",
        "sgd, no momentum": "optimizer.optimizer=sgd optimizer.sgd_momentum=0",
        "lion": "optimizer.optimizer=lion",
        "muon": "optimizer.optimizer=muon",
        "muon, iterations in bf16": "optimizer.optimizer=muon optimizer.muon_bf16=true",
        "muon, mean in bf16": "optimizer.optimizer=muon optimizer.exp_avg_dtype=bf16",
        "adaptive_muon": adaptive,
        "adaptive_muon, normuon": f"{adaptive} optimizer.adaptive_muon_moment2_method=normuon",
        "adafactor": "optimizer.optimizer=adafactor",
        "adafactor, with a mean": "optimizer.optimizer=adafactor optimizer.adafactor_beta1=0.9",
        "running mean of the weights": "optimizer.ema_decay=0.99",
        "qk_clip": "optimizer.qk_clip=true",
    }


def optimizer(model, folder):
    away = f"offload.optimizer=true offload.dir={folder}"
    texts = rules()
    texts |= {f"{name}, state on disk": f"{texts[name]} {away}" for name in ("adam", "muon", "adaptive_muon", "adafactor")}
    texts["adam, half of the state on disk"] = f"{away} offload.optimizer_fraction=0.5"
    rows = {}
    for dtype in ("fp32", "bf16"):
        rows |= {f"{dtype}, {name}": keys(f"dtype={dtype} {text}") for name, text in texts.items()}
    del rows["fp32, adafactor, state on disk"]  # which has nothing to move
    return rows


def ranks(model, folder):
    rows = {}
    for dtype in ("fp32", "bf16"):
        for zero in range(4):
            stage = f"dtype={dtype} ddp.zero_stage={zero}"
            rows[f"{dtype}, ZeRO-{zero}"] = keys(stage, *TWO)
            if dtype == "bf16":
                rows[f"bf16 sums of gradients, ZeRO-{zero}"] = keys(f"{stage} ddp.grad_reduce_in_fp32=false", *TWO)
    for zero in range(1, 4):
        for recipe in ("tensorwise", "delayed", "blockwise"):
            stage = f"dtype=bf16 ddp.zero_stage={zero} mixed_precision.fp8=e4m3 mixed_precision.fp8_recipe={recipe}"
            if recipe == "tensorwise":
                rows[f"FP8 {recipe}, ZeRO-{zero}"] = keys(stage, *TWO)
            rows[f"FP8 {recipe}, gathered in FP8, ZeRO-{zero}"] = keys(f"{stage} ddp.fp8_param_gather=true", *TWO)
    rows |= {
        "all bf16, ZeRO-3": keys(f"{ALL_BF16} ddp.zero_stage=3", *TWO),
        "bf16, ZeRO-3, nothing overlaps": keys("dtype=bf16 ddp.zero_stage=3 ddp.overlap_grad_reduce=false ddp.overlap_param_gather=false", *TWO),
        "bf16, ZeRO-2, nothing overlaps": keys("dtype=bf16 ddp.zero_stage=2 ddp.overlap_grad_reduce=false", *TWO),
        "bf16, ZeRO-2, 4 microbatches": keys("dtype=bf16 ddp.zero_stage=2 train.global_batch_size=8", *TWO),
        "bf16, ZeRO-2, 4 microbatches, two tables": keys(f"dtype=bf16 ddp.zero_stage=2 train.global_batch_size=8 {APART}", *TWO),
        "bf16, ZeRO-3, 4 microbatches": keys("dtype=bf16 ddp.zero_stage=3 train.global_batch_size=8", *TWO),
        "bf16, ZeRO-1, buckets of 1 million": keys("dtype=bf16 ddp.zero_stage=1 ddp.bucket_size=1000000", *TWO),
        "bf16 sums in buckets of 1 million, ZeRO-0": keys("dtype=bf16 ddp.grad_reduce_in_fp32=false ddp.bucket_size=1000000", *TWO),
        "muon, ZeRO-1": keys("dtype=bf16 optimizer.optimizer=muon ddp.zero_stage=1", *TWO),
        "muon, ZeRO-3": keys("dtype=bf16 optimizer.optimizer=muon ddp.zero_stage=3", *TWO),
        "adafactor, ZeRO-3": keys("dtype=bf16 optimizer.optimizer=adafactor ddp.zero_stage=3", *TWO),
        "running mean of the weights, ZeRO-1": keys("dtype=bf16 optimizer.ema_decay=0.99 ddp.zero_stage=1", *TWO),
        "state on disk, ZeRO-1": keys(f"dtype=bf16 offload.optimizer=true offload.dir={folder} ddp.zero_stage=1", *TWO),
        "state on disk, ZeRO-3": keys(f"dtype=bf16 offload.optimizer=true offload.dir={folder} ddp.zero_stage=3", *TWO),
    }
    return rows


def layout(model, folder):
    tensor = "dtype=bf16 parallel.tensor_model_parallel_size=2"
    stages = "dtype=bf16 parallel.pipeline_model_parallel_size=2 train.global_batch_size=8 parallel.pipeline_schedule="
    context = "dtype=bf16 parallel.context_parallel_size=2"
    return {
        "tensor parallel": keys(tensor, *TWO),
        "tensor and sequence parallel": keys(f"{tensor} parallel.sequence_parallel=true", *TWO),
        "pipeline, 1f1b": keys(stages + "1f1b", *TWO),
        "pipeline, interleaved": keys(stages + "interleaved parallel.virtual_pipeline_model_parallel_size=2", *TWO),
        "pipeline, zb_h1": keys(stages + "zb_h1", *TWO),
        "pipeline, zb_h2": keys(stages + "zb_h2", *TWO),
        "pipeline, zb_v": keys(stages + "zb_v", *TWO),
        "pipeline, dualpipe_v": keys(stages + "dualpipe_v", *TWO),
        "context parallel, ring": keys(context, *TWO),
        "context parallel, all_gather": keys(f"{context} parallel.cp_comm_type=[all_gather]", *TWO),
        "context parallel, a2a": keys(f"{context} parallel.cp_comm_type=[a2a]", *TWO),
        "LoRA": keys("dtype=bf16 peft.type=lora"),
        "frozen words": keys("dtype=bf16 train.freeze=[\"embedding.*\"]"),
    }


TABLES = {"recomputation": recomputation, "precision": precision, "optimizer": optimizer, "ranks": ranks, "layout": layout, "bytes": None}
MIB = {"B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 1024}


def mib(number, unit):
    return float(number) * MIB[unit]


def estimates(log):
    """MiB of each category, at the moment that needs most. Their sum is more exact than the sum that the log shows."""
    block = re.search(r"^memory +about .*?:(.*?)\n +about", log, re.M | re.S)[1].partition(";")[0].partition("pipeline rank")[0]
    return {name: mib(number, unit) for name, number, unit in re.findall(r"(\w+) ([\d.]+) (\w+)(?:,|\s*$)", block)}


def start(command):
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    return run.stdout + run.stderr


def print_bytes(program, shared):
    """Of a parameter, with each rule."""
    def of(text):
        return estimates(start([program, "train", *shared, *text.split(), "--dry-run"]))

    parameters = of("dtype=fp32")["weights"] / 4
    columns = {"fp32": "dtype=fp32", "bf16": "dtype=bf16", "bf16, remainders": "dtype=bf16 optimizer.store_param_remainders=true"}
    print(f"| | {' | '.join(f'{name}: optimizer | together' for name in columns)} |\n|---|{'---|' * (2 * len(columns))}")
    for name, text in rules().items():
        held = []
        for dtype in columns.values():
            parts = of(f"{dtype} {text}")
            held += [parts.get("optimizer", 0) / parameters, sum(parts.get(part, 0) for part in ("weights", "gradients", "optimizer")) / parameters]
        print(f"| {name} | {' | '.join(f'{number:.2f}' for number in held)} |", flush=True)


def measure(program, settings, steps):
    """(peak MiB, estimated MiB, seconds of a step, loss)"""
    with tempfile.TemporaryDirectory() as folder:
        log = start([program, "train", *settings, f"train.train_iters={steps}", f"logger.dir={folder}/run"])
        lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    peak = max(line["memory_bytes"] for line in lines if "memory_bytes" in line) / 2**20  # of rank 0
    for number, unit in re.findall(r"memory peak +at most ([\d.]+) (\w+) per rank", log):
        if unit != "GiB":  # rounded too much
            peak = max(peak, mib(number, unit))
    times = [line["step_time_s"] for line in lines if "step_time_s" in line][1:]
    return peak, sum(estimates(log).values()), statistics.median(times), [line["loss"] for line in lines if "loss" in line][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--table", choices=TABLES, default="recomputation")
    parser.add_argument("--dir", default="/var/tmp", help="folder of what is offloaded")
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--dtype", default="fp32", help="of the table recomputation")
    parser.add_argument("--steps", type=int, help="6 in the table recomputation, else 2")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    args = parser.parse_args()
    timed = args.table == "recomputation"
    steps = args.steps or (6 if timed else 2)
    # Kernels are not timed where nothing else is.
    shared = [*MODELS[args.model], *SHARED, *([f"dtype={args.dtype}"] if timed else ["kernels=order", "logger.peak_tflops=1"])]
    if args.table == "bytes":
        print_bytes(args.program, shared)
        return
    rows = {name: more for name, more in TABLES[args.table](args.model, args.dir).items() if args.only in name}
    if timed:
        print("| recomputation, offload | peak MiB | of the first row | estimated MiB | step s | of the first row |\n|---|---|---|---|---|---|")
    else:
        print("| setting | keys | estimated MiB | peak MiB | estimated / peak |\n|---|---|---|---|---|")
    first, off = None, []
    for name, more in rows.items():
        peak, estimated, step, loss = measure(args.program, [*shared, *more], steps)
        first = first or (peak, step, loss)
        if abs(estimated / peak - 1) > ALLOWED:
            off.append(name)
        if not timed:
            shown = " ".join(key for key in more if key not in TWO)
            print(f"| {name} | `{shown}` | {estimated:.1f} | {peak:.1f} | {estimated / peak:.3f} |", flush=True)
            continue
        if loss != first[2]:
            sys.exit(f"error: {name} ends with a loss of {loss} instead of {first[2]}")
        print(f"| {name} | {peak:.0f} | {peak / first[0]:.2f} | {estimated:.0f} | {step:.2f} | {step / first[1]:.2f} |", flush=True)
    for name in off:
        print(f"more than {ALLOWED:.0%} off: {name}", file=sys.stderr)


main()
