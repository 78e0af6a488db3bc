"""Do several ranks train what one trains? Over NCCL, and if they share a GPU also through the host's memory.

NCCL refuses two ranks of one machine on one GPU. Where there are too few GPUs, each rank is therefore told that it is a machine of its
own (NCCL_HOSTID), and NCCL sends through sockets of the loopback interface: slow, but every call is real.
"""
import concurrent.futures
import itertools
import json
import os
import signal
import socket
import subprocess
import time

import torch

from part import Part, relative

TRAIN = ("dataset.type=mock model.num_layers=4 model.hidden_size=64 model.num_attention_heads=4 model.vocab_size=256 "
         "train.seq_length=64 train.micro_batch_size=2 train.global_batch_size=16 train.train_iters=6 dtype=fp64").split()
EXPERTS = "model.num_moe_experts=4 model.moe_aux_loss_coeff=0.01".split()
LATENT = ("model.multi_latent_attention=true model.kv_lora_rank=16 model.qk_head_dim=8 model.qk_pos_emb_head_dim=8 "
          "model.v_head_dim=8").split()
TP, PP, CP = (f"parallel.{axis}_parallel_size=2" for axis in ("tensor_model", "pipeline_model", "context"))
EP, SP = "parallel.expert_model_parallel_size=2", "parallel.sequence_parallel=true"
LAYOUTS = {  # name: ranks, the model's keys, the layout's
    "data": (2, [], []),
    "data, ZeRO 3": (2, [], ["ddp.zero_stage=3"]),
    "tensor and sequence": (2, [], [TP, SP]),
    "tensor and sequence, overlapped": (2, [], [TP, SP, "comm_overlap.tp=true"]),
    "pipeline 1f1b": (2, [], [PP, "parallel.pipeline_schedule=1f1b"]),
    "context": (2, [], [CP]),
    "context by heads": (2, [], [CP, "parallel.cp_comm_type=[a2a]"]),
    "pipeline interleaved": (2, [], [PP, "parallel.pipeline_schedule=interleaved", "parallel.virtual_pipeline_model_parallel_size=2"]),
    "pipeline zb_h2": (2, [], [PP, "parallel.pipeline_schedule=zb_h2"]),
    "pipeline zb_v": (2, [], [PP, "parallel.pipeline_schedule=zb_v"]),
    "pipeline dualpipe_v": (2, [], [PP, "parallel.pipeline_schedule=dualpipe_v"]),
    "experts": (2, EXPERTS, [EP]),
    "experts by all-gather": (2, EXPERTS, [EP, "parallel.moe_token_dispatcher_type=allgather"]),
    "latent attention, context": (2, LATENT, [CP]),
    "recomputation and ZeRO 1": (2, [], ["train.recompute=full", "ddp.zero_stage=1"]),
    "Muon, ZeRO 2": (2, ["optimizer.optimizer=muon"], ["ddp.zero_stage=2"]),
    "tensor, pipeline": (4, [], [TP, SP, PP]),
    "experts, tensor, pipeline dualpipe_v": (4, EXPERTS, [EP, TP, SP, PP, "parallel.pipeline_schedule=dualpipe_v",
                                                          "parallel.expert_tensor_parallel_size=1"]),
    "experts, passes that take turns": (4, EXPERTS, [EP, PP, "parallel.pipeline_schedule=dualpipe_v", "comm_overlap.moe_expert_parallel=true"]),
}
# Those that run over NCCL if ranks share a GPU.
OVER_NCCL = ("data", "data, ZeRO 3", "tensor and sequence, overlapped", "pipeline 1f1b", "pipeline zb_v", "context", "context by heads", "experts",
             "Muon, ZeRO 2", "tensor, pipeline", "experts, tensor, pipeline dualpipe_v")
BOUND = 1e-8


def losses(steps):
    return [step["loss"] for step in steps if "loss" in step]


PORTS = itertools.count(20000)  # below those that the system gives to anybody


