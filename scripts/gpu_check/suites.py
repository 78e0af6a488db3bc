"""Test programs of the bundle, one group of tests in a process of its own."""
import concurrent.futures
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


def run_tests(part, program, pattern, timeout, shard=0, shards=1):
    file = os.path.join(part.scratch, f"gtest{shard}.json")
    if os.path.exists(file):
        os.remove(file)
    problem = ""
    try:
        part.run([program, f"--gtest_filter={pattern}", f"--gtest_output=json:{file}", "--gtest_brief=1"], timeout,
                 GTEST_TOTAL_SHARDS=str(shards), GTEST_SHARD_INDEX=str(shard), **({"PENTATRON_NEEDS_GPU": "1"} if part.device == "cuda" else {}))
    except RuntimeError as error:
        problem = str(error)
    if not os.path.exists(file):
        return False, {"error": problem or "no report"}
    with open(file, encoding="utf-8") as report:
        passed, failed, skipped = results_of(json.load(report))
    if not passed and not failed:
        return None, {"skipped": f"{len(skipped)} tests were skipped"}
    return not failed, {"passed": len(passed), "failed": failed, "skipped_tests": len(skipped)}


def run_on_gpu(part, program, suite, timeout, shards=1):
    """A suite that only a GPU runs, in `shards` processes at once."""
    path = os.path.join(part.bundle, "tests", program)
    if part.device != "cuda" or not os.path.exists(path):
        part.skip(suite, "only on a GPU" if part.device != "cuda" else f"{program} is not in this bundle")
        return
    with concurrent.futures.ThreadPoolExecutor(shards) as pool:
        jobs = [pool.submit(part.attempt, suite + (f", {shard + 1} of {shards}" if shards > 1 else ""),
                            lambda shard=shard: run_tests(part, path, f"*{suite}*", timeout, shard, shards)) for shard in range(shards)]
        for job in jobs:
            job.result()
