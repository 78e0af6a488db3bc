"""Times tokenizing with one byte-level BPE of 32,000 tokens: pentatron preprocess beside tiktoken and Hugging Face tokenizers.

  tokenizing.py --pentatron build/release/pentatron [--rounds 3] [--megabytes 32] [--out FILE.json] [FILES...]

The text is FILES (default: the corpus of the repository and the Python sources of this interpreter), no part of it twice. The
vocabulary is learned by `pentatron tokenize --train-bpe` and given to each: pentatron and tokenizers read its tokenizer.json,
tiktoken gets the same ranks and pattern. All ids must agree, or the run fails. The peers' figure is encoding alone, of texts
in memory; pentatron's is the whole of `preprocess`: reading JSON lines, encoding, writing .bin and .idx. Each round times them
one after the other, with one and with two threads; the table shows the fastest round.
"""
import argparse
import array
import json
import os
import subprocess
import sys
import tempfile
import time

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SIZE = 32000
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def texts(files, limit):
    """Documents of at most 100 kB, up to `limit` bytes together."""
    if not files:
        files = [os.path.join(ROOT, "corpus", "austen")] + [p for p in sys.path if p.endswith("python3.%d" % sys.version_info[1])]
    found, total = [], 0
    for path in files:
        names = [path] if os.path.isfile(path) else sorted(
            os.path.join(folder, name) for folder, _, all_names in os.walk(path) for name in all_names
            if name.endswith((".txt", ".py", ".md", ".rst")))
        for name in names:
            try:
                text = open(name, encoding="utf-8").read()
            except (UnicodeDecodeError, OSError):
                continue
            for begin in range(0, len(text), 100_000):
                if total >= limit:
                    return found
                found.append(text[begin:begin + 100_000])
                total += len(found[-1].encode())
    return found


def bytes_of_unicode():
    """GPT-2's spelling of bytes as letters, the other way round."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters, more = {chr(b): b for b in kept}, 256
    for b in range(256):
        if b not in kept:
            letters[chr(more)] = b
            more += 1
    return letters


def tiktoken_of(path):
    import tiktoken
    letters = bytes_of_unicode()
    model = json.load(open(path, encoding="utf-8"))
    special = {one["content"] for one in model.get("added_tokens", [])}
    ranks = {bytes(letters[c] for c in token): i for token, i in model["model"]["vocab"].items() if token not in special}
    return tiktoken.Encoding("learned", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})


def encoded(call):
    """Seconds of the call, and its ids in a row."""
    begin = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - begin
    return seconds, array.array("H", [i for one in result for i in getattr(one, "ids", one)])


def preprocess(program, tokenizer, corpus, folder, workers):
    prefix = os.path.join(folder, f"out{workers}")
    begin = time.perf_counter()
    subprocess.run([program, "preprocess", "--input", corpus, "--tokenizer", tokenizer, "--output", prefix, "--workers",
                    str(workers)], check=True, capture_output=True)
    seconds = time.perf_counter() - begin
    ids = array.array("H")
    with open(prefix + "_text_document.bin", "rb") as file:
        ids.frombytes(file.read())
    for suffix in ("bin", "idx"):
        os.remove(f"{prefix}_text_document.{suffix}")
    return seconds, ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pentatron", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--out")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    documents = texts(args.files, args.megabytes * 1_000_000)
    size = sum(len(text.encode()) for text in documents)
    with tempfile.TemporaryDirectory() as folder:
        corpus, tokenizer = os.path.join(folder, "corpus.jsonl"), os.path.join(folder, "tokenizer.json")
        with open(corpus, "w", encoding="utf-8") as file:
            for text in documents:
                file.write(json.dumps({"text": text}) + "\n")
        with open(corpus, "rb") as file:
            subprocess.run([args.pentatron, "tokenize", "--train-bpe", str(SIZE), "--pattern", GPT2_PATTERN, "--output",
                            tokenizer], stdin=file, check=True)
        os.environ["RAYON_NUM_THREADS"] = "2"  # its pool is made once a process
        import tokenizers
        tik, hf = tiktoken_of(tokenizer), tokenizers.Tokenizer.from_file(tokenizer)
        contenders = {
            ("pentatron preprocess", 1): lambda: preprocess(args.pentatron, tokenizer, corpus, folder, 1),
            ("tiktoken", 1): lambda: encoded(lambda: tik.encode_ordinary_batch(documents, num_threads=1)),
            ("pentatron preprocess", 2): lambda: preprocess(args.pentatron, tokenizer, corpus, folder, 2),
            ("tiktoken", 2): lambda: encoded(lambda: tik.encode_ordinary_batch(documents, num_threads=2)),
            ("tokenizers", 2): lambda: encoded(lambda: hf.encode_batch_fast(documents, add_special_tokens=False)),
        }
        seconds, expected = {}, None
        for _ in range(args.rounds):
            for key, call in contenders.items():
                took, ids = call()
                expected = expected or ids
                if ids != expected:
                    sys.exit(f"{key[0]} gives other ids")
                seconds[key] = min(seconds.get(key, took), took)
    print(f"{size / 1e6:.1f} MB, {len(documents)} documents, {len(expected)} tokens, all ids equal\n")
    print("| | threads | MB/s | pentatron is faster by |\n|---|---|---|---|")
    for (name, threads), took in sorted(seconds.items(), key=lambda item: (item[0][1], item[1])):
        ours = seconds[("pentatron preprocess", threads)]
        print(f"| {name} | {threads} | {size / 1e6 / took:.1f} | {took / ours:.1f}x |")
    if args.out:
        json.dump({f"{name}, {threads}": took for (name, threads), took in seconds.items()}, open(args.out, "w"))


if __name__ == "__main__":
    main()
