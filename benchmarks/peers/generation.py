"""Times greedy generation with one model: pentatron beside Hugging Face transformers.

  generation.py --pentatron build/release/pentatron [--model DIR] [--dtype bf16|fp32] [--threads 2] [--rounds 3]

DIR is a Hugging Face folder; default: a Llama of the shape of SmolLM2-135M with random weights. Both get the same token
numbers, write the same number of tokens with a KV cache, and neither stops early. Each round times them one after the other;
the table shows the fastest round, reading of the prompt left out, and where the texts part (rounding decides between two
tokens of nearly the same logit).
"""
import argparse
import json
import os
import re
import subprocess
import tempfile
import time

import torch
import transformers

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def make_model(folder, dtype):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=100000.0, tie_word_embeddings=True,
        initializer_range=0.1)
    transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(folder)


class Ticks(transformers.generation.streamers.BaseStreamer):
    """When each token came."""

    def __init__(self):
        self.times = []

    def put(self, value):
        self.times.append(time.perf_counter())

    def end(self):
        pass


def run_transformers(model, prompt, count):
    ticks = Ticks()
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count,
                         streamer=ticks, pad_token_id=0)
    # The first call brings the prompt, the second the first token.
    return out[0, len(prompt):].tolist(), (count - 1) / (ticks.times[-1] - ticks.times[1])


def run_pentatron(program, folder, prompt, count, dtype, threads):
    done = subprocess.run(
        [program, "generate", "hf:" + folder, "--tokens", ",".join(map(str, prompt)), "--max-new-tokens", str(count),
         "--temperature", "0", "--json", "--ignore-eos", f"dtype={dtype}", f"train.num_threads={threads}"],
        capture_output=True, text=True, check=True)
    speed = float(re.search(r"([0-9.]+) tokens/s", done.stderr).group(1))
    return json.loads(done.stdout)["ids"], speed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pentatron", required=True)
    parser.add_argument("--model")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = DTYPES[arguments.dtype]
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.model or os.path.join(scratch, "model")
        if not arguments.model:
            make_model(folder, dtype)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        model.generation_config.eos_token_id = None
        vocabulary = model.config.vocab_size
        prompt = [(7919 * i + 13) % min(vocabulary, 40000) for i in range(arguments.prompt_tokens)]
        best = {}
        texts = {}
        for _ in range(arguments.rounds):
            with torch.no_grad():
                texts["transformers"], speed = run_transformers(model, prompt, arguments.new_tokens)
            best["transformers"] = max(speed, best.get("transformers", 0))
            texts["pentatron"], speed = run_pentatron(arguments.pentatron, folder, prompt, arguments.new_tokens,
                                                      arguments.dtype, arguments.threads)
            best["pentatron"] = max(speed, best.get("pentatron", 0))
    same = next((i for i, (a, b) in enumerate(zip(texts["transformers"], texts["pentatron"])) if a != b), arguments.new_tokens)
    print(f"{arguments.dtype}, {arguments.threads} threads, {arguments.new_tokens} tokens behind {arguments.prompt_tokens}")
    for name, speed in best.items():
        print(f"{name:<14}{speed:8.1f} tokens/s")
    print(f"ratio         {best['pentatron'] / best['transformers']:8.2f}")
    print(f"the first {same} of {arguments.new_tokens} tokens are the same")


if __name__ == "__main__":
    main()
