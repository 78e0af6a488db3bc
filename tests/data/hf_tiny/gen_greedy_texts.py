"""What transformers 5.23.0 writes greedily with a causal model in fp64, into texts.json beside it: gen_greedy_texts.py FOLDER..."""
import json, sys
import pure64, torch, transformers as tf

for folder in sys.argv[1:]:
    model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager").eval()
    texts = []
    for prompt in ([5, 9, 17, 33, 44, 2, 8, 1], [3, 60, 57, 7, 1], [20], list(range(2, 82))):
        ids = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), max_new_tokens=80, do_sample=False,
                             eos_token_id=59, pad_token_id=0)[0, len(prompt):]
        texts.append({"prompt": prompt, "tokens": ids.tolist()})
    json.dump({"stop": 59, "texts": texts}, open(f"{folder}/texts.json", "w"), indent=1)
    print(folder, [len(t["tokens"]) for t in texts], [len(set(t["tokens"])) for t in texts])
