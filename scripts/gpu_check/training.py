"""Do runs with each key of the configuration, and the models of the equivalence matrix, train on the GPU as on the CPU?"""
import os

from part import Part
from suites import run_on_gpu


def main():
    part = Part()
    # The CPU's runs take the time: one core for each process.
    os.environ["OMP_NUM_THREADS"] = "1"
    shards = max(1, min(16, len(os.sched_getaffinity(0)) - 1))
    run_on_gpu(part, "trainer_test", "CudaKeys", 140, shards)
    run_on_gpu(part, "trainer_test", "CudaTraining", 140, shards)


main()
