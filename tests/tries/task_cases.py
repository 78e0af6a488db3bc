"""Errors of task files, for cases.py: each task file is a small one with other lines."""

import shlex

DOCUMENT = '{"question": "%s", "label": %d, "more": "x", "list": ["a", "b"]}\n'
DOCUMENTS = DOCUMENT % ("a", 1) + DOCUMENT % ("b", 0) + DOCUMENT % ("c", 0)


def text(*lines):
    """A small task with these lines in place of those with the same keys; a key without a value is left out."""
    keys = {"task": "small", "dataset_path": "json", "dataset_kwargs": "{data_files: {test: test.jsonl}}", "test_split": "test",
            "output_type": "multiple_choice", "doc_to_text": '"{{question}}"', "doc_to_choice": "[a, b]", "doc_to_target": "label"}
    for line in lines:
        key, value = line.split(":", 1)
        keys[key] = value.strip()
    return "".join(f"{key}: {value}\n" for key, value in keys.items() if value)


def task(*lines, files=None, then="", more=""):
    """Writes a task file, its documents and other files, and evaluates on it."""
    files = {"t.yaml": text(*lines), "test.jsonl": DOCUMENTS, **(files or {})}
    made = "".join(f"printf %s {shlex.quote(content)} > {name}; " for name, content in files.items())
    return f"{made}{then}pentatron evaluate texts --tasks t.yaml eval.limit=2 eval.max_length=16 kernels=order{more}"


def answers(*lines, **more):
    return task("output_type: generate_until", "doc_to_choice:", "doc_to_target: more", "generation_kwargs: {max_gen_toks: 2}", *lines, **more)


def filtered(step):
    return answers("filter_list: [{name: a, filter: [{" + step + "}]}]")


def data(content, name="d.jsonl", field=""):
    return task(f"dataset_path: {'csv' if name.endswith('csv') else 'json'}", "dataset_kwargs: {data_files: {test: " + name + "}" + field + "}",
                files={name: content})


def group(members, more="", **files):
    return task(files={"t.yaml": f"group: all\ntask: {members}\n{more}", "small.yaml": text(), **files})


def examples(config, shots=1):
    return task(f"num_fewshot: {shots}", "fewshot_split: test" if "samples" not in config else "num_fewshot: 1", f"fewshot_config: {config}")


