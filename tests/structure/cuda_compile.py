"""Every CUDA file of the repository compiles for one architecture, and every C++ file that differs in a CUDA build passes the
compiler, on any machine with nvcc: on PATH, in CUDA_HOME or /usr/local/cuda, or from PyPI in .deps/cuda. No GPU is needed.
Exits with 77 if there is no nvcc. cuda_compile.py ROOT [TORCH_INCLUDE CXX [ARCHITECTURE]]: without torch's headers only the
CUDA files are compiled."""
import concurrent.futures
import functools
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
    # Every pass, but without optimising: half of the time. scripts/bundle.sh compiles what people run.
    command = [nvcc, "-c", "-O0", "-Xcicc", "-O0", "-Xptxas", "-O0", "-std=c++20", f"-arch=sm_{architecture}", "-Werror",
               "all-warnings", "-I", root, os.path.join(root, path), "-o", os.path.join(out, path.replace("/", "_") + ".o")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else run.stdout + run.stderr + f"nvcc ended with {run.returncode}"


def find_header(name, nvcc, root):
    """The folder that holds a header of CUDA or NCCL, or None."""
    site = os.path.join(root, ".deps/*/lib/python3*/site-packages/nvidia")
    places = [os.path.join(os.path.dirname(os.path.realpath(nvcc)), "..", "include")]
    places += [os.path.join(home, "include") for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    places += sorted(glob.glob(os.path.join(site, "cu*/include")) + glob.glob(os.path.join(site, "nccl/include")))
    return next((p for p in places + ["/usr/local/include", "/usr/include"] if os.path.exists(os.path.join(p, name))), None)


def host_files(root):
    return [p for p in files.sources(root) if p.endswith(".cpp") and
            (p.endswith("_cuda.cpp") or "PENTATRON_CUDA" in files.read(root, p))]


def check_host(cxx, torch, folders, root, text):
    """What the C++ compiler says about a source in a CUDA build; empty if it takes it."""
    command = [cxx, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",
               "-Wno-missing-field-initializers", "-fopenmp", "-DPENTATRON_CUDA=1", "-DUSE_DISTRIBUTED",
               "-DAT_PER_OPERATOR_HEADERS", "-DFMT_HEADER_ONLY=1", "-I", root, "-isystem", torch, "-isystem",
               os.path.join(torch, "torch/csrc/api/include")]
    for folder in folders:
        command += ["-isystem", folder]
    run = subprocess.run(command + ["-x", "c++", "-"], input=text, capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else run.stdout + run.stderr + f"{cxx} ended with {run.returncode}"


def check_hosts(check, root, hosts):
    """check_host() of each file: of those that the build compiles together as one, because torch's headers take most of the time,
    or one by one to tell whose fault it is."""
    texts = {path: f'#include "{os.path.join(root, path)}"\n' for path in hosts}
    joined = [path for path in hosts if not path.startswith("pentatron/kernels/")]
    if joined and not check("".join(texts[path] for path in joined)):
        texts.update(dict.fromkeys(joined, ""))
    return [check(text) if text else "" for text in texts.values()]


def main(root, torch=None, cxx=None, architecture="90"):
    nvcc = find_nvcc(root)
    if nvcc is None:
        print("skipped: no nvcc\n  try: scripts/test.sh, which installs it into .deps/cuda")
        return 77
    paths = [p for p in files.listed(root) if p.endswith(".cu")]
    hosts = host_files(root) if torch else []
    folders = [find_header(name, nvcc, root) for name in ("cuda_runtime_api.h", "nccl.h")]
    if torch and folders[1] is None:
        print("no nccl.h, which the communication of GPUs includes\n  try: scripts/test.sh, which installs it into .deps/cuda")
        return 1
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool, tempfile.TemporaryDirectory() as out:
        jobs = [pool.submit(compile_one, nvcc, root, path, architecture, out) for path in paths]
        check = functools.partial(check_host, cxx, torch, [f for f in folders if f], root)
        of_hosts = pool.submit(check_hosts, check, root, hosts)
        outputs = [job.result() for job in jobs] + of_hosts.result()
    failed = [path for path, output in zip(paths + hosts, outputs) if output]
    for path, output in zip(paths + hosts, outputs):
        if output:
            print(f"{path}:\n{output[:2000]}")
    print(f"{len(paths)} CUDA files compiled for sm_{architecture} with {nvcc}, {len(hosts)} C++ files checked, "
          f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
