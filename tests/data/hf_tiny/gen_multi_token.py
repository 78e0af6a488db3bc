"""Writes tiny models with multi-token prediction (DeepSeek-AI 2024, arXiv:2412.19437, sec. 2.2) and what they give: the losses
and the gradients of  loss + factor / depths * (sum of the losses of the depths)  in fp64.

usage: gen_multi_token.py OUT SEED
deepseek_v3_mtp, deepseek_v3_mtp_tied: folders of DeepSeek's form, whose layers are those of transformers; the rest is written here.
gpt2_mtp: weights.safetensors under the program's own names, as no Hugging Face family has learned positions and such layers.
expected.safetensors: input_ids, labels [2,S]; starts [n], where documents begin in the first sample; loss, mtp_<d>_loss [1],
grad_norm.<parameter>, grad_head.<parameter> (the first 16 values).
"""
import json, os, sys
import pure64  # first: fp64 throughout
import torch, transformers as tf
from safetensors.torch import load_file, save_file
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

FACTOR = 0.3


class Depth(torch.nn.Module):
    def __init__(self, layer, norm, hidden):
        super().__init__()
        self.layer, self.norm, self.enorm, self.hnorm = layer, norm(), norm(), norm()
        self.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)


def mask_of(document):
    """Causal, within documents. [B, 1, S, S]"""
    s = document.shape[1]
    seen = (document[:, :, None] == document[:, None, :]) & torch.ones(s, s).tril().bool()
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)[:, None]


def losses(ids, labels, document, positions, embed, trunk, final_norm, head, depths, run):
    """Of the model and of each depth, one position after another where it is about what may be seen."""
    b, s = ids.shape
    V = head.shape[0]
    mask = mask_of(document)
    h = final_norm(trunk(embed(ids, positions), mask, positions))
    ce = lambda x, y: torch.nn.functional.cross_entropy((x @ head.T).reshape(-1, V), y.reshape(-1))
    out = [ce(h, labels)]
    for d, depth in enumerate(depths, 1):
        ahead, places, target = torch.zeros_like(ids), torch.zeros_like(ids), torch.full_like(labels, -100)
        for r in range(b):
            for i in range(s):
                if i + d < s and document[r, i] == document[r, i + d]:
                    ahead[r, i], places[r, i], target[r, i] = ids[r, i + d], positions[r, i + d], labels[r, i + d]
        x = depth.eh_proj(torch.cat([depth.enorm(embed(ahead, places)), depth.hnorm(h)], -1))
        h = depth.norm(run(depth.layer, x, mask, positions))
        out.append(ce(h, target))
    return out


def batch(V, S, g, packed):
    ids = torch.randint(0, V, (2, S), generator=g)
    labels = torch.cat([ids[:, 1:], torch.randint(0, V, (2, 1), generator=g)], 1)
    labels[torch.rand(labels.shape, generator=g) < 0.15] = -100
    starts = [0, 5, 6, 14] if packed else [0]  # a document of one token
    document = torch.zeros_like(ids)
    for at in starts[1:]: document[0, at:] += 1
    positions = torch.arange(S).repeat(2, 1)
    for at in starts[1:]: positions[0, at:] = torch.arange(S - at)
    return ids, labels, torch.tensor(starts), document, positions


def perturb(named, g):
    with torch.no_grad():
        for n, p in named:
            if p.ndim == 1: p.add_(0.1 * torch.randn(p.shape, generator=g, dtype=p.dtype))
            p.copy_(p.float().double())


def write(d, exp, parts, params):
    parts = [x.reshape(1) for x in parts]
    (parts[0] + FACTOR / (len(parts) - 1) * sum(parts[1:])).backward()
    exp["loss"] = parts[0]
    for i, x in enumerate(parts[1:], 1): exp[f"mtp_{i}_loss"] = x
    for n, x in params.items():
        gr = torch.zeros_like(x) if x.grad is None else x.grad
        gr = gr.T if n in exp.get("_transposed", ()) else gr
        exp["grad_norm." + n] = gr.norm().reshape(1)
        exp["grad_head." + n] = gr.reshape(-1)[:16]
    save_file({k: v.detach().contiguous().clone() for k, v in exp.items() if not k.startswith("_")}, os.path.join(d, "expected.safetensors"))
    print(os.path.basename(d), [f"{x.item():.12f}" for x in parts])


