"""Test programs of the bundle, one group of tests in a process of its own."""
import json
import os


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


def run_on_gpu(part, program, suite, timeout):
    """A suite that only a GPU runs."""
    path = os.path.join(part.bundle, "tests", program)
    if part.device != "cuda" or not os.path.exists(path):
        part.skip(suite, "only on a GPU" if part.device != "cuda" else f"{program} is not in this bundle")
    else:
        part.attempt(suite, lambda: run_tests(part, path, f"*{suite}*", timeout))
