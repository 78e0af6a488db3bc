"""The tokenizers that pentatron writes, loaded by transformers' AutoTokenizer: the same ids and the same text back.

  hf_tokenizer.py PROGRAM     prints a line each; status 1 if one fails
"""
import json
import os
import subprocess
import sys
import tempfile

import transformers as tf

TEXTS = ["the loss falls", "  two  spaces\n\n\ttabs ", "caf\u00e9 \u20ac \U0001f600", "".join(map(chr, range(1, 0x250))), "x" * 300,
         "def f(x):\n    return x ** 2  # 1234567\r\n", "\u4f60\u597d\uff0c\u4e16\u754c"]
TINY = ["model.num_layers=1", "model.hidden_size=32", "model.num_attention_heads=2", "train.seq_length=16",
        "train.micro_batch_size=1", "train.global_batch_size=1", "train.train_iters=1", "train.num_threads=1", "kernels=order",
        "dataset.path=text.jsonl", "checkpoint.export_hf=true"]


def run(program, folder, *arguments, stdin=None):
    return subprocess.run([program, *arguments], cwd=folder, input=stdin, capture_output=True, text=True, check=True).stdout


def differences(program, folder, where):
    """Where AutoTokenizer and pentatron disagree."""
    tokenizer = tf.AutoTokenizer.from_pretrained(os.path.join(folder, where))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    ours = [json.loads(line)["ids"] for line in run(program, folder, "tokenize", "--tokenizer", where, stdin=lines).splitlines()]
    for text, ids in zip(TEXTS, ours, strict=True):
        theirs = tokenizer(text, add_special_tokens=False)["input_ids"]
        if theirs != ids:
            yield f"{text!r}: {theirs[:20]} and not {ids[:20]}"
        if tokenizer.decode(ids) != text:
            yield f"{text!r} comes back as {tokenizer.decode(ids)!r}"
    if tokenizer.eos_token != "<|endoftext|>":
        yield f"eos_token {tokenizer.eos_token!r}"


def main(program):
    failed = 0
    program = os.path.abspath(program)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "text.jsonl"), "w", encoding="utf-8") as file:
            for text in TEXTS * 20:
                file.write(json.dumps({"text": text}) + "\n")
        run(program, folder, "train", *TINY, "checkpoint.save=bytes", "logger.dir=log_bytes")
        run(program, folder, "tokenize", "--train-bpe", "400", "--input", "text.jsonl", "--output", "trained/")
        run(program, folder, "train", *TINY, "tokenizer.path=trained", "checkpoint.save=bpe", "logger.dir=log_bpe")
        for where in ["bytes/hf/step_00000001", "trained", "bpe/hf/step_00000001"]:
            found = list(differences(program, folder, where))
            failed += bool(found)
            print(f"{where}: {'equal' if not found else found[0]}", flush=True)
        for objective, text, ids in [("t5", "a<extra_id_1>b", [97, 259, 98, 256]), ("bert", "a[MASK]b", [258, 97, 260, 98, 259])]:
            run(program, folder, "train", *TINY, f"model.type={objective}", f"dataset.type={objective}", f"checkpoint.save={objective}",
                f"logger.dir=log_{objective}")
            where = f"{objective}/hf/step_00000001"
            found = list(differences(program, folder, where))
            theirs = tf.AutoTokenizer.from_pretrained(os.path.join(folder, where))(text)["input_ids"]
            if theirs != ids:
                found.append(f"{text!r}: {theirs} and not {ids}")
            failed += bool(found)
            print(f"{where}: {'equal' if not found else found[0]}", flush=True)
        tokenizer = tf.AutoTokenizer.from_pretrained(os.path.join(folder, "bytes/hf/step_00000001"))
        if tokenizer("a\u00e9", add_special_tokens=False)["input_ids"] != list("a\u00e9".encode()) or tokenizer.eos_token_id != 256:
            print("bytes: the ids are not the bytes")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
