"""Breaks runs of four ranks at random moments and checks that each ends within 10 s with one sentence that names the rank
and an operation: fault_campaign.py FAULT_RUN KIND COUNT [SEED], KIND one of
mpi, sockets (supervised ranks), mpirun, ranks (foreign launchers), threads."""
import glob
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

OPERATION = re.compile(r"(all_reduce\(sum\)|all_gather|reduce_scatter\(sum\) to a part|barrier|broadcast\(root 0\)|send)"
                       r" #\d+ (of group|from rank)")
LIMIT_S = 10
START_RANKS = os.path.join(os.path.dirname(__file__), "..", "..", "support", "start_ranks.py")


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, OMP_NUM_THREADS="1"), start_new_session=True)


def pids(folder):
    found = {}
    for path in glob.glob(os.path.join(folder, "pid.*")):
        text = open(path).read()
        if text:
            found[int(path.rsplit(".", 1)[1])] = int(text)
    return found


def alive(pid):
    try:
        state = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]
        return state != "Z"
    except OSError:
        return False


def processes(fault_run, kind, rng):
    """SIGKILL or SIGSTOP to one of the ranks."""
    number, victim, delay = rng.choice([signal.SIGKILL, signal.SIGSTOP]), rng.randrange(4), rng.uniform(0, 1.5)
    what = f"{number.name} to rank {victim} after {delay:.2f} s"
    with tempfile.TemporaryDirectory() as folder:
        if kind in ("mpi", "sockets"):
            command = [fault_run, kind, folder]
        elif kind == "ranks":
            command = [sys.executable, START_RANKS, "4", fault_run, "rank", folder]
        else:
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "4", fault_run, "rank", folder]
            if os.geteuid() == 0:
                command.insert(1, "--allow-run-as-root")
        run = start(command)
        deadline = time.monotonic() + 60
        while len(pids(folder)) < 4 and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        ranks = pids(folder)
        if len(ranks) < 4:
            run.kill()
            return what, ["the ranks did not start: " + run.communicate()[1]]
        time.sleep(delay)
        os.kill(ranks[victim], number)
        problems, output = finish(run, victim)
        patience = time.monotonic() + 3
        while any(alive(pid) for pid in ranks.values()) and time.monotonic() < patience:
            time.sleep(0.05)
        left = [rank for rank, pid in ranks.items() if alive(pid)]
        if left:
            problems.append(f"ranks {left} still run")
            for rank in left:
                os.kill(ranks[rank], signal.SIGKILL)
        return what, problems + ([output] if problems else [])


def threads(fault_run, rng):
    fault, victim, step = rng.choice(["throw", "absent"]), rng.randrange(4), rng.randrange(100)
    run = start([fault_run, "threads", fault, str(victim), str(step)])
    time.sleep(0.008 * step)
    problems, output = finish(run, victim, operation=fault == "absent", limit_s=LIMIT_S + 4)
    return f"rank {victim}: {fault} at step {step}", problems + ([output] if problems else [])


def finish(run, victim, operation=True, limit_s=LIMIT_S):
    begin = time.monotonic()
    try:
        _, output = run.communicate(timeout=limit_s + 20)
    except subprocess.TimeoutExpired:
        run.kill()
        return ["the run hangs"], ""
    seconds = time.monotonic() - begin
    problems = []
    if seconds > limit_s:
        problems.append(f"the run took {seconds:.1f} s to end")
    if run.returncode == 0:
        problems.append("exit code 0")
    sentences = [line for line in output.splitlines() if line.startswith("error: ")]
    if len(sentences) != 1:
        problems.append(f"{len(sentences)} sentences")
    elif not re.match(rf"error: rank {victim}\b", sentences[0]) or (operation and not OPERATION.search(sentences[0])):
        problems.append("the sentence does not name the rank and an operation")
    print(f"  {seconds:4.1f} s  {sentences[0] if sentences else output[-300:]}", flush=True)
    return problems, output


def main():
    fault_run, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rng = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    if kind in ("mpi", "mpirun") and not shutil.which("mpirun"):
        print("mpirun is not installed")
        return 77
    failures = 0
    for number in range(count):
        if kind == "threads":
            what, problems = threads(fault_run, rng)
        else:
            what, problems = processes(fault_run, kind, rng)
        print(f"{number + 1}: {what}: {'; '.join(problems) or 'good'}", flush=True)
        failures += bool(problems)
    print(f"{count - failures} of {count} runs ended as they should")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