def deepseek(out, name, seed, depths, packed, **kw):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 1)
    c = tf.DeepseekV3Config(**dict(dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=67, max_position_embeddings=64, intermediate_size=40, moe_intermediate_size=12, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=3, topk_group=2, first_k_dense_replace=1, kv_lora_rank=10, q_lora_rank=14, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=10, routed_scaling_factor=1.5, norm_topk_prob=True, initializer_range=0.15, pad_token_id=None, num_nextn_predict_layers=depths, attn_implementation="eager", experts_implementation="eager"), **kw))
    m = tf.DeepseekV3ForCausalLM(c).double().eval()
    last = c.num_hidden_layers - 1
    extra = torch.nn.ModuleList(Depth(DeepseekV3DecoderLayer(c, last), lambda: DeepseekV3RMSNorm(c.hidden_size, c.rms_norm_eps), c.hidden_size) for _ in range(depths)).double()
    with torch.no_grad():
        for p in extra.parameters():
            if p.ndim > 1: p.copy_(0.15 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    perturb([*m.named_parameters(), *extra.named_parameters()], g)
    with torch.no_grad():
        for n, b in [*m.named_buffers(), *extra.named_buffers()]:
            if n.endswith("e_score_correction_bias"): b.copy_((0.2 * torch.randn(b.shape, generator=g)).double())
    d = os.path.join(out, name)
    m.float().save_pretrained(d, safe_serialization=True)
    m.double()
    m.model.rotary_emb = type(m.model.rotary_emb)(c)  # not by way of fp32
    tensors = load_file(os.path.join(d, "model.safetensors"))
    params = dict(m.named_parameters())
    head = params.get("lm_head.weight", m.model.embed_tokens.weight)
    for i, depth in enumerate(extra):
        pre = f"model.layers.{c.num_hidden_layers + i}."
        for n, p in depth.named_parameters():
            n = n.removeprefix("layer.") if n.startswith("layer.") else {"norm.weight": "shared_head.norm.weight"}.get(n, n)
            params[pre + n] = p
            if n == "mlp.experts.gate_up_proj":
                for e in range(p.shape[0]):
                    gate, up = p[e].chunk(2, 0)
                    tensors[f"{pre}mlp.experts.{e}.gate_proj.weight"], tensors[f"{pre}mlp.experts.{e}.up_proj.weight"] = gate, up
            elif n == "mlp.experts.down_proj":
                for e in range(p.shape[0]): tensors[f"{pre}mlp.experts.{e}.down_proj.weight"] = p[e]
            else: tensors[pre + n] = p
        for n, b in depth.named_buffers():
            if n.endswith("e_score_correction_bias"): tensors[pre + n.removeprefix("layer.")] = b
        tensors[pre + "embed_tokens.weight"], tensors[pre + "shared_head.head.weight"] = m.model.embed_tokens.weight, head
    save_file({k: v.detach().float().contiguous().clone() for k, v in tensors.items()}, os.path.join(d, "model.safetensors"), {"format": "pt"})
    ids, labels, starts, document, positions = batch(c.vocab_size, 20, g, packed)
    run = lambda layer, x, mask, pos: layer(x, attention_mask=mask, position_ids=pos, position_embeddings=m.model.rotary_emb(x, pos))
    def trunk(x, mask, pos):
        for layer in m.model.layers: x = run(layer, x, mask, pos)
        return x
    parts = losses(ids, labels, document, positions, lambda i, p: m.model.embed_tokens(i), trunk, m.model.norm, head, extra, run)
    write(d, {"input_ids": ids, "labels": labels, "starts": starts}, parts, params)


def gpt2(out, seed, depths):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 1)
    c = tf.GPT2Config(n_layer=2, n_embd=24, n_head=3, vocab_size=67, n_positions=20, initializer_range=0.15, resid_pdrop=0., embd_pdrop=0., attn_pdrop=0., attn_implementation="eager")
    m = tf.GPT2LMHeadModel(c).double().eval()
    extra = torch.nn.ModuleList(Depth(GPT2Block(c, layer_idx=1), lambda: torch.nn.LayerNorm(24, eps=c.layer_norm_epsilon), 24) for _ in range(depths)).double().eval()
    with torch.no_grad():
        for p in extra.parameters():
            if p.ndim > 1: p.copy_(0.15 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    perturb([*m.named_parameters(), *extra.named_parameters()], g)
    own, transposed = {"embedding.word.weight": m.transformer.wte.weight, "embedding.position.weight": m.transformer.wpe.weight}, set()
    def name(prefix, module):
        for n, p in module.named_parameters(): own[f"{prefix}.{n}"] = p
    def name_layer(prefix, block):
        for ours, theirs in {"attention_norm": block.ln_1, "attention.qkv": block.attn.c_attn, "attention.proj": block.attn.c_proj, "mlp_norm": block.ln_2, "mlp.fc1": block.mlp.c_fc, "mlp.fc2": block.mlp.c_proj}.items():
            name(f"{prefix}.{ours}", theirs)
            if "norm" not in ours: transposed.add(f"{prefix}.{ours}.weight")
    for i, block in enumerate(m.transformer.h): name_layer(f"layers.{i}", block)
    name("final_norm", m.transformer.ln_f)
    for i, depth in enumerate(extra):
        for part in ("enorm", "hnorm", "eh_proj"): name(f"mtp.{i}.{part}", getattr(depth, part))
        name_layer(f"mtp.{i}.layer", depth.layer)
        name(f"mtp.{i}.final_norm", depth.norm)
    d = os.path.join(out, "gpt2_mtp")
    os.makedirs(d, exist_ok=True)
    save_file({k: (v.T if k in transposed else v).detach().float().contiguous().clone() for k, v in own.items()}, os.path.join(d, "weights.safetensors"))
    ids, labels, starts, document, positions = batch(c.vocab_size, 20, g, True)
    run = lambda block, x, mask, pos: (lambda y: y[0] if isinstance(y, tuple) else y)(block(x, attention_mask=mask))
    def trunk(x, mask, pos):
        for block in m.transformer.h: x = run(block, x, mask, pos)
        return x
    parts = losses(ids, labels, document, positions, lambda i, p: m.transformer.wte(i) + m.transformer.wpe(p), trunk, m.transformer.ln_f, m.transformer.wte.weight, extra, run)
    write(d, {"input_ids": ids, "labels": labels, "starts": starts, "_transposed": transposed}, parts, own)


if __name__ == "__main__":
    out, seed = sys.argv[1], int(sys.argv[2])
    deepseek(out, "deepseek_v3_mtp", seed, 2, True)
    deepseek(out, "deepseek_v3_mtp_tied", seed + 10, 1, False, tie_word_embeddings=True, first_k_dense_replace=2, q_lora_rank=None)
    gpt2(out, seed + 20, 2)