def free_port():
    for port in PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Machines:
    """A run whose ranks believe that each is a machine of its own, on GPU 0 of this one."""

    def __init__(self, part, name, ranks, keys):
        self.part = part
        self.out = os.path.join(part.scratch, name)
        os.makedirs(self.out, exist_ok=True)
        port = free_port()
        shared = {"WORLD_SIZE": ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                  "PENTATRON_JOB_SECRET": os.urandom(16).hex(), "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_MNNVL_ENABLE": 0}
        command = [part.program, "train", f"device={part.device}", f"logger.dir={self.out}/run", "logger.tensorboard=false", "logger.plot=false",
                   "logger.log_interval=1", *keys]
        self.processes = []
        try:
            for rank in range(ranks):
                environment = dict(part.environment(), **{name: str(value) for name, value in shared.items()}, RANK=str(rank),
                                   NCCL_HOSTID=f"machine{rank}")
                with open(self.output_of(rank), "w", encoding="utf-8") as output:
                    self.processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT,
                                                           stdin=subprocess.DEVNULL))
        except BaseException:
            self.stop()
            raise

    def output_of(self, rank):
        return os.path.join(self.out, f"rank{rank}.txt")

    def text_of(self, rank):
        with open(self.output_of(rank), encoding="utf-8", errors="replace") as file:
            return file.read()

    def steps(self):
        path = os.path.join(self.out, "run", "metrics.jsonl")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def wait(self, timeout):
        """Raises RuntimeError, with what a rank wrote, if one fails or does not end."""
        try:
            self.watch(timeout, lambda: all(process.poll() is not None for process in self.processes))
        finally:
            self.stop()
        return self.steps()

    def watch(self, timeout, done):
        """Waits until `done()`, while no rank fails."""
        timeout = max(2, min(timeout, self.part.hard_end - time.monotonic()))
        end = time.monotonic() + timeout
        while True:
            for rank, process in enumerate(self.processes):
                if process.poll() not in (None, 0):
                    raise RuntimeError(f"rank {rank} ended with status {process.poll()}: {self.text_of(rank)[-900:]}")
            if done():
                return
            if time.monotonic() > end:
                said = " | ".join(self.text_of(rank)[-300:] for rank in range(len(self.processes)))
                raise RuntimeError(f"no end after {timeout:.0f} s: {said}")
            time.sleep(0.1)

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def told_of(part, name, sent, seconds):
    """Rank 1 gets a signal between two steps: rank 0 must end within `seconds`, with an error that names rank 1."""
    keys = [*(key for key in TRAIN if "train_iters" not in key), "train.train_iters=100000", "dist.timeout_s=10"]
    run = Machines(part, name, 2, keys)
    try:
        run.watch(40, lambda: len(losses(run.steps())) >= 3)
        run.processes[1].send_signal(sent)
        start = time.monotonic()
        try:
            status = run.processes[0].wait(max(1, min(seconds, part.hard_end - time.monotonic())))
        except subprocess.TimeoutExpired:
            return False, {"error": f"the other rank did not end in {seconds} s"}
        said = [line for line in run.text_of(0).splitlines() if line.startswith("error: ")]
        return status != 0 and bool(said) and "rank 1" in said[-1], {"seconds": time.monotonic() - start, "said": said[-1:]}
    finally:
        run.stop()


def main():
    part = Part()
    gpus = torch.cuda.device_count() if part.device == "cuda" else 0
    right = {}
    for _, model, _ in LAYOUTS.values():
        if tuple(model) in right:
            continue
        try:
            right[tuple(model)] = losses(part.train(f"one_{len(right)}", *TRAIN, *model, timeout=60))
        except (RuntimeError, OSError, ValueError) as error:
            right[tuple(model)] = str(error)

    def compare(name, over_nccl):
        ranks, model, layout = LAYOUTS[name]
        if isinstance(right[tuple(model)], str):
            return False, {"error": "one rank: " + right[tuple(model)]}
        folder = name.replace(" ", "_").replace(",", "") + ("_nccl" if over_nccl else "")
        if over_nccl:
            got = losses(Machines(part, folder, ranks, [*TRAIN, *model, *layout]).wait(90))
        else:
            shared = ["dist.gpu_messages=host"] if 0 < gpus < ranks else []
            got = losses(part.train(folder, *TRAIN, *model, *layout, *shared, ranks=["--ranks", str(ranks), "--backend", "sockets"], timeout=60))
        worst = max(relative(a, b) for a, b in zip(got, right[tuple(model)], strict=True))
        return worst <= BOUND, {"loss": worst, "bound": BOUND}

    runs = [(name, False) for name in LAYOUTS]
    if gpus > 0:
        runs = [(name, True) for name in OVER_NCCL if gpus < LAYOUTS[name][0]] + runs
    # Ranks wait more than they compute.
    with concurrent.futures.ThreadPoolExecutor(3 if gpus > 0 else 1) as pool:
        for job in [pool.submit(part.attempt, name + (", over NCCL on one GPU" if nccl else ""), lambda name=name, nccl=nccl: compare(name, nccl))
                    for name, nccl in runs]:
            job.result()
    if gpus > 0:
        part.attempt("a rank that dies, over NCCL", lambda: told_of(part, "death", signal.SIGKILL, 30))
        part.attempt("a rank that stops, over NCCL", lambda: told_of(part, "stop", signal.SIGSTOP, 40))


main()
