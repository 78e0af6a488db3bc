"""Does each CUDA kernel equal its scalar reference? Every operator's tests in a process of their own: an error of a kernel ends
all CUDA work of its process."""
import os
import re

from part import Part
from suites import run_on_gpu, run_tests

OPERATORS = ["Activation*", "AdamW*", "Cast*", "Control*", "*CrossEntropy*", "Dropout*", "Embedding*", "FindNonfinite*", "Fp8*", "Hadamard*", "Lion*", "Norm*",
             "Rope*-RopeFrequencies*", "LoadNarrow*", "StoreNarrow*", "Scale*", "Sgd*", "SumOfSquares*-SumOfSquares.EveryEntryAndThreadCountGiveTheSameBits", "SumRows*", "TiledBlocks*",
             "Zero*"]


def main():
    part = Part()
    program = os.path.join(part.bundle, "tests", "kernels_gpu_test")
    if not os.path.exists(program):
        part.skip("kernels", "kernels_gpu_test is not in this bundle")
    else:
        for pattern in OPERATORS:
            name = re.sub(r"[*]|-.*", "", pattern)
            part.attempt(name, lambda pattern=pattern: run_tests(part, program, pattern, 60))
    run_on_gpu(part, "layers_test", "CudaAttention", 120)


main()
