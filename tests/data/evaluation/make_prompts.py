"""prompts.json: variants of a task, and what lm-eval 0.4.13 asks and counts: make_prompts.py, in an environment with lm-eval and datasets."""
import json, os, random, tempfile
os.environ |= dict(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
import numpy as np, yaml
from lm_eval.api.task import ConfigurableTask
from lm_eval.filters.extraction import MultiChoiceRegexFilter
from lm_eval.tasks._yaml_loader import load_yaml

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prompts.json")
DOCUMENTS = [dict(question=f"{q}?", label=l, word=w, words=["red", "blue sky", "Zoë"], flag=bool(l), n=i, prefix=p, hint=h)
             for i, (q, l, w, p, h) in enumerate([("What is 1", 0, "red", "It is", None), ("Which one ", 2, "Zoë", " So", "h"), ("tell\n", 1, "blue sky", "", ""),
                                                  ("Why not", 1, "blue sky", "Well", "x"), ("Who", 0, "red", "He", "y"), ("When", 2, "Zoë", "At", "z")])]
CHOICE = {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "words", "doc_to_target": "label"}
LIKELY = {"output_type": "loglikelihood", "doc_to_text": "question", "doc_to_target": "{{' ' + word}}"}
PAGE = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}} {{word}}"}
TEXT = {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "word", "generation_kwargs": {"until": "\n", "max_gen_toks": 4}}
SAMPLES = [dict(question="S1?", label=1, word="blue sky", words=["red", "blue sky"], n=7, prefix="P", flag=False), dict(question="S2", label=0, word="red", words=["red", "b"], n=8, prefix="", flag=True)]
ANSWERS = ["red", " Blue Sky. ", "#### 1,234", "it is (B) or (A)\nno", "", "Zoë Zoë 12 13"]


def filters(*pipelines):
    return {"filter_list": [dict(name=name, filter=steps) for name, steps in pipelines]}


