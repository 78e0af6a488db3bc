"""The same run under every launcher, with the same losses: launchers.py PENTATRON [PYTHON_WITH_TORCHRUN]

Threads, supervised processes over sockets and over MPI, mpirun, torchrun (also of two agents, as on two machines) and srun
(plain and with PMIx, in a Slurm that the test starts) train 8 steps in fp64 as TP2 x DP2. Every step's loss and gradient
norm must be the threads' bit for bit, and one rank's to 1e-10. A launcher that is not there is an error, unless the
environment says PENTATRON_SKIP_ABSENT_LAUNCHERS=1.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import slurm

CONFIG = """
dtype: fp64
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, ffn_hidden_size: 64, max_position_embeddings: 32}
train: {train_iters: 8, global_batch_size: 8, micro_batch_size: 1, num_threads: 1, seq_length: 32}
optimizer: {lr: 0.003}
logger: {log_interval: 1}
"""
LAYOUT = ["parallel.tensor_model_parallel_size=2"]
LIMIT_S = 120


class Runs:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.config = os.path.join(folder, "run.yaml")
        with open(self.config, "w") as file:
            file.write(CONFIG)
        self.expected = None
        self.failures = 0

    def train(self, *arguments, name):
        return [self.program, "train", self.config, *arguments, *LAYOUT, f"logger.dir={os.path.join(self.folder, name)}"]

    def metrics(self, name):
        with open(os.path.join(self.folder, name, "metrics.jsonl")) as file:
            lines = [json.loads(line) for line in file]
        return [(line["iteration"], line["loss"], line["grad_norm"]) for line in lines if "loss" in line]

    def check(self, name, commands, environment=None):
        """Runs the commands at the same time; the metrics of `name` must be the expected ones."""
        problem = self.problem(name, commands, environment or dict(os.environ))
        print(f"{name:28} {problem or 'the same losses'}", flush=True)
        self.failures += bool(problem)

    def problem(self, name, commands, environment):
        running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for command in commands]
        try:
            outputs = [run.communicate(timeout=LIMIT_S)[0] for run in running]
        except subprocess.TimeoutExpired:
            return f"no end after {LIMIT_S} s"
        finally:
            for run in running:
                run.kill()
        for run, output in zip(running, outputs):
            if run.returncode != 0:
                return f"exit code {run.returncode}\n{output[-2000:]}"
        found = self.metrics(name)
        if len(found) != 8:
            return f"{len(found)} steps"
        if self.expected is None:
            self.expected = found
        return None if found == self.expected else f"other losses: {found} and not {self.expected}"

    def lines(self, name):
        try:
            with open(os.path.join(self.folder, name, "metrics.jsonl")) as file:
                return len(file.readlines())
        except FileNotFoundError:
            return 0

    def check_signals(self, name, launch):
        """Ctrl-Z stops all ranks and they go on; SIGTERM to one rank saves, and all end with success."""
        save = os.path.join(self.folder, name + "_save")
        command = launch + self.train(f"checkpoint.save={save}", "train.train_iters=1000000", name=name)
        with open(os.path.join(self.folder, name + ".txt"), "w+") as output:
            run = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                problem = self.problem_with_signals(run, name, save)
            finally:
                run.kill()
                run.wait()
            output.seek(0)
            print(f"{name:28} {problem + chr(10) + output.read()[-2000:] if problem else 'stops, goes on and saves'}", flush=True)
        self.failures += bool(problem)

    def problem_with_signals(self, run, name, save):
        def waits(condition):
            end = time.monotonic() + LIMIT_S
            while not condition():
                if run.poll() is not None or time.monotonic() > end:
                    return False
                time.sleep(0.1)
            return True
        if not waits(lambda: self.lines(name) >= 3):
            return "does not begin"
        run.send_signal(signal.SIGTSTP)
        stopped = -1
        while stopped != self.lines(name):  # those on their way
            stopped = self.lines(name)
            time.sleep(2)
        run.send_signal(signal.SIGCONT)
        if not waits(lambda: self.lines(name) > stopped + 3):
            return "does not go on"
        ranks = subprocess.run(["pgrep", "-P", str(run.pid), "pentatron"], capture_output=True, text=True).stdout.split()
        os.kill(int(ranks[-1]), signal.SIGTERM)
        if run.wait(LIMIT_S) != 0:
            return f"exit code {run.returncode}"
        return None if os.path.exists(os.path.join(save, "latest")) else "no checkpoint"

    def check_one_rank(self):
        command = [self.program, "train", self.config, f"logger.dir={os.path.join(self.folder, 'one')}"]
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
        worst = max(abs(a - b) / abs(b) for mine, one in zip(self.expected, self.metrics("one"))
                    for a, b in zip(mine[1:], one[1:]))
        print(f"{'one rank':28} differs by {worst:.1e}")
        self.failures += not worst <= 1e-10

    def absent(self, name, why):
        skip = os.environ.get("PENTATRON_SKIP_ABSENT_LAUNCHERS") == "1"
        print(f"{name:28} {'skipped' if skip else 'FAILED'}: {why}")
        self.failures += not skip


def main():
    program, torch_python = os.path.abspath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(program, folder)
        train = runs.train
        runs.check("threads", [train("--ranks", "4", name="threads")])
        runs.check_one_rank()
        runs.check("sockets", [train("--ranks", "4", "--backend", "sockets", name="sockets")])
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "4"]
        if shutil.which("mpirun"):
            runs.check("mpi", [train("--ranks", "4", "--backend", "mpi", name="mpi")])
            runs.check("mpirun", [mpirun + train(name="mpirun")])
            runs.check_signals("mpirun_signals", mpirun)
            runs.check("mpirun_sockets", [mpirun + train("--backend", "sockets", name="mpirun_sockets")])
        else:
            runs.absent("mpirun", "it is not installed")
        if torch_python:
            torchrun = [torch_python, "-m", "torch.distributed.run", "--no-python"]
            runs.check("torchrun", [torchrun + ["--nproc-per-node", "4"] + train(name="torchrun")])
            port = str(slurm.free_ports(1)[0])
            agents = [torchrun + ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port",
                                  port, "--node-rank", rank] + train(name="torchrun_agents") for rank in "01"]
            runs.check("torchrun_agents", agents)
        else:
            runs.absent("torchrun", "no Python with torch was given")
        why = slurm.missing()
        if why:
            runs.absent("srun", why)
        else:
            with slurm.Slurm() as environment:
                srun = ["srun", "-n", "4", "--overcommit"]
                runs.check("srun", [srun + train(name="srun")], environment)
                if shutil.which("mpirun"):
                    runs.check("srun_pmix", [srun + ["--mpi=pmix"] + train(name="srun_pmix")], environment)
                    allocation = ["salloc", "-n", "2", "--overcommit"]
                    runs.check("salloc_mpirun", [allocation + mpirun + train(name="salloc_mpirun")], environment)
        print("every launcher gives the same losses" if not runs.failures else f"{runs.failures} failed")
        return 1 if runs.failures else 0


if __name__ == "__main__":
    sys.exit(main())
