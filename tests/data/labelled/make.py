"""What transformers makes of texts and pairs: expected.jsonl, from the texts in texts.jsonl, which it writes too.
usage: pip install transformers==5.23.0 tokenizers==0.23.3; python make.py"""
import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast

folder = Path(__file__).parent
LONG = "A much longer text with many words, and some more of them, until nothing is left to say about cats on mats"
TEXTS = [("The cat sat.", "On a mat, it said."), ("one", LONG), (LONG, "two"), (LONG, LONG[8:]), ("", "alone"), ("alone", ""),
         ("Ünïcode täxt, naïve café", "\u65e5\u672c\u8a9e and \U0001f600"), ("No second text here, and not a short one at that.", None), ("", None),
         (LONG, None), ("Two  spaces\tand a tab", "a\nline"), ("[SEP] in a text </s>", "<s> [CLS] [MASK]")]
SPECIAL = {"bert": dict(pad_token="[PAD]"), "roberta": dict(pad_token="<pad>")}

with open(folder / "texts.jsonl", "w") as out:
    for i, (text, pair) in enumerate(TEXTS):
        row = dict(text=text, label=i % 3)
        if pair is not None: row["text_pair"] = pair
        out.write(json.dumps(row) + "\n")
with open(folder / "expected.jsonl", "w") as out:
    for name, special in SPECIAL.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder.parent / "tokenizers" / f"{name}.json"), **special)
        for length in (8, 11, 24, 64):
            for text, pair in TEXTS:
                # As a batch: alone, an empty second text counts as none.
                e = tokenizer([text], None if pair is None else [pair], truncation=True, padding="max_length", max_length=length, return_token_type_ids=True)
                out.write(json.dumps(dict(tokenizer=name, length=length, ids=e["input_ids"][0], types=e["token_type_ids"][0],
                                          mask=e["attention_mask"][0])) + "\n")
