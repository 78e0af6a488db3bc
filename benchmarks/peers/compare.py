"""Times pentatron and its peers alternately (A B C A B C ...), each in a process of its own, on the same work.

Prints a markdown table and writes it with all step times to a JSON file. `run.sh` installs the peers and calls this.

  compare.py --python PYTHON --pentatron build/release/pentatron [--models gpt2_124m,llama_8x512]
             [--also NAME=PROGRAM] [--classes fp32,bf16] [--rounds 3] [--steps 4] [--threads 2] [--device cpu]
             [--out FILE.json]

Times are medians over all steps of all rounds. `--also` times another build of pentatron beside this one.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

# How pentatron runs the same work; {…} are filled in below.
PENTATRON = ("{program} train {model} {settings} dataset.type=mock train.seq_length={sequence} train.micro_batch_size={batch} "
             "train.global_batch_size={batch} train.train_iters={iterations} dtype={dtype} device={device} seed=1 "
             "optimizer.lr=1e-4 optimizer.weight_decay=0.1 optimizer.clip_grad=1.0 logger.log_interval=1 logger.dir={out}")
PENTATRON_STEP_TIME = "step_time_s"  # the key of a line of metrics.jsonl
MODEL = {
    "gpt2_124m": {"batch": 1, "sequence": 1024, "keys": "model.preset=gpt2_124m model.hidden_dropout=0 model.attention_dropout=0"},
    "llama_8x512": {"batch": 2, "sequence": 1024, "keys": "model.preset=llama3_8b model.num_layers=8 model.hidden_size=512 "
                    "model.num_attention_heads=8 model.num_query_groups=4 model.ffn_hidden_size=1408 "
                    "model.vocab_size=32000 model.max_position_embeddings=1024"},
    "mixtral_4x512": {"batch": 4, "sequence": 512, "keys": "model.preset=mixtral_8x7b model.num_layers=4 model.hidden_size=512 "
                      "model.num_attention_heads=8 model.num_query_groups=4 model.ffn_hidden_size=1024 "
                      "model.moe_ffn_hidden_size=1024 model.vocab_size=32000 model.max_position_embeddings=512"},
}
# The state of the optimizer in 16 bits; the masters are exact all the same (docs/precision.md).
SMALL_STATE = "optimizer.store_param_remainders=true optimizer.exp_avg_dtype=bf16 optimizer.exp_avg_sq_dtype=bf16"
# Precision class -> the peers' precisions and pentatron's dtype. A table has a ratio for each precision of the peers:
# autocast keeps fp32 weights, as pentatron does; all-bf16 has neither fp32 weights nor fp32 gradients.
CLASSES = {"fp32": (("fp32",), "fp32"), "bf16": (("autocast", "bf16"), "bf16")}


def hf(args, model, precision, compiled):
    return [args.python, os.path.join(HERE, "bench_hf.py"), "--model", model, "--precision", precision, "--steps",
            str(args.steps), "--warmup", str(args.warmup), "--threads", str(args.threads), "--device", args.device,
            *(["--compile"] if compiled else [])]


def contenders(args, model, name):
    """Name, precision of a peer or none, and a command; of pentatron the program, with settings behind it, whose command
    needs an output folder."""
    precisions, dtype = CLASSES[name]
    for precision in precisions if args.python else ():
        yield f"Hugging Face eager, {precision}", precision, hf(args, model, precision, False)
        yield f"Hugging Face compiled, {precision}", precision, hf(args, model, precision, True)
    if args.pentatron:
        yield f"pentatron, {dtype}", None, args.pentatron
        if dtype == "bf16":
            yield "pentatron, bf16, optimizer state in 16 bits", None, f"{args.pentatron} {SMALL_STATE}"
    for also in args.also:
        label, _, program = also.partition("=")
        yield f"{label}, {dtype}", None, program


def run(command, environment):
    """Output and peak resident memory (MB) of one process."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if process.returncode != 0:
            err.seek(0)
            raise RuntimeError(f"{shlex.join(command)}\nended with {process.returncode}:\n{err.read()[-3000:]}")
        return out.read(), usage.ru_maxrss / 1024


