"""Losses, largest attention logits and the clipped weights of 5 AdamW steps with qk-clip, from the models of ../hf_tiny; by PyTorch and transformers in fp64, with a plain loop over heads.
usage: gen_qk_clip.py MODELS_DIR OUT SEED NAME THRESHOLD ALPHA [NAME THRESHOLD ALPHA ...]
Import path: pure64.py of ../hf_tiny."""
import sys, json, os
import pure64
import torch, transformers as tf
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from safetensors.torch import save_file
src, out, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
hp = dict(lr=2e-2, betas=[0.9, 0.95], eps=1e-6, weight_decay=0.1, clip_grad=1.0, steps=5, batch=4, sequence=32)

def attend(module, q, k, v, attention_mask, scaling, dropout=0.0, **kwargs):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    s = q @ k.transpose(2, 3) * scaling
    s = s.masked_fill(torch.triu(torch.ones(s.shape[2:], dtype=torch.bool), 1), float("-inf"))
    module.logits = s.detach().amax((0, 2, 3)).tolist()
    return (s.softmax(-1) @ v).transpose(1, 2).contiguous(), None
ALL_ATTENTION_FUNCTIONS.register("recorded", attend)

def clip(a, config, threshold, alpha):
    """One attention module after the update; the query heads that were made smaller."""
    heads, clipped = config.num_attention_heads, 0
    keys = heads if hasattr(config, "kv_lora_rank") else config.num_key_value_heads
    for g in range(keys):
        group = range(g * heads // keys, (g + 1) * heads // keys)
        largest = max(a.logits[h] for h in group)
        if largest <= threshold: continue
        gamma = threshold / largest; clipped += len(group)
        def scale(linear, begin, end, factor):
            linear.weight[begin:end] *= factor
            if linear.bias is not None: linear.bias[begin:end] *= factor
        if hasattr(config, "kv_lora_rank"):
            p, r, e = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
            scale(a.q_b_proj, g * (p + r), g * (p + r) + p, gamma ** alpha)
            scale(a.q_b_proj, g * (p + r) + p, (g + 1) * (p + r), gamma)
            scale(a.kv_b_proj, g * (p + e), g * (p + e) + p, gamma ** (1 - alpha))
        else:
            d = a.head_dim
            for h in group: scale(a.q_proj, h * d, (h + 1) * d, gamma ** alpha)
            scale(a.k_proj, g * d, (g + 1) * d, gamma ** (1 - alpha))
    return clipped

for name, threshold, alpha in zip(sys.argv[4::3], map(float, sys.argv[5::3]), map(float, sys.argv[6::3])):
    g = torch.Generator().manual_seed(seed)
    config = json.load(open(f"{src}/{name}/config.json")); V = config["vocab_size"]
    tokens = torch.randint(0, V, (hp["steps"], hp["batch"], hp["sequence"] + 1), generator=g)
    save_file({"tokens": tokens}, f"{out}/tokens.safetensors")
    m = tf.AutoModelForCausalLM.from_pretrained(f"{src}/{name}", dtype=torch.float64, attn_implementation="recorded", experts_implementation="eager").train()
    P = dict(m.named_parameters())
    o = torch.optim.AdamW([dict(params=[p for p in P.values() if p.ndim >= 2], weight_decay=hp["weight_decay"]), dict(params=[p for p in P.values() if p.ndim < 2], weight_decay=0.0)], lr=hp["lr"], betas=hp["betas"], eps=hp["eps"])
    R = dict(loss=[], max_logit=[], clipped_heads=[])
    for x in tokens:
        logits = m(input_ids=x[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), x[:, 1:].reshape(-1))
        o.zero_grad(); loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), hp["clip_grad"])
        o.step()
        layers = [l.self_attn for l in m.model.layers]
        R["loss"].append(loss.item()); R["max_logit"].append(max(max(a.logits) for a in layers))
        with torch.no_grad(): R["clipped_heads"].append(sum(clip(a, m.config, threshold, alpha) for a in layers))
    weights = {n: p.detach().clone().contiguous() for n, p in P.items() if "self_attn" in n and any(k in n for k in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj"))}
    save_file(weights, f"{out}/{name}.safetensors")
    json.dump(dict(model=name, threshold=threshold, alpha=alpha, hyperparameters=hp, heads=len(layers) * m.config.num_attention_heads, **R), open(f"{out}/{name}.json", "w"), indent=1)
    print(name, R)
