"""Writes k_quants.safetensors: floats ("x", [blocks, 256]) beside the bytes that ggml's reference makes of them ("Q4_K", "Q6_K").
Made with https://github.com/ggml-org/ggml at d99724f2 (MIT license): its quantize_row_q4_K_ref and quantize_row_q6_K_ref.

    git clone https://github.com/ggml-org/ggml && pip install numpy safetensors && python make_k_quants.py ggml
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import save_file

random = np.random.default_rng(11)
mixed = random.normal(0, 1, (2, 256))
mixed[:, :64] = 0
mixed[:, 64:96] = 3
mixed[:, 96:112] = 1e-20
rows = [
    random.normal(0, 0.02, (6, 256)),
    random.normal(0, 1, (3, 256)) * 10.0 ** random.integers(-9, 4, (3, 256)),
    np.zeros((1, 256)),
    np.full((1, 256), 0.5),
    -np.abs(random.normal(0, 1, (1, 256))),
    np.abs(random.normal(0, 1, (1, 256))) + 1,
    random.standard_t(1.5, (3, 256)),
    random.normal(0, 1e-18, (1, 256)),
    mixed,
    random.integers(-15, 16, (2, 256)) / 2.0,
]
x = np.concatenate(rows).astype(np.float32)

MAIN = """
#include "ggml-quants.c"
#include <stdio.h>
int main(int count, char** names) {
  static float x[1 << 16];
  static char out[1 << 18];
  const size_t n = fread(x, 4, 1 << 16, stdin);
  quantize_row_q4_K_ref(x, (block_q4_K*)out, n);
  fwrite(out, 144, n / 256, stdout);
  quantize_row_q6_K_ref(x, (block_q6_K*)out, n);
  fwrite(out, 210, n / 256, stdout);
}
"""

with tempfile.TemporaryDirectory() as folder:
    ggml = pathlib.Path(sys.argv[1])
    stubs = pathlib.Path(folder)
    (stubs / "ggml-cpu").mkdir()
    for name, text in (("ggml-cpu.h", ""), ("ggml-cpu/ggml-cpu-impl.h", ""), ("main.c", MAIN)):
        (stubs / name).write_text(text)
    flags = ["-O1", "-ffp-contract=off", "-ffunction-sections", "-fdata-sections", "-w", "-Wl,--gc-sections"]
    paths = [f"-I{stubs}", f"-I{ggml}/src", f"-I{ggml}/include", stubs / "main.c", "-o", stubs / "main", "-lm"]
    subprocess.run(["gcc", *flags, *paths], check=True)
    made = subprocess.run([stubs / "main"], input=x.tobytes(), stdout=subprocess.PIPE, check=True).stdout

made = np.frombuffer(made, np.uint8)
q4_k, q6_k = np.split(made, [144 * len(x)])
tensors = {"x": x, "Q4_K": q4_k.reshape(len(x), 144), "Q6_K": q6_k.reshape(len(x), 210)}
save_file(tensors, "k_quants.safetensors")