def run_pentatron(args, program_and_settings, model, dtype, environment):
    program, _, settings = program_and_settings.partition(" ")
    with tempfile.TemporaryDirectory() as out:
        command = shlex.split(PENTATRON.format(program=program, settings=settings, model=MODEL[model]["keys"], dtype=dtype,
                                               batch=MODEL[model]["batch"], sequence=MODEL[model]["sequence"], iterations=args.warmup + args.steps,
                                               device=args.device, out=out))
        _, peak = run(command, environment)
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        steps = [line[PENTATRON_STEP_TIME] for line in lines if PENTATRON_STEP_TIME in line]
        return {"step_times_s": steps[args.warmup:], "tokens": MODEL[model]["batch"] * MODEL[model]["sequence"], "peak_mb": peak}


def measure(args, model, name):
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads),
                       TORCHINDUCTOR_CACHE_DIR=args.cache, TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    entries = list(contenders(args, model, name))
    results = {label: {"precision": precision, "step_times_s": [], "peak_mb": []} for label, precision, _ in entries}
    for turn in range(args.rounds):
        for label, precision, command in entries:
            print(f"{model} {name} round {turn + 1}/{args.rounds}: {label}", file=sys.stderr, flush=True)
            try:
                one = (run_pentatron(args, command, model, CLASSES[name][1], environment) if precision is None
                       else json.loads(run(command, environment)[0].strip().splitlines()[-1]))
            except RuntimeError as problem:
                print(problem, file=sys.stderr, flush=True)
                results[label]["failed"] = str(problem)
                continue
            results[label]["step_times_s"] += one["step_times_s"]
            results[label]["peak_mb"].append(one["peak_mb"])
            results[label]["tokens"] = one["tokens"]
    return results


def table(model, name, results):
    """Speed and memory against the fastest peer of each precision: a speed ratio above 1 is faster, a memory ratio below 1
    smaller."""
    step = {label: statistics.median(r["step_times_s"]) for label, r in results.items() if r["step_times_s"]}
    peak = {label: max(results[label]["peak_mb"]) for label in step}
    best = {}  # precision -> label of its fastest peer
    for label in step:
        precision = results[label]["precision"]
        if precision and (precision not in best or step[label] < step[best[precision]]):
            best[precision] = label
    ratios = "".join(f" speed / {p} | memory / {p} |" for p in best)
    lines = [f"### {model}, {name}", "", f"| contender | step s, median | min | tokens/s | peak MB |{ratios}",
             "|---|---|---|---|---|" + "---|---|" * len(best)]
    for label, r in results.items():
        if label not in step:
            lines.append(f"| {label} | failed | | | |" + " | |" * len(best))
            continue
        lines.append(f"| {label} | {step[label]:.3f} | {min(r['step_times_s']):.3f} | {r['tokens'] / step[label]:.0f} | "
                     f"{peak[label]:.0f} |" + "".join(
                         f" {step[peer] / step[label]:.2f}x | {peak[label] / peak[peer]:.2f}x |" for peer in best.values()))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="", help="a Python with torch and transformers; without it no peer is timed")
    parser.add_argument("--pentatron", default="", help="the program; without it only the peers are timed")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=PROGRAM", help="another build of pentatron")
    parser.add_argument("--models", default=",".join(MODEL))
    parser.add_argument("--classes", default=",".join(CLASSES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", default=os.path.join(tempfile.gettempdir(), "pentatron_inductor"))
    parser.add_argument("--out", default="peers.json")
    args = parser.parse_args()
    if not (args.python or args.pentatron or args.also):
        parser.error("nothing to time; try: --pentatron build/release/pentatron")
    args.cache = os.path.abspath(args.cache)  # the compiler runs in another folder
    everything = {"device": args.device, "threads": args.threads, "rounds": args.rounds, "steps": args.steps,
                  "load_at_start": os.getloadavg()[0], "runs": {}}
    for model in args.models.split(","):
        for name in args.classes.split(","):
            results = measure(args, model, name)
            everything["runs"][f"{model} {name}"] = results
            print(table(model, name, results), flush=True)
            with open(args.out, "w", encoding="utf-8") as file:
                json.dump(everything, file, indent=1)
    failed = [label for run_ in everything["runs"].values() for label, r in run_.items() if "failed" in r]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
