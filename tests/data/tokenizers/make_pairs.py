"""Ids and types of pairs of texts, as Hugging Face tokenizers encodes them: pairs.json.
usage: pip install tokenizers==0.23.3; python make_pairs.py"""
import json
from pathlib import Path

from tokenizers import Tokenizer

folder = Path(__file__).parent
BERT = dict(type="BertProcessing", sep=["[SEP]", 3], cls=["[CLS]", 2])
ODD = dict(type="TemplateProcessing",
           single=[dict(SpecialToken=dict(id="[CLS]", type_id=2)), dict(Sequence=dict(id="A", type_id=0))],
           pair=[dict(Sequence=dict(id="B", type_id=1)), dict(SpecialToken=dict(id="[CLS]", type_id=2)),
                 dict(Sequence=dict(id="A", type_id=3))],
           special_tokens={"[CLS]": dict(id="[CLS]", ids=[2, 2], tokens=["[CLS]", "[CLS]"])})
CASES = [("bert", None), ("bert", BERT), ("bert", ODD), ("roberta", None), ("t5", None), ("llama2", None), ("llama3", None), ("gpt2", None)]
TEXTS = [("The cat sat.", "On a mat, it said."), ("one", "A much longer second text with many words, and some more of them"),
         ("A much longer first text with many words, and some more of them", "two"), ("", "alone"), ("alone", ""), ("Ünïcode täxt", "\u65e5\u672c"),
         ("No second text here, and not a short one at that.", None), ("", None)]

out = []
for name, post in CASES:
    j = json.loads((folder / f"{name}.json").read_text())
    if post: j["post_processor"] = post
    for length in (0, 6, 7, 12, 13):
        t = Tokenizer.from_str(json.dumps(j))
        if length: t.enable_truncation(length, strategy="longest_first")
        for a, b in TEXTS:
            e = t.encode(a, b) if b is not None else t.encode(a)
            out.append(dict(tokenizer=name, post=post, a=a, b=b, length=length, ids=e.ids, types=e.type_ids))
(folder / "pairs.json").write_text("[\n" + ",\n".join(json.dumps(o) for o in out) + "\n]\n")
