#!/usr/bin/env python3
"""Writes sentences of the novels with the title each is from, for dataset.type=classification.

  python3 examples/novels.py     writes novels/train.jsonl and novels/valid.jsonl (every tenth sentence)
"""
import json
import pathlib
import re

NOVELS = pathlib.Path(__file__).resolve().parent.parent / "corpus" / "austen"


def main():
    out = pathlib.Path("novels")
    out.mkdir(exist_ok=True)
    with open(out / "train.jsonl", "w") as train, open(out / "valid.jsonl", "w") as valid:
        for novel in sorted(NOVELS.glob("*.txt")):
            text = " ".join(novel.read_text(encoding="utf-8").split())
            sentences = [s for s in re.split(r"(?<=[.!?]) (?=[A-Z])", text) if 60 <= len(s.encode()) <= 120]
            for number, sentence in enumerate(sentences):
                line = json.dumps({"text": sentence, "label": novel.stem}, ensure_ascii=False)
                print(line, file=valid if number % 10 == 0 else train)


if __name__ == "__main__":
    main()
