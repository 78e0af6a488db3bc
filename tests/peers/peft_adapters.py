"""Adapters that pentatron trained, loaded by the peft package; and adapters of that package, loaded by pentatron: the same logits.

  peft_adapters.py PROGRAM [NAME ...]     no NAME: all; prints a line each; status 1 if one fails
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hf_models  # first: it makes transformers' fp64 models fp64 throughout
import peft
import torch
from hf_export import SPLIT, model_of_export, pentatron, run_checks, write_data
from safetensors.torch import load_file

BOUND = 2e-6  # of fp64 logits that pentatron writes in fp32, relative to the largest; adapters are stored in fp32
STEPS = ["train.train_iters=4", "train.seq_length=16", "train.micro_batch_size=2", "train.global_batch_size=8", "optimizer.lr=0.05",
         "device=cpu", "dtype=fp64", "train.num_threads=1", "checkpoint.export_hf=true"]
LORA, DORA = "peft.type=lora", "peft.type=dora"

BASES = {"t5_of_bytes": hf_models.t5(vocab_size=400), "bert_of_bytes": hf_models.bert("SequenceClassification", vocab_size=300)}

# what hf_models.py makes, keys of pentatron, ranks
TRAINED = {
    "llama": ("llama_mqa", [LORA], 1),
    "llama_rslora_patterns": ("llama_mqa", [LORA, "peft.use_rslora=true", "peft.rank_pattern=[\"layers.0.*.q_proj=3\"]",
                                        "peft.alpha_pattern=[\"down_proj=5.5\"]"], 1),
    "llama_dora": ("llama_mqa", [DORA, "peft.target_modules=[q_proj,down_proj,lm_head]"], 1),
    "llama_vocabulary": ("llama_mqa", [LORA, "peft.target_modules=[embed_tokens,lm_head,v_proj]"], 1),
    "llama_modules": ("llama_mqa", [LORA, "peft.target_modules=[o_proj]", "peft.modules_to_save=[lm_head,model.norm]"], 1),
    "llama_split": ("llama_mqa", [LORA, *SPLIT, "ddp.zero_stage=2"], 8),
    "llama_dora_split": ("llama_mqa", [DORA, *SPLIT], 8),
    "gpt2": ("gpt2_inner", [LORA], 1),
    "gpt2_dora": ("gpt2_inner", [DORA, "peft.target_modules=[c_attn,c_fc]"], 1),
    "phi3_fused": ("phi3", [LORA], 1),
    "mixtral_experts": ("mixtral", [LORA, "peft.target_modules=[\"experts.*\",q_proj,gate]"], 1),
    "mixtral_experts_split": ("mixtral", [LORA, "peft.target_modules=[\"experts.*\",all-linear]", *SPLIT,
                                          "parallel.expert_model_parallel_size=2"], 8),
    "mixtral_router_pattern": ("mixtral", [LORA, "peft.target_modules=[\"experts.*\",router]", "peft.rank_pattern=[\"router=3\"]",
                                           "peft.alpha_pattern=[\"experts.down_proj=9\"]"], 1),
    "deepseek_latents": ("deepseek_queries", [LORA], 1),
    "deepseek_dropout": ("deepseek", [LORA, "peft.target_modules=[down_proj,gate_proj,q_b_proj]", "peft.dropout=0.1",
                                      "peft.rank_pattern=[\"layers.0.*.down_proj=3\"]"], 1),
    "qwen3_moe_dense_layer": ("qwen3_moe_dense_layer", [LORA, "peft.target_modules=[all-linear,router]"], 1),
    "qwen2_moe": ("qwen2_moe", [LORA], 1),
    "t5": ("t5_of_bytes", [LORA, "dataset.type=t5"], 1),
    "bert_classes": ("bert_of_bytes", [LORA, "model.head=classification", "dataset.type=classification"], 1),
}
# what hf_models.py makes, fields of peft.LoraConfig, options of save_pretrained()
MADE = {
    "made_llama": ("llama_mqa", dict(target_modules="all-linear"), {}),
    "made_rslora": ("llama_mqa", dict(target_modules=["q_proj", "up_proj"], use_rslora=True, rank_pattern={"q_proj": 3, "fc1": 7},
                                  alpha_pattern={".*[.]1[.].*up_proj": 9}), {}),
    "made_dora": ("llama_mqa", dict(target_modules=["v_proj", "down_proj"], use_dora=True), {}),
    "made_rules": ("llama_mqa", dict(target_modules=r".*\.(q|k)_proj", layers_to_transform=None, exclude_modules=r".*layers\.0\..*"), {}),
    "made_layers": ("llama_mqa", dict(target_modules=["q_proj"], layers_to_transform=[1]), {}),
    "made_vocabulary": ("llama_mqa", dict(target_modules=["embed_tokens", "lm_head", "q_proj"]), {}),
    "made_with_copies": ("llama_mqa", dict(target_modules=["q_proj"]), dict(save_embedding_layers=True)),
    "made_modules": ("llama_mqa", dict(target_modules=["q_proj"], modules_to_save=["lm_head", "norm"]), {}),
    "made_gpt2": ("gpt2_inner", dict(target_modules=["c_attn", "c_proj"], fan_in_fan_out=True), {}),
    "made_experts": ("mixtral", dict(target_modules=["o_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]), {}),
    "made_t5": ("t5", dict(target_modules=["q", "wi", "wo"]), {}),
    "made_mixtral": ("mixtral", dict(target_modules="all-linear"), {}),
    "made_deepseek": ("deepseek_queries", dict(target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"]), {}),
    "made_parameters": ("deepseek_queries", dict(target_modules=["o_proj"], rank_pattern={"down_proj.weight": 3, "down_proj": 5},
                                                 target_parameters=["shared_experts.down_proj.weight", "gate.weight"]), {}),
    "made_glm4": ("glm4", dict(target_modules="all-linear"), {}),
}


def logits_of(program, folder, adapter):
    pentatron(program, "evaluate", f"{folder}/base", "--adapter", adapter, "--batches", f"{folder}/base/batch.safetensors",
              "--logits-out", f"{folder}/logits.safetensors", "--overwrite", "dtype=fp64", "device=cpu")
    return load_file(f"{folder}/logits.safetensors")["logits"]


def make_base(name, folder):
    os.mkdir(f"{folder}/base")
    hf_models.ALL.update(BASES)
    hf_models.make(name, f"{folder}/base")


def forward(model, folder):
    with torch.no_grad():
        return hf_models.forward(model, load_file(f"{folder}/base/batch.safetensors"))[1]


def compare(ours, theirs, base):
    worst, moved = hf_models.relative(ours, theirs), hf_models.relative(base, theirs)
    if worst > BOUND:
        raise RuntimeError(f"logits differ by {worst:.1e}")
    if moved < 1e-3:
        raise RuntimeError(f"the adapter changes the logits by {moved:.1e} only")
    return f"logits {worst:.1e}, of a change of {moved:.1e}"


def check_trained(program, name, folder):
    base, keys, ranks = TRAINED[name]
    make_base(base, folder)
    data = write_data(keys, folder) if base in BASES else ["dataset.type=mock"]
    pentatron(program, "train", "--hf", f"{folder}/base", f"--ranks={ranks}", *STEPS, *keys, *data, f"checkpoint.save={folder}/run")
    model = model_of_export(f"{folder}/base")
    before = forward(model, folder)
    adapted = peft.PeftModel.from_pretrained(model, f"{folder}/run/adapter", autocast_adapter_dtype=False).double().eval()
    theirs = forward(adapted, folder)
    return max((compare(logits_of(program, folder, f"{folder}/{adapter}"), theirs, before) for adapter in ("run", "run/adapter")))


def check_made(program, name, folder):
    base, fields, options = MADE[name]
    make_base(base, folder)
    model = model_of_export(f"{folder}/base")
    before = forward(model, folder)
    torch.manual_seed(2)
    config = peft.LoraConfig(r=4, lora_alpha=6, init_lora_weights=False, **fields)
    adapted = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    with torch.no_grad():
        for key, weight in adapted.named_parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight), alpha=0.05)
    adapted.eval().save_pretrained(f"{folder}/adapter", **options)
    theirs = forward(adapted, folder)
    told = compare(logits_of(program, folder, f"{folder}/adapter"), theirs, before)
    pentatron(program, "convert", f"{folder}/base", f"{folder}/merged", "--adapter", f"{folder}/adapter", "--format", "hf")
    worst = hf_models.relative(forward(model_of_export(f"{folder}/merged"), folder), theirs)
    if worst > BOUND:
        raise RuntimeError(f"the merged model's logits differ by {worst:.1e}")
    return told


def main(program, *names):
    checks = {**{name: check_trained for name in TRAINED}, **{name: check_made for name in MADE}}
    return run_checks(program, checks, names, f"adapters agree with peft {peft.__version__}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
