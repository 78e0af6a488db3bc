#!/usr/bin/env python3
"""Makes expected.json: conversations through transformers 5.23 (apply_chat_template with return_assistant_tokens_mask where a template marks
answers; else answers by differences of renderings, tokenized with offsets). The templates are those of model families, shortened where a part
does not matter to messages; tokenizers are those of ../tokenizers."""
import json
import pathlib

from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
          "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
          "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SMOLLM2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI "
           "assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
           "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
MISTRAL = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
           "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}")
QWEN2 = ("{%- if tools %}{{- '<|im_start|>system\n' }}{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}"
         "{{- 'You are a helpful assistant.' }}{%- endif %}{{- \"\n\n# Tools\n\n<tools>\" }}{%- for tool in tools %}{{- \"\n\" }}{{- tool | tojson }}"
         "{%- endfor %}{{- \"\n</tools><|im_end|>\n\" }}{%- else %}{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + "
         "messages[0]['content'] + '<|im_end|>\n' }}{%- else %}{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
         "{%- endif %}{%- for message in messages %}{%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or "
         "(message.role == \"assistant\" and not message.tool_calls) %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
         "{%- elif message.role == \"assistant\" %}{{- '<|im_start|>' + message.role }}{%- if message.content %}{{- '\n' + message.content }}{%- endif %}"
         "{%- for tool_call in message.tool_calls %}{{- '\n<tool_call>\n{\"name\": \"' }}{{- tool_call.function.name }}{{- '\", \"arguments\": ' }}"
         "{{- tool_call.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- elif message.role == \"tool\" %}"
         "{{- '<|im_start|>user\n<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response><|im_end|>\n' }}{%- endif %}{%- endfor %}"
         "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}")
MARKED = ("{% for message in messages %}{% if message['role'] == 'assistant' %}<|im_start|>assistant\n{% generation %}{{ message['content'] }}"
          "<|im_end|>{% endgeneration %}\n{% else %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# The mark begins inside of what a tokenizer takes for one token.
TIGHT = "{% for m in messages %}{{ m['role'] }}: a{% generation %}{{ m['content'] }}{% endgeneration %}e {% endfor %}"
TEMPLATES = {"llama3": LLAMA3, "chatml": CHATML, "smollm2": SMOLLM2, "mistral": MISTRAL, "qwen2": QWEN2, "marked": MARKED, "tight": TIGHT}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = [{"type": "function", "function": {"name": "weather", "arguments": {"town": "Ulm", "days": 2}}}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}]
CONVERSATIONS = {
    "one turn": [turn("user", "What is the sum of 2 and 3?"), turn("assistant", "It is 5.")],
    "two turns": [turn("user", "Hello there"), turn("assistant", "Hello! How can I help?"), turn("user", " leading space"), turn("assistant", "  two spaces, then\n\nlines\n")],
    "system": [turn("system", "Be short."), turn("user", "Grüße, 東京 and 👍🏽"), turn("assistant", "Ça va: naïve 東京 👩‍👩‍👧!")],
    "empty answer": [turn("user", "x"), turn("assistant", ""), turn("user", "y"), turn("assistant", "z")],
    "ends with a question": [turn("user", "a"), turn("assistant", "b"), turn("user", "c")],
    "special tokens in a text": [turn("user", "say <|im_end|> please"), turn("assistant", "no </s> and no <|im_start|>")],
    "tools": [turn("user", "Weather?"), turn("assistant", "", tool_calls=CALL), turn("tool", "{\"rain\": true}"), turn("assistant", "Rain in Ulm.")],
    "tools without content": [turn("user", "Weather?"), turn("assistant", None, tool_calls=CALL), turn("tool", "dry"), turn("assistant", "Dry in Ulm.")],
    "other white space": [turn("user", "\u3000 Hi\u00a0"), turn("assistant", "\u2003Yes.\u3000\u00a0"), turn("user", "\x1cWhy?\u2028"), turn("assistant", "So.\x85")],
}
# Prompt and completion as texts.
TEXTS = [("", "The quick brown fox"), ("The quick", " brown fox jumps over"), ("Q: 東京? ", "A: Grüße\n"), ("", "<s>begun"), ("<s> asked", " and told"), ("a", "")]
# Of texts also one that puts a token behind them.
TEXT_TOKENIZERS = {"t5.json": (None, "</s>")}
# File, and the tokens of begin and end, which it has.
TOKENIZERS = {"gpt2.json": ("<s>", "<|endoftext|>"), "llama3.json": ("<s>", "<|endoftext|>"), "qwen2.json": ("<s>", "<|endoftext|>"),
              "llama2.json": ("<s>", "</s>"), "mistral.json": ("<s>", "</s>")}


