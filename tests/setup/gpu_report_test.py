"""scripts/gpu_report.py on files as ctest, the trainer and the comparison write them: gpu_report_test.py ROOT"""
import json
import os
import subprocess
import sys
import tempfile

JUNIT = """<testsuite name="x">
<testcase name="layers_test.Cases/CudaAttention.cuda" status="{first}"><system-out>[       OK ] a (3 ms)</system-out></testcase>
<testcase name="trainer_test.CudaRanks" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
<testcase name="trainer_test.CudaTraining.cuda" status="run"><system-out>[  SKIPPED ] b (0 ms)</system-out></testcase>
</testsuite>"""


def run(root, scratch, first, with_files=True):
    def write(name, text):
        path = os.path.join(scratch, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    command = [sys.executable, os.path.join(root, "scripts/gpu_report.py"), "--out", os.path.join(scratch, "out"), "--device",
               "NVIDIA H100 80GB HBM3", "--junit", write("tests.xml", JUNIT.format(first=first))]
    if with_files:
        steps = [{"iteration": i, "loss": 3, "step_time_s": 0.5 if i < 5 else 0.1, "tokens_per_s": 81920, "tflops": 300.0,
                  "mfu": 0.303, "memory_bytes": 3 << 30} for i in range(9)]
        peers = {"runs": {"gpt2_124m bf16": {"pentatron": {"step_times_s": [0.2, 0.1, 0.3]},
                                             "eager": {"step_times_s": [], "failed": "x"}}}}
        command += ["--metrics", write("metrics.jsonl", "\n".join(map(json.dumps, steps)) + "\n"), "--peers",
                    write("peers.json", json.dumps(peers))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    with open(os.path.join(scratch, "out/gpu_report.json"), encoding="utf-8") as file:
        return done, json.load(file)


def main(root):
    with tempfile.TemporaryDirectory() as scratch:
        done, report = run(root, scratch, "run")
        assert done.returncode == 0, done.stderr
        assert report["tests"]["passed"] == ["layers_test.Cases/CudaAttention.cuda"], report["tests"]
        assert report["tests"]["skipped"] == ["trainer_test.CudaRanks", "trainer_test.CudaTraining.cuda"], report["tests"]
        assert report["training"] == {"steps": 4, "step_time_s": 0.1, "tokens_per_s": 81920, "tflops": 300.0, "mfu": 0.303,
                                      "memory_bytes": 3 << 30}, report["training"]
        for line in ("| device | NVIDIA H100 80GB HBM3 |", "| tests | 1 passed, 0 failed, 2 skipped |",
                     "| model TFLOP/s | 300.0, 30.3 % MFU |", "| peak memory of tensors | 3.00 GiB |",
                     "| gpt2_124m bf16 | pentatron | 0.2000 |", "| gpt2_124m bf16 | eager | failed |"):
            assert line in done.stdout, f"{line} is not in\n{done.stdout}"
        done, report = run(root, scratch, "fail", with_files=False)
        assert done.returncode == 1 and "training" not in report, report
        done, report = run(root, scratch, "notrun", with_files=False)
        assert done.returncode == 1, "no test has run"


if __name__ == "__main__":
    main(sys.argv[1])
