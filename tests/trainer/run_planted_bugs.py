"""Runs CI's part of the equivalence matrix once for every planted bug, until the first layout that fails, and prints which
one caught it: run_planted_bugs.py <trainer_test with planted bugs> [--layouts TEXT] [bug...], with only the layouts whose
names contain the text. Exits 1 if a bug is caught by none, or without a bug something fails."""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "planted_bugs.txt")
FAILED = re.compile(r"\[  FAILED  \] Layouts/Layout(?:Matrix|Fp16)\.\w+/(\w+)")
# What a failure says first: of a comparison its own line, of an exception its message.
REASON = re.compile(r"(C\+\+ exception with description \"[^\n]*|loss of step \d+|gradient norm of step \d+|"
                    r"copies of [^\n]* differ|no rank holds[^\n]*|run\.validation\[i\])")
LIMIT_S = 900


def names():
    with open(LIST, encoding="utf-8") as file:
        return [line.split("|")[0].strip() for line in file if line.strip() and not line.startswith("#")]


def run(program, bug, layouts=""):
    """What a run with this bug, or none, did: the first layout that failed and why."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PENTATRON_BUG", "PENTATRON_MATRIX")}
    environment["OMP_WAIT_POLICY"] = "PASSIVE"
    if bug:
        environment["PENTATRON_BUG"] = bug
    command = [program, f"--gtest_filter=*LayoutMatrix.*{layouts}*:*LayoutFp16.*{layouts}*", "--gtest_fail_fast", "--gtest_color=no"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return None, f"still running after {LIMIT_S} s"
    text = done.stdout + done.stderr
    if done.returncode == 0:
        return None, ""
    failed = FAILED.search(text)
    if not failed:
        started = re.findall(r"\[ RUN      \] Layouts/Layout(?:Matrix|Fp16)\.\w+/(\w+)", text)
        return (started[-1] if started else None), f"ends with status {done.returncode}"
    reason = REASON.search(text)
    return failed.group(1), reason.group(1).replace("run.validation[i]", "validation loss") if reason else "weights"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("bugs", nargs="*")
    parser.add_argument("--layouts", default="", metavar="TEXT")
    args = parser.parse_args()
    layout, reason = run(args.program, None, args.layouts)
    if layout or reason:
        print(f"without a bug: {layout} fails: {reason}")
        return 1
    print("without a bug: every layout trains what one rank trains", flush=True)
    bugs = args.bugs or names()
    escaped = 0
    jobs = max(1, (os.cpu_count() or 1) // 2)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for bug, (layout, reason) in zip(bugs, pool.map(lambda bug: run(args.program, bug, args.layouts), bugs)):
            escaped += layout is None
            print(f"{bug:36} {layout or 'ESCAPED':28} {reason[:140]}", flush=True)
    print(f"{len(bugs) - escaped} of {len(bugs)} planted bugs are caught")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
