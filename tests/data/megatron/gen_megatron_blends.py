"""Samples that megatron-core's BlendedMegatronDatasetBuilder draws: real splits, blends, paths of their own for each part.

usage: gen_megatron_blends.py FOLDER_WITH_CORPORA OUT.json
GPTDatasetConfig without a blend replaces its split by 1,1,1, which is what expected.json was made with; here the corpora are
given as a blend, so the splits are the ones written.
"""
import json, os, sys
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
import torch
folder, out = sys.argv[1], sys.argv[2]
os.environ.setdefault("MASTER_ADDR", "127.0.0.1"); os.environ.setdefault("MASTER_PORT", "29513")
torch.distributed.init_process_group("gloo", rank=0, world_size=1)
class Tok:
    eod = 0; pad = -1; unique_identifiers = {"class": "t"}; vocab_size = 130000
a, b = f"{folder}/corpus_a", f"{folder}/corpus_b"
cases = [
    dict(path="a", split="80,15,5", sizes=[400, 50, 20], S=16, seed=77),
    dict(path="b", split="900,80,20", sizes=[150, 40, 7], S=24, seed=42),
    dict(path="a", split="90,5,5", sizes=[37, 9, 11], S=32, seed=5),
    dict(path="0.3 a 0.7 b", split="90,10", sizes=[200, 31, 0], S=16, seed=1),
    dict(path="2 b 1 a", split="70,20,10", sizes=[333, 77, 10], S=24, seed=9),
    dict(path="1 a", split="100", sizes=[60, 0, 0], S=32, seed=3),
    dict(path="a b", split="80,20", sizes=[100, 1000, 0], S=16, seed=8),
    dict(path="a b a", split="80,20", sizes=[100000, 1000, 0], S=16, seed=8),
    dict(paths=["a b", "0.5 a 0.5 b", "b"], sizes=[90, 40, 30], S=16, seed=11),
    dict(paths=["a", "0.5 b", None], sizes=[90, 40, 0], S=16, seed=12),
    dict(path="a", split="60,40", sizes=[None, None, None], S=16, seed=4),
    dict(path="a b", split="60,40", sizes=[None, None, None], S=16, seed=4),
]
def blend(text):
    if text is None: return None
    words = text.split()
    weights = [float(w) for w in words[::2]] if words[0][0].isdigit() else None
    names = words[1::2] if weights else words
    return [{"a": a, "b": b}[n] for n in names], weights
result = []
for c in cases:
    kind = dict(blend=blend(c["path"]), split=c["split"]) if "path" in c else dict(blend_per_split=[blend(p) for p in c["paths"]])
    config = GPTDatasetConfig(random_seed=c["seed"], sequence_length=c["S"], tokenizer=Tok(), reset_position_ids=False,
                              reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False, path_to_cache=None, **kind)
    try: sets = BlendedMegatronDatasetBuilder(GPTDataset, c["sizes"], lambda: True, config).build()
    except Exception as e: print("FAILED", c, repr(e)[:300]); continue
    parts = {}
    for name, ds in zip(("train", "validation", "test"), sets):
        if ds is None: continue
        n = len(ds)
        ids = sorted(set(list(range(min(8, n))) + [n // 3, n // 2, n - 1])) if n else []
        parts[name] = dict(count=n, tokens={i: [int(t) for t in ds[i]["tokens"]] + [int(ds[i]["labels"][-1])] for i in ids})
    result.append(dict(c, parts=parts)); print(c, {k: v["count"] for k, v in parts.items()})
json.dump(result, open(out, "w"), separators=(",", ":"))
