"""Runs CI's part of the equivalence matrix for every planted bug, until the first layout that fails, and prints which one
caught it: run_planted_bugs.py <trainer_test with planted bugs> [--layouts TEXT] [--update] [bug...], with only the layouts
whose names contain the text. The layouts that planted_bugs.txt names run first; --update writes there what caught each bug.
Exits 1 if a bug is caught by none, or without a bug something fails."""
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


def listed():
    """Of each bug, the text in the names of the layouts that run first."""
    with open(LIST, encoding="utf-8") as file:
        fields = [line.rstrip("\n").split(" | ") for line in file if line.strip() and not line.startswith("#")]
    return {field[0]: field[2] if len(field) > 2 else "" for field in fields}


def write(caught):
    with open(LIST, encoding="utf-8") as file:
        lines = file.read().splitlines()
    for i, line in enumerate(lines):
        name, *rest = line.split(" | ")
        if name in caught and rest:
            lines[i] = f"{name} | {rest[0]} | {caught[name]}"
    with open(LIST, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


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


def catch(program, bug, first, layouts):
    """As run(), but the layouts `first` run before the others."""
    if first and not layouts:
        layout, reason = run(program, bug, first)
        if layout:
            return layout, reason
    return run(program, bug, layouts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("bugs", nargs="*")
    parser.add_argument("--layouts", default="", metavar="TEXT")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    layout, reason = run(args.program, None, args.layouts)
    if layout or reason:
        print(f"without a bug: {layout} fails: {reason}")
        return 1
    print("without a bug: every layout trains what one rank trains", flush=True)
    first = listed()
    bugs = args.bugs or list(first)
    escaped, caught = 0, {}
    jobs = max(1, (os.cpu_count() or 1) // 2)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda bug: catch(args.program, bug, first.get(bug, ""), args.layouts), bugs)
        for bug, (layout, reason) in zip(bugs, results):
            escaped += layout is None
            if layout:
                caught[bug] = layout
            print(f"{bug:36} {layout or 'ESCAPED':28} {reason[:140]}", flush=True)
    if args.update:
        write(caught)
    print(f"{len(bugs) - escaped} of {len(bugs)} planted bugs are caught")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
