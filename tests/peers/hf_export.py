"""Models that pentatron trained, in several layouts and of every family, exported and run by transformers; and models of
transformers through pentatron's checkpoints and back, every tensor byte for byte.

  hf_export.py PROGRAM [NAME ...]     no NAME: all; prints a line each; status 1 if one fails
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hf_models  # first: it makes transformers' fp64 models fp64 throughout
import torch
import transformers as tf
from safetensors import safe_open
from safetensors.torch import load_file, save_file

BOUND = 5e-7  # of fp64 logits that pentatron writes in fp32, relative to the largest
COMMON = ["train.train_iters=2", "train.seq_length=32", "train.micro_batch_size=2", "train.global_batch_size=4",
          "optimizer.lr=0.02", "model.num_layers=4", "model.hidden_size=48", "model.num_attention_heads=4",
          "model.ffn_hidden_size=112", "device=cpu", "train.num_threads=1"]
GPT2 = ["model.position_embedding_type=learned_absolute", "model.normalization=layernorm", "model.activation_func=gelu_tanh",
        "model.add_qkv_bias=true", "model.add_attention_proj_bias=true", "model.add_mlp_bias=true"]
UNTIED = ["model.untie_embeddings_and_output_weights=true"]
GQA = ["model.num_query_groups=2"]
QWEN2 = ["model.add_qkv_bias=true"]
QWEN3 = ["model.qk_layernorm=true", "model.kv_channels=16"]
BIASES = ["model.add_qkv_bias=true", "model.add_attention_proj_bias=true"]
OLMO2 = ["model.norm_placement=output", "model.qk_layernorm=true", "model.qk_layernorm_scope=projection"]
GEMMA = ["model.norm_placement=pre_and_output", "model.layernorm_zero_centered_gamma=true", "model.activation_func=geglu_tanh",
         "model.embedding_multiplier=6.928203230275509", "model.kv_channels=16"]  # sqrt(hidden_size)
GEMMA2 = [*GEMMA, "model.attn_logit_softcapping=50", "model.final_logit_softcapping=30"]
GEMMA3 = [*GEMMA, "model.qk_layernorm=true"]
GLM4 = ["model.norm_placement=pre_and_output", "model.rotary_interleaved=true", "model.rotary_percent=0.5", "model.add_qkv_bias=true"]
LATENTS = ["model.multi_latent_attention=true", "model.latent_layernorm_epsilon=1e-6", "model.kv_lora_rank=16", "model.qk_head_dim=8",
           "model.qk_pos_emb_head_dim=4", "model.v_head_dim=12", "model.rotary_interleaved=true"]
EXPERTS = ["model.num_moe_experts=8", "model.moe_layer_freq=[0]+[1]*3", "model.moe_ffn_hidden_size=16", "model.moe_router_topk=3",
           "model.moe_router_score_function=sigmoid", "model.moe_shared_expert_intermediate_size=32", "model.moe_router_enable_expert_bias=true",
           "model.moe_router_num_groups=4", "model.moe_router_group_topk=2", "model.moe_router_group_score_topk=2"]
MTP = ["model.mtp_num_layers=2"]
MIXTURE = ["model.num_moe_experts=4", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=24"]
GPT_OSS = ["model.num_moe_experts=4", "model.activation_func=quick_geglu", "model.activation_func_clamp_value=0.5", "model.glu_linear_offset=1",
           "model.moe_router_logit_bias=true", "model.add_mlp_bias=true", "model.softmax_type=learnable"]
BERT = ["model.type=bert"]
CLASSES = [*BERT, "model.head=classification", "model.num_labels=3"]
ROBERTA = [*BERT, "model.position_offset=2"]
T5 = ["model.type=t5"]
SPLIT = ["parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2"]  # on 8 ranks: dp 2


def window(size, *full):
    return [f"model.window_size={size}", f"model.full_attention_layers=[{','.join(map(str, full))}]"]


def rope(kind, **keys):
    return [f"model.rope_scaling.type={kind}", *(f"model.rope_scaling.{key}={value}" for key, value in keys.items())]


# family that is to be chosen, keys, ranks
TRAINED = {
    "gpt2": ("gpt2", GPT2, 1),
    "gpt2_untied_gelu": ("gpt2", [*GPT2, *UNTIED, "model.activation_func=gelu"], 1),
    "gpt2_relu2_unscaled": ("gpt2", [*GPT2, "model.activation_func=squared_relu", "model.softmax_scale=1.0"], 1),
    "gpt2_split": ("gpt2", [*GPT2, *SPLIT], 8),
    "llama": ("llama", GQA, 1),
    "llama_untied_biases": ("llama", [*UNTIED, *BIASES, "model.add_mlp_bias=true"], 1),
    "llama_llama3": ("llama", rope("llama3", factor=8, original_max_position_embeddings=16), 1),
    "llama_linear": ("llama", rope("linear", factor=2.5), 1),
    "llama_yarn": ("llama", rope("yarn", factor=4, original_max_position_embeddings=16, beta_fast=8, truncate="false"), 1),
    "llama_yarn_factor": ("llama", rope("yarn", factor=4, original_max_position_embeddings=16, attention_factor=1.3), 1),
    "llama_yarn_mscale": ("llama", rope("yarn", factor=40, original_max_position_embeddings=16, mscale=1.0,
                                        mscale_all_dim=0.8), 1),
    "llama_geglu_tanh": ("llama", ["model.activation_func=geglu_tanh", "model.rotary_base=500000"], 1),
    "llama_split_zero3": ("llama", [*GQA, *UNTIED, *SPLIT, "ddp.zero_stage=3"], 8),
    "mistral": ("mistral", [*GQA, *window(7)], 1),
    "mistral_split": ("mistral", [*UNTIED, *window(5), *SPLIT], 8),
    "qwen2": ("qwen2", [*QWEN2, *GQA], 1),
    "qwen2_window": ("qwen2", [*QWEN2, *UNTIED, *window(6, 0, 1)], 1),
    "qwen2_split": ("qwen2", [*QWEN2, *window(6, 2), *SPLIT], 8),
    "qwen3": ("qwen3", [*QWEN3, *GQA], 1),
    "qwen3_untied_biases": ("qwen3", [*QWEN3, *UNTIED, *BIASES], 1),
    "olmo2": ("olmo2", [*OLMO2, *GQA, *UNTIED], 1),
    "olmo2_split": ("olmo2", [*OLMO2, *GQA, *SPLIT], 8),
    "phi3": ("phi3", ["model.rotary_percent=0.5", *GQA, *UNTIED], 1),
    "phi3_odd": ("phi3", ["model.rotary_percent=0.45", "model.kv_channels=12"], 1),  # turns 5 dimensions, rounded up to 6
    "phi3_split": ("phi3", ["model.rotary_percent=0.5", *GQA, *window(7), *SPLIT], 8),
    "deepseek_v3": ("deepseek_v3", [*LATENTS, *EXPERTS, *UNTIED, "model.q_lora_rank=20"], 1),
    "deepseek_v3_mtp": ("deepseek_v3", [*LATENTS, *EXPERTS, *UNTIED, *MTP], 1),
    "deepseek_v3_mtp_split": ("deepseek_v3", [*LATENTS, *EXPERTS, *MTP, *SPLIT], 8),
    "deepseek_v3_dense": ("deepseek_v3", LATENTS, 1),
    "deepseek_v3_split": ("deepseek_v3", [*LATENTS, *EXPERTS, *SPLIT, "parallel.expert_model_parallel_size=4", "parallel.expert_tensor_parallel_size=1",
                                          *rope("yarn", factor=4, original_max_position_embeddings=16, mscale_all_dim=0.8)], 8),
    "gemma2": ("gemma2", [*GEMMA2, *GQA, *window(6, 1, 3)], 1),
    "gemma2_split": ("gemma2", [*GEMMA2, *GQA, *window(6, 1, 3), *SPLIT], 8),
    "gemma3_text": ("gemma3_text", [*GEMMA3, *GQA, *window(6, 3), "model.rope_local_base_freq=5000"], 1),
    "gemma3_text_one_base": ("gemma3_text", [*GEMMA3, *GQA, *window(6, 3)], 1),
    "gemma3_text_scaled": ("gemma3_text", [*GEMMA3, *window(6, 3), *rope("linear", factor=2.5)], 1),
    "gemma3_text_split": ("gemma3_text", [*GEMMA3, *GQA, *window(6, 3), "model.rope_local_base_freq=5000", *SPLIT], 8),
    "mixtral": ("mixtral", [*MIXTURE, *GQA], 1),
    "mixtral_split": ("mixtral", [*MIXTURE, *SPLIT, "parallel.expert_model_parallel_size=2"], 8),
    "olmoe": ("olmoe", [*MIXTURE, "model.moe_router_pre_softmax=true", "model.qk_layernorm=true", "model.qk_layernorm_scope=projection"], 1),
    "qwen3_moe_split": ("qwen3_moe", [*MIXTURE, *QWEN3, *GQA, "model.moe_layer_freq=[0,1,1,0]", *SPLIT], 8),
    "gpt_oss_no_window": ("gpt_oss", [*GPT_OSS, *BIASES], 1),
    "gpt_oss": ("gpt_oss", [*GPT_OSS, *BIASES, *GQA, *UNTIED, *window(6, 1, 3)], 1),
    "gpt_oss_split": ("gpt_oss", [*GPT_OSS, *window(6, 0), *SPLIT], 8),
    "glm4": ("glm4", [*GLM4, *GQA, *UNTIED], 1),
    "glm4_split": ("glm4", [*GLM4, *GQA, *SPLIT], 8),
    "bert": ("bert", [*BERT, "dataset.bert_binary_head=sentence_order"], 1),
    "bert_untied": ("bert", [*BERT, *UNTIED, "model.binary_head=false", "model.activation_func=silu"], 1),
    "bert_classes": ("bert", [*CLASSES, "model.label_names=[sad,glad]"], 1),
    "bert_number": ("bert", [*BERT, "model.head=regression"], 1),
    "bert_split": ("bert", [*BERT, "model.num_tokentypes=3", *SPLIT], 8),
    "roberta": ("roberta", [*ROBERTA, "model.binary_head=false"], 1),
    "roberta_classes_split": ("roberta", [*ROBERTA, *CLASSES, *SPLIT], 8),
    "t5": ("t5", T5, 1),
    "t5_small": ("t5", [*T5, "model.activation_func=relu", "model.num_decoder_layers=2", "model.kv_channels=7",
                        "model.relative_attention_num_buckets=12", "model.decoder_start_token=3"], 1),
    "t5_untied_split": ("t5", [*T5, *UNTIED, "model.scale_decoder_outputs=false", *SPLIT], 8),
    "qwen3_split": ("qwen3", [*QWEN3, *GQA, *SPLIT, *rope("yarn", factor=2, original_max_position_embeddings=16)], 8),
}


def pentatron(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}")
    return done.stdout


def is_unused(name, names):
    """The bias in the head of an untied BERT, whose output layer has one of its own. pentatron does not keep it."""
    return name.endswith(("predictions.bias", "lm_head.bias")) and name.replace(".bias", ".decoder.bias") in names


def model_of_export(folder):
    """As transformers loads it, in fp64; every tensor must have found its place."""
    kind = getattr(tf, tf.AutoConfig.from_pretrained(folder).architectures[0])
    experts = {"experts_implementation": "eager"} if kind.__name__.endswith("ForCausalLM") else {}  # others know no fp64
    model, info = kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True, **experts)
    info["missing_keys"] = [name for name in info["missing_keys"] if not is_unused(name, tensors_of(folder))]
    # transformers ignores the layers of multi-token prediction; it says so of a model that does not have 61 others.
    last = getattr(model.config, "num_hidden_layers", 0)
    info["unexpected_keys"] = [name for name in info["unexpected_keys"]
                               if not re.match(r"model\.layers\.(\d+)\.", name) or int(name.split(".")[2]) < last]
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise RuntimeError(f"transformers: {problems}")
    return model.eval()


def write_data(keys, folder):
    """Text, or texts with labels for a model that predicts them; returns the settings that name the file."""
    heads = [key for key in keys if key.startswith("model.head=")]
    sentence = "It is a truth universally acknowledged, that a single man. "
    if not heads:
        with open(f"{folder}/text.txt", "w", encoding="utf-8") as out:
            out.write(sentence * 60)
        return [f"dataset.path={folder}/text.txt"]
    with open(f"{folder}/labels.jsonl", "w", encoding="utf-8") as out:
        for i in range(60):
            label = f'"{("sad", "glad")[i % 2]}"' if "sad" in "".join(keys) else i % 2
            out.write(f'{{"text": "{sentence[: i + 5]}", "label": {label}}}\n')
    return [f"dataset.train_data_path={folder}/labels.jsonl"]


def check_trained(program, name, folder):
    family, keys, ranks = TRAINED[name]
    positions = [] if family == "t5" else ["model.max_position_embeddings=256"]
    pentatron(program, "train", f"--ranks={ranks}", *COMMON, *positions, *keys, *write_data(keys, folder),
              f"checkpoint.save={folder}/run")
    pentatron(program, "convert", f"{folder}/run", f"{folder}/hf", "--format", "hf", "--max-shard-size", "100KB")
    model = model_of_export(f"{folder}/hf")
    found = model.config.model_type
    if found != family:
        raise RuntimeError(f"exported as {found} and not as {family}")
    torch.manual_seed(1)
    batch = hf_models.batch_of(model)
    save_file(batch, f"{folder}/batch.safetensors")
    with torch.no_grad():
        _, theirs = hf_models.forward(model, batch)
    worst = 0.0
    for model in ("run", "hf"):  # the checkpoint itself, and the export as pentatron reads it
        pentatron(program, "evaluate", "--model", f"{folder}/{model}", "--batches", f"{folder}/batch.safetensors",
                  "--logits-out", f"{folder}/logits.safetensors", "--overwrite", "dtype=fp64", "device=cpu")
        ours = load_file(f"{folder}/logits.safetensors")["logits"]
        worst = max(worst, hf_models.relative(ours, theirs))
    if worst > BOUND:
        raise RuntimeError(f"logits differ by {worst:.1e}")
    return f"{found}, logits {worst:.1e}"


def tensors_of(folder):
    """Of every file of the folder: name -> bytes with type and shape."""
    tensors = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors") and file.startswith("model"):
            with safe_open(f"{folder}/{file}", "pt") as opened:
                for key in opened.keys():
                    t = opened.get_tensor(key)
                    tensors[key] = (t.dtype, tuple(t.shape), t.contiguous().view(torch.uint8).numpy().tobytes())
    return tensors


def check_returned(program, name, folder):
    theirs = f"{folder}/theirs"
    os.mkdir(theirs)
    hf_models.make(name, theirs)
    os.remove(f"{theirs}/batch.safetensors")
    before = tensors_of(theirs)
    before = {name: tensor for name, tensor in before.items() if not is_unused(name, before)}
    for target, form, source in (("ours", "pentatron", theirs), ("again", "pentatron", f"{folder}/ours"),
                                 ("back", "hf", f"{folder}/again")):
        pentatron(program, "convert", source, f"{folder}/{target}", "--format", form, "--max-shard-size", "50KB")
    after = tensors_of(f"{folder}/back")
    if before != after:
        names = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        raise RuntimeError(f"other bytes: {sorted(names)[:5]}")
    for file in ("config.json", "generation_config.json"):
        if os.path.exists(f"{theirs}/{file}"):
            with open(f"{theirs}/{file}", "rb") as a, open(f"{folder}/back/{file}", "rb") as b:
                if a.read() != b.read():
                    raise RuntimeError(f"{file} has changed")
    return f"{len(before)} tensors, byte for byte"


def run_checks(program, checks, names, agreement):
    """Runs all checks, or those of the names; each in a folder of its own. Returns the exit status."""
    failed = 0
    for name in names or checks:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"{name:28s} {checks[name](program, name.removeprefix('back_'), folder)}", flush=True)
            except (RuntimeError, ValueError) as problem:
                failed += 1
                print(f"{name:28s} FAILED {problem}", flush=True)
    print(f"{len(names or checks) - failed} of {len(names or checks)} {agreement}")
    return 1 if failed else 0


def main(program, *names):
    checks = {**{name: check_trained for name in TRAINED}, **{f"back_{name}": check_returned for name in hf_models.MODELS}}
    return run_checks(program, checks, names, f"exports agree with transformers {tf.__version__}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
