"""A tiny T5 whose greedy texts are not dull, and what transformers 5.23.0 writes with it in fp64: gen_t5_generation.py FOLDER"""
import json, sys
import torch, transformers as tf

folder = sys.argv[1]
torch.manual_seed(3)
config = tf.T5Config(vocab_size=61, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=3, num_heads=4, relative_attention_num_buckets=8,
                     relative_attention_max_distance=12, dropout_rate=0.0, feed_forward_proj="gated-silu", tie_word_embeddings=False,
                     decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
model = tf.T5ForConditionalGeneration(config).eval()
with torch.no_grad():
    for name, p in model.named_parameters():
        if "layer_norm" in name: p.uniform_(0.5, 1.5)
        else: p.normal_(0, 1.5 if "relative" in name else 1.0 if "shared" in name else 0.6 if "lm_head" in name else 0.35)
model.save_pretrained(folder)
model = model.double()
texts = []
for prompt in ([5, 9, 17, 33, 44, 2, 8, 1], [3, 60, 57, 7, 1], [20, 1], list(range(2, 42)) + [1]):
    # Without a cache: transformers' has too few layers if the decoder has more than the encoder.
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=80, do_sample=False, num_beams=1, use_cache=False, eos_token_id=59)[0, 1:]
    texts.append({"prompt": prompt, "tokens": ids.tolist()})
json.dump({"stop": 59, "texts": texts}, open(f"{folder}/texts.json", "w"), indent=1)
print([len(t["tokens"]) for t in texts], [len(set(t["tokens"])) for t in texts])
