#!/usr/bin/env python3
"""A step of examples/quickstart.yaml alone and beside busy processes, with several ways for OpenMP threads to wait.

    benchmarks/sharing/busy.py [--program build/release/pentatron] [--rounds 3] [--steps 6] [--ranks 1] [--busy 0,1,2]
                               [--settings GOMP_SPINCOUNT=100000,OMP_WAIT_POLICY=PASSIVE] [key=value ...]

Settings take turns, round after round, so that a machine whose speed varies is fair to all. A figure is the median of all
steps, without the first two of each run. A busy process counts, without a pause. "default" is what pentatron sets itself;
"libgomp" is the OpenMP library's own behaviour without settings.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEYS = ["train.eval_interval=0", "logger.sample_prompts=[]", "checkpoint.save=", "logger.plot=false", "logger.tensorboard=false",
        "logger.peak_tflops=1", "logger.log_interval=1000000"]
# Of libgomp, where nothing is set: rounds that a thread spins, with at most as many threads as processors.
LIBGOMP = "GOMP_SPINCOUNT=300000"


def environment(setting):
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    if setting != "default":
        name, _, value = (LIBGOMP if setting == "libgomp" else setting).partition("=")
        env[name] = value
    return env


def step_times(program, ranks, setting, steps, keys):
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "train", os.path.join(REPOSITORY, "examples/quickstart.yaml"), *KEYS, f"train.train_iters={steps + 2}",
                   f"logger.dir={folder}", *keys]
        if ranks > 1:
            command += ["--ranks", str(ranks)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(setting), cwd=REPOSITORY)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
            return [json.loads(line)["step_time_s"] for line in lines if "step_time_s" in line][2:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(REPOSITORY, "build/release/pentatron"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--busy", default="0,1,2")
    parser.add_argument("--settings", default="libgomp,default,OMP_WAIT_POLICY=PASSIVE")
    parser.add_argument("keys", nargs="*")
    args = parser.parse_args()
    program = os.path.abspath(args.program)
    settings = args.settings.split(",")
    print("| busy processes | " + " | ".join(settings) + " |")
    print("|---|" + "---|" * len(settings))
    for busy in (int(n) for n in args.busy.split(",")):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            times = {setting: [] for setting in settings}
            for _ in range(args.rounds):
                for setting in settings:
                    times[setting] += step_times(program, args.ranks, setting, args.steps, args.keys)
        finally:
            for other in others:
                other.kill()
                other.wait()
        print(f"| {busy} | " + " | ".join(f"{statistics.median(times[s]):.3f} s" for s in settings) + " |", flush=True)


if __name__ == "__main__":
    main()