FIRST = {"function": "take_first"}
SHOTS = {"num_fewshot": 2, "fewshot_split": "test"}
CASES = [
    CHOICE, CHOICE | {"doc_to_text": "question"}, CHOICE | {"target_delimiter": ""}, CHOICE | {"target_delimiter": "\n"}, CHOICE | {"doc_to_target": "word"},
    CHOICE | {"doc_to_target": "{{label}}"}, CHOICE | {"doc_to_target": "{{word}}"}, CHOICE | {"doc_to_target": 1}, CHOICE | {"doc_to_target": "{{[0, 2]}}"},
    CHOICE | {"doc_to_target": "flag", "doc_to_choice": ["no", "yes"]}, CHOICE | {"doc_to_choice": {"x": "no", "y": "yes", "z": "or"}},
    CHOICE | {"doc_to_choice": "{{words[1:] + ['it\\'s']}}"}, CHOICE | {"description": "Words of {{n}}.\n\n"}, CHOICE | {"description": "question"},
    CHOICE | {"gen_prefix": "prefix"}, CHOICE | {"gen_prefix": "The {{n}}"}, CHOICE | SHOTS | {"gen_prefix": "prefix"},
    CHOICE | SHOTS, CHOICE | SHOTS | {"fewshot_delimiter": "\n---\n", "target_delimiter": ": "}, CHOICE | SHOTS | {"fewshot_config": {"sampler": "first_n"}},
    CHOICE | {"num_fewshot": 2, "fewshot_config": {"sampler": "first_n", "samples": SAMPLES}}, CHOICE | {"num_fewshot": 1, "fewshot_config": {"samples": SAMPLES}},
    CHOICE | SHOTS | {"fewshot_config": {"sampler": "first_n", "doc_to_text": "E {{question}}", "doc_to_target": "{{word}}!", "fewshot_delimiter": "|", "target_delimiter": ">"}},
    CHOICE | {"num_fewshot": 1, "fewshot_config": {"sampler": "first_n", "split": "test", "doc_to_target": ""}},
    CHOICE | SHOTS | {"doc_to_target": "word"}, CHOICE | {"num_fewshot": 1}, CHOICE | SHOTS | {"description": "About {{word}}:\n"},
    CHOICE | {"doc_to_text": "{{label}}", "doc_to_choice": "{{['a ' + word, 'b', 'c']}}", "doc_to_target": "{{question}}"},
    CHOICE | SHOTS | {"doc_to_text": "label", "doc_to_choice": "{{['a ' + word, 'b', 'c']}}", "doc_to_target": "{{question}}"},
    CHOICE | SHOTS | {"doc_to_text": "{{label}}", "gen_prefix": "G:", "doc_to_choice": "{{['a ' + word, 'b', 'c']}}", "doc_to_target": "{{question}}"},
    CHOICE | {"metric_list": [{"metric": m} for m in ("acc", "acc_norm", "acc_bytes", "exact_match", "mcc", "acc_mutual_info")]},
    CHOICE | {"metric_list": [{"metric": "acc", "ignore_case": True, "higher_is_better": False, "aggregation": "median"}]},
    CHOICE | filters(("first", [FIRST]), ("vote", [{"function": "majority_vote"}, FIRST]), ("k", [{"function": "take_first_k", "k": 1}, FIRST])),
    LIKELY, LIKELY | SHOTS, LIKELY | {"doc_to_target": "word"}, LIKELY | {"gen_prefix": "prefix"}, LIKELY | filters(("first", [FIRST])),
    LIKELY | SHOTS | {"target_delimiter": "=", "doc_to_target": "word"},
    PAGE, PAGE | SHOTS, PAGE | filters(("first", [FIRST])), PAGE | {"doc_to_target": "question"},
    TEXT, TEXT | SHOTS, TEXT | {"gen_prefix": "prefix"}, TEXT | SHOTS | {"gen_prefix": "{{prefix}}"}, TEXT | {"generation_kwargs": {"do_sample": False, "temperature": 1}},
    TEXT | {"doc_to_target": "n"}, TEXT | {"doc_to_target": "{{[word, 'x']}}"}, TEXT | {"doc_to_target": "words"}, TEXT | {"doc_to_target": "label", "doc_to_choice": "words"},
    TEXT | {"num_fewshot": 2, "fewshot_config": {"sampler": "first_n", "samples": SAMPLES}}, TEXT | {"num_fewshot": 2, "fewshot_split": "test", "doc_to_target": "hint"},
    TEXT | SHOTS | {"doc_to_target": "label", "doc_to_choice": "words"},
    TEXT | {"metric_list": [{"metric": "exact_match", "ignore_case": True, "ignore_punctuation": True}]},
    TEXT | {"doc_to_target": "1234", "metric_list": [{"metric": "exact_match", "regexes_to_ignore": [",", "#", "^ "], "ignore_numbers": False}]},
    TEXT | {"metric_list": [{"metric": "exact_match", "ignore_numbers": True, "regexes_to_ignore": [" .*"], "aggregation": "mean"}]},
    TEXT | filters(("strict", [{"function": "regex"}, FIRST]), ("loose", [{"function": "regex", "regex_pattern": "(-?[0-9]+)|([A-Z]\\w+)", "group_select": -1, "fallback": " no "}, FIRST])),
    TEXT | filters(("plain", [{"function": "remove_whitespace"}, {"function": "lowercase"}, FIRST]), ("upper", [{"function": "uppercase"}, FIRST])),
    TEXT | filters(("map", [{"function": "map", "mapping_dict": {"red": "Zoë", "": "blue sky"}, "default_value": "red"}, FIRST])),
    TEXT | {"repeats": 1, "metadata": {"version": 1.0}, "tag": ["a"], "should_decontaminate": True, "doc_to_decontamination_query": "question"},
    TEXT | {"test_split": None, "validation_split": "test", "num_fewshot": 1, "training_split": "test"},
    TEXT | {"test_split": None, "validation_split": "test", "num_fewshot": 1},
]


def number(value):
    if isinstance(value, (tuple, list, np.ndarray)):
        return [number(v) for v in value]
    return float(value)