GOOD = '{"question": "a", "label": 1}\n'
INTACT = "with a JSON object on each line"
REGEX = "an expression of Python's re"
TASK_CASES = [
    ("a misspelled column", task('doc_to_target: "{{labl}}"'), {"{{label}}": task('doc_to_target: "{{label}}"')}),
    ("no such column", task('doc_to_text: "{{zz}}"'), {'a template such as "{{question}}"': task()}),
    ("a block without its end", task('doc_to_text: "{{question"'), {"a Jinja template": task()}),
    ("a text that is a list", task("doc_to_text: list"), {"{{list | join(' ')}}": task('doc_to_text: "{{list | join(\' \')}}"')}),
    ("a word that is no column", task("doc_to_text: qestion"), {"doc_to_text: question": task("doc_to_text: question")}),
    ("a target that is no column", task("doc_to_target: labl"), {"doc_to_target: label": task()}),
    ("a target out of range", task("doc_to_target: 7"), {"the text of a choice": task("doc_to_target: a"), "its number from 0 to 1": task("doc_to_target: 1")}),
    ("choices of no column", task("doc_to_choice: lst"), {"one of the columns": task("doc_to_choice: list")}),
    ("choices that are a text", task('doc_to_choice: "{{question}}"'), {"a template that writes a list": task('doc_to_choice: "{{[question, more]}}"')}),
    ("choices of a column of texts", task("doc_to_choice: question"), {"a column that has a list": task("doc_to_choice: list"), "a template such as": task('doc_to_choice: "{{[question, more]}}"')}),
    ("choices that are numbers", task("doc_to_choice: [1, 2]"), {'doc_to_choice: ["1", "2"]': task('doc_to_choice: ["1", "2"]')}),
    ("a document without a target", data(GOOD + '{"question": "b"}\n'), {"each have a target": data(GOOD)}),
    ("a section that is a word", task("fewshot_config: first_n"), {"fewshot_config: {sampler: first_n}": task("fewshot_config: {sampler: first_n}")}),
    ("metrics that are a word", task("metric_list: acc"), {"metric_list: [{metric: acc}]": task("metric_list: [{metric: acc}]")}),
    ("a damaged expression", filtered("function: regex, regex_pattern: '(a'"), {REGEX: filtered("function: regex, regex_pattern: '([0-9]+)'")}),
    ("a match that is not there", filtered("function: regex, regex_pattern: '(?s).', group_select: 9"), {"group_select: -1": filtered("function: regex, regex_pattern: '(?s).', group_select: -1")}),
    ("letters without choices", filtered("function: multi_choice_regex"), {"function: regex": filtered("function: regex")}),
    ("an answer that is not mapped", filtered("function: map, mapping_dict: {a: b}"), {"default_value": filtered("function: map, mapping_dict: {a: b}, default_value: none")}),
    ("a line that is no object", data(GOOD + "5\n"), {"an object, such as": data(GOOD)}),
    ("a key given twice", data('{"question": "a", "question": "b", "label": 1}\n'), {"documents with each key once": data(GOOD)}),
    ("an empty file", data(""), {INTACT: data(GOOD), "a list of objects": data("[" + GOOD + "]")}),
    ("half an array", data('[{"question": "a"},'), {INTACT: data(GOOD), "a list of objects": data("[" + GOOD + "]")}),
    ("a file without documents", data("\n\n"), {"a file with documents": data(GOOD)}),
    ("a row with few cells", data("question,label\na\n", "d.csv"), {
        "a cell for each column": data("question,label\na,1\n", "d.csv"), "another delimiter": data("question;label\na;1\n", "d.csv", ", delimiter: ';'")}),
    ("a row with many cells", data("question,label\na,b,1\n", "d.csv"), {
        "quotation marks around a cell": data('question,label\n"a,b",1\n', "d.csv"), "another delimiter": data("question;label\na,b;1\n", "d.csv", ", delimiter: ';'")}),
    ("an open cell", data('question,label\n"a,1\n', "d.csv"), {"a quotation mark at its end": data('question,label\n"a",1\n', "d.csv")}),
    ("no list of documents", data('{"rows": [' + GOOD + "]}", field=", field: row"), {"field: rows": data('{"rows": [' + GOOD + "]}", field=", field: rows")}),
    ("a list of numbers", data('{"rows": [1]}', field=", field: rows"), {"a list of objects": data('{"rows": [' + GOOD + "]}", field=", field: rows")}),
    ("data that is not there", task("dataset_kwargs: {data_files: {test: no.jsonl}}"), {
        "put the file there": task("dataset_kwargs: {data_files: {test: no.jsonl}}", then="mv test.jsonl no.jsonl; "),
        "eval.data_path=FOLDER": task("dataset_kwargs: {data_files: {test: no.jsonl}}", then="mkdir in; mv test.jsonl in/no.jsonl; ") + " eval.data_path=in"}),
    ("no match of a pattern", task("dataset_kwargs: {data_files: {test: 'zz*.jsonl'}}"), {"eval.data_path=FOLDER": task("dataset_kwargs: {data_files: {test: 'zz*.jsonl'}}", then="mkdir in; mv test.jsonl in/zz.jsonl; ") + " eval.data_path=in"}),
    ("folders in a pattern", task("dataset_kwargs: {data_files: {test: '**/n.jsonl'}}"), {"a pattern for each folder": task("dataset_kwargs: {data_files: {test: 'i*/n.jsonl'}}", then="mkdir in; mv test.jsonl in/n.jsonl; ")}),
    ("few labels", task("dataset_kwargs: {data_files: {test: test.jsonl}, label_files: {test: l}}", files={"l": "1\n"}), {"a label for each document": task("dataset_kwargs: {data_files: {test: test.jsonl}, label_files: {test: l}}", files={"l": "1\n0\n1\n"})}),
    ("an example without its target", examples("{samples: [{question: a}]}"), {"the key label in each sample": examples("{samples: [{question: a, label: 1}]}")}),
    ("an example with a far target", examples("{samples: [{question: a, label: 5}]}"), {"a target from 0 to 1": examples("{samples: [{question: a, label: 1}]}")}),
    ("an example that is not there", examples("{fewshot_indices: [7]}"), {"indices from 0 to 2": examples("{fewshot_indices: [0, 1, 2]}")}),
    ("more examples than there are", examples("{sampler: default}", 9), {"eval.num_fewshot=2": examples("{sampler: default}", 9) + " eval.num_fewshot=2"}),
    ("more first examples than there are", examples("{sampler: first_n}", 9), {"eval.num_fewshot=2": examples("{sampler: first_n}", 9) + " eval.num_fewshot=2"}),
    ("examples from what is scored", task("num_fewshot: 1"), {"fewshot_split: test": task("num_fewshot: 1", "fewshot_split: test")}),
    ("an include of itself", task("include: t.yaml"), {"remove this include": task()}),
    ("an include that is not there", task("include: none.yaml"), {"a path that begins in the folder": task("include: b.yaml", files={"b.yaml": "num_fewshot: 0\n"})}),
    ("an include of a number", task("include: 5"), {"include: base.yaml": task("include: base.yaml", files={"base.yaml": "num_fewshot: 0\n"})}),
    ("a task that is not there", group("[smal]"), {"small": group("[small]")}),
    ("a group of numbers", group("[5]"), {"the name of a task": group("[small]"), "its keys": group("[{include: small.yaml, task: mine}]")}),
    ("a group of itself", group("[all]"), {"a group without it": group("[small]")}),
    ("a group of nothing", group("[]"), {"task: [NAME]": group("[small]")}),
    ("a member without a name", group("[{num_fewshot: 0}]"), {"task: NAME": group("[{task: small, num_fewshot: 0}]")}),
    ("one task with two settings", group("[small, {task: small, num_fewshot: 0}]"), {"include: small.yaml and task: small_2": group("[small, {include: small.yaml, task: small_2, num_fewshot: 0}]")}),
    ("two groups of one name", group("[{group: x, task: [small]}, {group: x, task: [other]}]", **{"other.yaml": text("task: other")}), {"group: x_2": group("[{group: x, task: [small]}, {group: x_2, task: [other]}]", **{"other.yaml": text("task: other")})}),
    ("a group of a task", task("group: glue"), {'tag: "glue" in place of group: "glue"': task('tag: "glue"')}),
    ("no task file", task(files={"t.yaml": "- a\n"}), {"a YAML file with task": task()}),
    ("a key twice", task(files={"t.yaml": text() + "task: again\n"}), {"remove one of them": task()}),
    ("a merge of a word", task("<<: 3"), {"<<: *name": task("metadata: &x {num_fewshot: 0}", "<<: *x")}),
    ("an empty answer", task('doc_to_choice: ["", b]', 'target_delimiter: ""'), {"answers that are not empty": task("doc_to_choice: [a, b]", 'target_delimiter: ""')}),
    ("a long answer", task("doc_to_choice: [aaaaaaaaaaaaaaaaaaaaaaaa, b]").replace("=16", "=8"), {"eval.max_length=25": task("doc_to_choice: [aaaaaaaa, b]")}),
    ("no room for a prompt", answers("generation_kwargs: {max_gen_toks: 16}"), {"max_gen_toks: 8": answers("generation_kwargs: {max_gen_toks: 8}")}),
    ("choices that are no letters", data('{"question": "a", "label": "x", "choices": [1]}\n').replace("multiple_choice", "generate_until").replace(
        "doc_to_choice: [a, b]", "filter_list: [{name: a, filter: [{function: multi_choice_regex}]}]"), {"function: regex": filtered("function: regex")}),
    ("rows that are not UTF-8", data("", "d.csv").replace("pentatron", "printf 'question,label\\n\\377,1\\n' > d.csv; pentatron"), {
        "a file in UTF-8": data("question,label\na,1\n", "d.csv")}),
    ("a folder as a task file", task(then="rm t.yaml; mkdir t.yaml; "), {"the path of a YAML file": task()}),
    ("a task file that is not there", task(then="rm t.yaml; "), {
        "the path of a YAML file": task(), "one of the names": task(then="mkdir lambada; echo '{\"text\": \"a b\"}' > lambada/lambada_test.jsonl; ").replace("t.yaml e", "lambada_openai e")}),
    ("includes in includes", task("include: b0", files={f"b{i}": f"include: b{i + 1}\n" for i in range(9)} | {"b9": "num_fewshot: 0\n"}), {
        "fewer files": task("include: b0", files={"b0": "num_fewshot: 0\n"})}),
    ("a score of probabilities with two targets", task('doc_to_target: "{{[0, 1]}}"', "metric_list: [{metric: brier_score}]"), {
        "metric: acc": task('doc_to_target: "{{[0, 1]}}"', "metric_list: [{metric: acc}]")}),
    ("a score of probabilities of several choices", task('doc_to_choice: "{{list if label else list + [more]}}"', "metric_list: [{metric: brier_score}]"), {
        "metric: acc": task('doc_to_choice: "{{list if label else list + [more]}}"', "metric_list: [{metric: acc}]")}),
    ("f1 of three classes", task("doc_to_choice: [a, b, c]", 'doc_to_target: "{{2 * label}}"', "metric_list: [{metric: f1}]"), {
        f"metric: {m}": task("doc_to_choice: [a, b, c]", 'doc_to_target: "{{2 * label}}"', f"metric_list: [{{metric: {m}}}]") for m in ("acc", "mcc")}),
    ("an answer that is no choice", answers("doc_to_choice: [a, b]"), {
        "the text of a choice": answers("doc_to_choice: [a, b]", "doc_to_target: a"), "its number from 0 to 1": answers("doc_to_choice: [a, b]", "doc_to_target: label")}),
    ("a context of a space", task('doc_to_text: " "'), {"a context with words": task(), "none": task('doc_to_text: ""')}),
]
