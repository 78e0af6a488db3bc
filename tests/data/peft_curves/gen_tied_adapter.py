"""An adapter that peft ties (ensure_weight_tying), with ranks and scales by pattern, and the logits of the model with it beside it, in fp64.
usage: FP64=1 gen_tied_adapter.py MODELS_DIR MODEL OUT SEED LORA_CONFIG_JSON; needs pure64.py in PYTHONPATH
OUT/adapter_config.json, adapter_model.safetensors (fp32) as peft writes them, neither matrix zero; logits.safetensors: input_ids [2, 12] and logits (fp64 rounded to fp32)."""
import sys, json, os
import pure64
import torch, transformers as tf, peft
from safetensors.torch import save_file
src, name, out, seed, conf = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5])
base = lambda dtype: tf.AutoModelForCausalLM.from_pretrained(f"{src}/{name}", dtype=dtype, attn_implementation="eager")
g = torch.Generator().manual_seed(seed); torch.manual_seed(seed + 1); os.makedirs(out, exist_ok=True)
m = peft.get_peft_model(base(torch.float32), peft.LoraConfig(task_type="CAUSAL_LM", ensure_weight_tying=True, **conf))
with torch.no_grad():
    for n, p in m.named_parameters():
        if "lora_B" in n or "lora_embedding_A" in n: p.normal_(std=0.1, generator=g)
m.peft_config["default"].base_model_name_or_path = name; m.save_pretrained(out, save_embedding_layers=False); os.remove(f"{out}/README.md")
m = peft.PeftModel.from_pretrained(base(torch.float64), out).eval(); words, output = m.get_input_embeddings(), m.base_model.model.lm_head
A, B = words.lora_embedding_A["default"], words.lora_embedding_B["default"]
assert torch.equal(output.lora_A["default"].weight, B.t()) and torch.equal(output.lora_B["default"].weight, A.t())
ids = torch.randint(0, A.shape[1], (2, 12), generator=g)
with torch.no_grad(): logits = m(input_ids=ids, use_cache=False).logits; plain = base(torch.float64)(input_ids=ids, use_cache=False).logits
assert logits.dtype == torch.float64
save_file({"input_ids": ids, "logits": logits.float().contiguous()}, f"{out}/logits.safetensors")
print("ranks", A.shape[0], words.r, output.r, "scales", words.scaling, output.scaling, "largest change", (logits - plain).abs().max().item())
