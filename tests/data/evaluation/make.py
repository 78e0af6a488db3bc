"""A tiny model, tasks, and the scores that lm-eval 0.4.13 gives it in fp64 (transformers 5.23.0): make.py, in an environment with both."""
import json, os, random
os.environ |= dict(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DISABLE_MULTIPROC="1")
import lm_eval, tokenizers as tk, torch, transformers as tf
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

os.chdir(os.path.dirname(os.path.abspath(__file__)))
rnd = random.Random(5)
WORDS = "the cat sat on a mat while rain fell and old Zoë's café stayed open until nine o'clock in März; über 12 people asked why".split()
text = lambda lo, hi: " ".join(rnd.choice(WORDS) for _ in range(rnd.randint(lo, hi)))


def write(name, rows):
    with open(name, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def choices():
    return [text(1, 6) for _ in range(4)]


write("choice_train.jsonl", [dict(question=text(3, 8), options=choices(), label=rnd.randrange(4)) for _ in range(40)])
write("choice_test.jsonl", [dict(question=text(3, 8), options=choices(), label=rnd.randrange(4)) for _ in range(11)])
write("yes_no.jsonl", [dict(passage=text(3, 9), question=text(2, 4), answer=rnd.random() < 0.5) for _ in range(13)])
write("blank.jsonl", [dict(sentence=f"{text(2, 4)} _ {text(1, 3)}.", option1=text(1, 1), option2=text(1, 2), answer=rnd.choice("12")) for _ in range(9)])
write("cloze.jsonl", [dict(text=text(3, 12 if i else 90)) for i in range(9)])
write("pages.jsonl", [dict(page=f" = {text(1, 2)} = \n {text(2, 6)} @-@ {text(2, n)} ( {text(1, 2)} ) \n") for n in (3, 9, 150, 260, 20)])
write("sums.jsonl", [dict(question=text(2, 5), answer=f"{text(1, 3)} #### {rnd.randrange(100)}") for _ in range(9)])

tokenizer = tk.Tokenizer(tk.models.BPE())
tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = tk.decoders.ByteLevel()
trainer = tk.trainers.BpeTrainer(vocab_size=384, special_tokens=["<s>", "</s>"], initial_alphabet=tk.pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator([text(5, 30) for _ in range(200)], trainer)
tokenizer.post_processor = tk.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
tok = tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
torch.manual_seed(3)
config = tf.LlamaConfig(vocab_size=384, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                        max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1)
model = tf.LlamaForCausalLM(config).eval()
model.save_pretrained("model")
tok.save_pretrained("model")

lm = HFLM(pretrained=model.double(), tokenizer=tok, backend="causal", max_length=64, batch_size=1)
names = ["choice_shots", "yes_no", "blank", "cloze", "pages", "sums"]
result = lm_eval.simple_evaluate(lm, tasks=names[2:] + ["pair"], task_manager=TaskManager(include_path=".", include_defaults=False), log_samples=True,
                                 bootstrap_iters=1000, fewshot_random_seed=1234)


def likelihoods(sample):
    values = [float(r[0][0] if isinstance(r[0], tuple) else r[0]) for r in sample["resps"]]
    return values if sample["doc"].get("options") or len(values) > 1 else values[0]


expected = dict(scores={}, items={})
for name in names + ["pair"]:
    scores = result["results"].get(name) or result["groups"][name]
    expected["scores"][name] = {k.removesuffix(",none"): v for k, v in scores.items() if isinstance(v, float)}
for name in names:
    samples = sorted(result["samples"][name], key=lambda s: s["doc_id"])
    first = [s for s in samples if s["filter"] == samples[0]["filter"]]
    if name == "sums":
        expected["items"][name] = [dict(prompt=s["arguments"][0][0], text=s["resps"][0][0]) for s in first]
    else:
        expected["items"][name] = [dict(prompt=s["arguments"][0][0], loglikelihood=likelihoods(s)) for s in first]
json.dump(expected, open("expected.json", "w", encoding="utf-8"), ensure_ascii=False, indent=1)
