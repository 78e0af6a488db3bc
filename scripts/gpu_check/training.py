"""Do runs with each key of the configuration, and the models of the equivalence matrix, train on the GPU as on the CPU?"""
from part import Part
from suites import run_on_gpu


def main():
    part = Part()
    run_on_gpu(part, "trainer_test", "CudaKeys", 100)
    run_on_gpu(part, "trainer_test", "CudaTraining", 140)


main()
