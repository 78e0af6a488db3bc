"""The models of the comparison: of ordinary size for a GPU, and tiny ones that prove the scripts on a CPU."""

SHAPES = {
    "gpt2_124m": {"kind": "gpt2", "layers": 12, "hidden": 768, "heads": 12, "groups": 12, "ffn": 3072, "vocab": 50257,
                  "sequence": 1024, "batch": 8},
    "llama_1b": {"kind": "llama", "layers": 16, "hidden": 2048, "heads": 32, "groups": 8, "ffn": 8192, "vocab": 32000,
                 "sequence": 4096, "batch": 4},
    "llama_3b": {"kind": "llama", "layers": 28, "hidden": 3072, "heads": 24, "groups": 8, "ffn": 8192, "vocab": 32000,
                 "sequence": 4096, "batch": 2},
    "gpt2_tiny": {"kind": "gpt2", "layers": 2, "hidden": 128, "heads": 4, "groups": 4, "ffn": 512, "vocab": 1024,
                  "sequence": 128, "batch": 2},
    "llama_tiny": {"kind": "llama", "layers": 2, "hidden": 128, "heads": 4, "groups": 2, "ffn": 384, "vocab": 1024,
                   "sequence": 128, "batch": 2},
}


def keys(name):
    """The same model and batch as settings of pentatron."""
    s = SHAPES[name]
    preset = {"gpt2": "gpt2_124m", "llama": "llama3_8b"}[s["kind"]]
    return [f"model.preset={preset}", f"model.num_layers={s['layers']}", f"model.hidden_size={s['hidden']}",
            f"model.num_attention_heads={s['heads']}", f"model.num_query_groups={s['groups']}", f"model.ffn_hidden_size={s['ffn']}",
            f"model.vocab_size={s['vocab']}", f"model.max_position_embeddings={s['sequence']}", "model.hidden_dropout=0",
            "model.attention_dropout=0", "dataset.type=mock", f"train.seq_length={s['sequence']}",
            f"train.micro_batch_size={s['batch']}", f"train.global_batch_size={s['batch']}", "seed=1", "optimizer.lr=1e-4",
            "optimizer.weight_decay=0.1", "optimizer.clip_grad=1.0"]
