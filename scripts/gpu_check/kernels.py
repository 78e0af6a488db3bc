"""Does each CUDA kernel equal its scalar reference? Every operator's tests in a process of their own: an error of a kernel ends
all CUDA work of its process."""
import json
import os
import re

from part import Part

OPERATORS = ["Activation*", "AdamW*", "Cast*", "Control*", "*CrossEntropy*", "Dropout*", "Embedding*", "FindNonfinite*", "Lion*", "Norm*",
             "Rope*-RopeFrequencies*", "Scale*", "Sgd*", "SumOfSquares*-SumOfSquares.EveryEntryAndThreadCountGiveTheSameBits", "SumRows*", "Zero*"]


def results_of(report):
    """Names of tests by what became of them, and the first message of each failure."""
    passed, failed, skipped = [], {}, []
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            name = f"{suite['name']}.{test['name']}"
            if test.get("failures"):
                failed[name] = test["failures"][0]["failure"][:400]
            elif test.get("result") == "SKIPPED":
                skipped.append(name)
            else:
                passed.append(name)
    return passed, failed, skipped


def run_tests(part, program, pattern, timeout):
    file = os.path.join(part.scratch, "gtest.json")
    if os.path.exists(file):
        os.remove(file)
    problem = ""
    try:
        part.run([program, f"--gtest_filter={pattern}", f"--gtest_output=json:{file}", "--gtest_brief=1"], timeout)
    except RuntimeError as error:
        problem = str(error)
    if not os.path.exists(file):
        return False, {"error": problem or "no report"}
    with open(file, encoding="utf-8") as report:
        passed, failed, skipped = results_of(json.load(report))
    if not passed and not failed:
        return None, {"skipped": f"{len(skipped)} tests were skipped"}
    return not failed, {"passed": len(passed), "failed": failed, "skipped_tests": len(skipped)}


def main():
    part = Part()
    program = os.path.join(part.bundle, "tests", "kernels_gpu_test")
    if not os.path.exists(program):
        part.skip("kernels", "kernels_gpu_test is not in this bundle")
    else:
        for pattern in OPERATORS:
            name = re.sub(r"[*]|-.*", "", pattern)
            part.attempt(name, lambda pattern=pattern: run_tests(part, program, pattern, 60))
    for name, suite in (("layers_test", "CudaAttention"), ("trainer_test", "CudaTraining")):
        program = os.path.join(part.bundle, "tests", name)
        if part.device != "cuda" or not os.path.exists(program):
            part.skip(suite, "only on a GPU" if part.device != "cuda" else f"{name} is not in this bundle")
        else:
            part.attempt(suite, lambda program=program, suite=suite: run_tests(part, program, f"*{suite}*", 120))


main()