def written(config):
    """As YAML, with the data beside it."""
    base = {"task": "t", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "test.jsonl"}}, "test_split": "test"}
    return yaml.safe_dump({k: v for k, v in (base | config).items() if v is not None}, sort_keys=False, allow_unicode=True, width=1000)


def answers(instances):
    """Of a model: the same for every variant, by document and request."""
    for instance in instances:
        i, j = instance.doc_id, instance.idx
        likelihood = -((7 * i + 5 * j) % 11) - 0.5
        if instance.request_type == "generate_until":
            instance.resps = [ANSWERS[i]]
        elif instance.request_type == "loglikelihood_rolling":
            instance.resps = [likelihood]
        else:
            instance.resps = [(likelihood, (i + j) % 2 == 0)]


def result_of(config):
    with open("t.yaml", "w", encoding="utf-8") as file:
        file.write(written(config))
    task = ConfigurableTask(config=load_yaml("t.yaml"))
    task.set_fewshot_seed(seed=1234)
    task.build_all_requests()
    requests = [[] for _ in DOCUMENTS]
    for instance in task.instances:
        first, second = (list(instance.args) + [""])[:2]
        requests[instance.doc_id].append([first, second if isinstance(second, str) else ""])
    answers(task.instances)
    task.apply_filters()
    values = {}
    for name in task.instances[0].filtered_resps:
        for i in range(len(DOCUMENTS)):
            own = sorted((x for x in task.instances if x.doc_id == i), key=lambda x: x.idx)
            for metric, value in task.process_results(own[0].doc, [x.filtered_resps[name] for x in own]).items():
                values.setdefault(f"{metric},{name}", []).append(number(value))
    return dict(yaml=written(config), requests=requests, values=values)


def letters():
    """Random choices, an answer that mentions some, and the letter that multi_choice_regex finds."""
    rnd = random.Random(3)
    words = ["the", "Guilty", "of", "(a)", "a+b", "été!", "B", "no", "2.5", "C's", "日本", "x-y"]
    text = lambda low, high: " ".join(rnd.choice(words) for _ in range(rnd.randint(low, high)))
    found = []
    for _ in range(60):
        choices = [text(1, 3) for _ in range(rnd.randint(1, 5))]
        options = dict(regex_pattern=rnd.choice([r"(\([A-Z]\))", r"answer is (\w+)|is (B)"]), group_select=rnd.choice([0, -1]), ignore_case=rnd.random() < 0.5,
                       ignore_punctuation=rnd.random() < 0.5, regexes_to_ignore=rnd.choice([[], ["the "], ["\\$", "of"]]))
        answer = rnd.choice(["it is ", "(B) or ", "I say: ", "", "answer: "]) + rnd.choice([text(0, 2), rnd.choice(choices), rnd.choice(choices).upper(), "B", "C."])
        letter = next(iter(MultiChoiceRegexFilter(**options).apply([[answer]], [dict(choices=choices)])))[0]
        found.append(dict(step=dict(function="multi_choice_regex", **options), choices=choices, answer=answer, letter=letter))
    return found


os.chdir(tempfile.mkdtemp())
os.environ["HF_DATASETS_CACHE"] = os.getcwd()
with open("test.jsonl", "w", encoding="utf-8") as file:
    file.writelines(json.dumps(d, ensure_ascii=False) + "\n" for d in DOCUMENTS)
results = []
for case in CASES:
    try:
        results.append(result_of(case))
    except Exception as error:
        print("no result:", {k: v for k, v in case.items() if k not in ("output_type",)}, type(error).__name__, str(error)[:120])
with open("test.jsonl", encoding="utf-8") as file:
    documents = file.read()
head = dict(documents=documents, answers=ANSWERS, letters=letters())
with open(OUT, "w", encoding="utf-8") as file:
    file.write(json.dumps(head, ensure_ascii=False)[:-1] + ', "cases": [\n' + ",\n".join(json.dumps(r, ensure_ascii=False) for r in results) + "\n]}\n")
print(len(results), "of", len(CASES))
