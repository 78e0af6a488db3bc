"""Every CUDA file of the repository compiles for one architecture, on any machine with nvcc: on PATH, in CUDA_HOME or
/usr/local/cuda, or from PyPI in .deps/cuda. No GPU and no torch headers are needed. Exits with 77 if there is no nvcc."""
import concurrent.futures
import glob
import os
import shutil
import subprocess
import sys
import tempfile

import files


def find_nvcc(root):
    places = [shutil.which("nvcc")]
    places += [os.path.join(home, "bin", "nvcc") for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    places += sorted(glob.glob(os.path.join(root, ".deps/cuda/lib/python3*/site-packages/nvidia/cu*/bin/nvcc")))
    return next((p for p in places if p and os.access(p, os.X_OK)), None)


def compile_one(nvcc, root, path, architecture, out):
    """What nvcc says about a file that it cannot compile; empty if it can."""
    command = [nvcc, "-c", "-std=c++20", f"-arch=sm_{architecture}", "-Werror", "all-warnings", "-I", root,
               os.path.join(root, path), "-o", os.path.join(out, path.replace("/", "_") + ".o")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else run.stdout + run.stderr + f"nvcc ended with {run.returncode}"


def main(root, architecture="90"):
    nvcc = find_nvcc(root)
    if nvcc is None:
        print("skipped: no nvcc\n  try: scripts/test.sh, which installs it into .deps/cuda")
        return 77
    paths = [p for p in files.listed(root) if p.endswith(".cu")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool, tempfile.TemporaryDirectory() as out:
        outputs = list(pool.map(lambda path: compile_one(nvcc, root, path, architecture, out), paths))
    failed = [path for path, output in zip(paths, outputs) if output]
    for path, output in zip(paths, outputs):
        if output:
            print(f"{path}:\n{output[:2000]}")
    print(f"{len(paths)} CUDA files compiled for sm_{architecture} with {nvcc}, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
