"""Starts a program as ranks with the variables of torchrun, as torchrun would: start_ranks.py [--per-machine M] N PROGRAM...

With --per-machine the ranks believe that so many of them share a machine. Ends the others when one has failed; its exit
code is the first failure's.
"""
import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(args):
    per_machine = args.per_machine or args.ranks
    port, secret = free_port(), secrets.token_hex(16)
    foreign = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "PENTATRON_CONTROL", "PENTATRON_JOB_SECRET")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    for rank in range(args.ranks):
        environment = dict(clean, RANK=str(rank), WORLD_SIZE=str(args.ranks), LOCAL_RANK=str(rank % per_machine),
                           LOCAL_WORLD_SIZE=str(min(per_machine, args.ranks)), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port), PENTATRON_JOB_SECRET=secret)
        yield subprocess.Popen(args.program, env=environment)


def exit_code(code):
    return 128 - code if code < 0 else code


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per-machine", type=int, default=0)
    parser.add_argument("ranks", type=int)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    processes = list(start(parser.parse_args()))
    patience = None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while True:
            codes = [process.poll() for process in processes]
            failed = [code for code in codes if code]
            if failed and None in codes:
                patience = patience or time.monotonic() + 3  # they may have something to say
            if None not in codes or (patience and time.monotonic() > patience):
                return exit_code(failed[0]) if failed else 0
            time.sleep(0.02)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    sys.exit(main())