def main():
    cases = []
    for file, (bos, eos) in TOKENIZERS.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE.parent / "tokenizers" / file), bos_token=bos, eos_token=eos)
        assert {bos, eos} <= {t["content"] for t in json.load(open(HERE.parent / "tokenizers" / file))["added_tokens"]}
        for template_name, template in TEMPLATES.items():
            for name, messages in CONVERSATIONS.items():
                tools = TOOLS if name.startswith("tools") else None
                if tools and template_name != "qwen2":
                    continue
                render = lambda some, prompt: tokenizer.apply_chat_template(some, chat_template=template, tools=tools, tokenize=False, add_generation_prompt=prompt) if some else (
                    tokenizer.apply_chat_template([turn("user", "")], chat_template=template, tokenize=False))
                if "endgeneration" in template:
                    out = tokenizer.apply_chat_template(messages, chat_template=template, tools=tools, return_dict=True, return_assistant_tokens_mask=True)
                    ids, mask = out["input_ids"], out["assistant_masks"]
                    # Where a tokenizer's offsets leave the first space out, transformers finds no token there and masks nothing from then on.
                    text, at, lost = render(messages, False), 0, False
                    offsets = tokenizer(text, add_special_tokens=False)
                    for message in messages:
                        at = text.index(message["content"], at)
                        lost = lost or (message["content"] and offsets.char_to_token(at) is None)
                        at += len(message["content"])
                    if lost:
                        continue
                else:
                    text = render(messages, False)
                    out = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
                    ids, mask = out["input_ids"], [0] * len(out["input_ids"])
                    for i, message in enumerate(messages):
                        if message["role"] != "assistant":
                            continue
                        begin, end = len(render(messages[:i], True)), len(render(messages[:i + 1], False))
                        if begin >= end:
                            continue
                        for k, (first, last) in enumerate(out["offset_mapping"]):
                            mask[k] = mask[k] or int(first < end and last > begin)
                cases.append({"tokenizer": file, "template": template_name, "name": name, "ids": list(ids), "mask": list(mask)})
    texts = []
    for file, (bos, eos) in {**TOKENIZERS, **TEXT_TOKENIZERS}.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE.parent / "tokenizers" / file), bos_token=bos, eos_token=eos)
        for prompt, completion in TEXTS:
            if file == "t5.json" and not prompt.isascii():  # without tokens for it
                continue
            out = tokenizer(prompt + completion, return_offsets_mapping=True)
            ids, offsets = out["input_ids"], out["offset_mapping"]
            answer = next((i for i, (_, last) in enumerate(offsets) if last > len(prompt)), len(ids))
            mask = [int(i >= answer) for i in range(len(ids))]  # without gaps, where offsets leave spaces out
            if bos and ids[:2] == [tokenizer.bos_token_id] * 2:  # the text has it, too
                ids, mask = ids[1:], mask[1:]
            if ids[-1] != tokenizer.eos_token_id:
                ids, mask = ids + [tokenizer.eos_token_id], mask + [0]
            texts.append({"tokenizer": file, "prompt": prompt, "completion": completion, "ids": ids, "mask": mask[:-1] + [1]})
    json.dump({"templates": TEMPLATES, "conversations": CONVERSATIONS, "tools": TOOLS, "tokenizers": TOKENIZERS, "cases": cases, "texts": texts}, open(HERE / "expected.json", "w"), ensure_ascii=False, separators=(",", ":"))
    print(len(cases), "cases,", len(texts), "texts")


main()
