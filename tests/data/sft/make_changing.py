#!/usr/bin/env python3
"""Makes changing.json: conversations by chat templates that write earlier messages differently once others follow, with the answers where
transformers 5.23 finds them by the marks {% generation %}; the templates in the file have no marks. They are those of model families, shortened."""
import json
import pathlib
import re

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
# Thoughts of answers before the last question are left out; the last answer has an empty one if need be (Qwen3).
THOUGHTS = ("{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
            "{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set content = m.content %}{%- set thought = '' %}{%- if '</think>' in content %}"
            "{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
            "{{- '<|im_start|>assistant\\n' }}{% generation %}{%- if loop.index0 > ns.last %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}{{- content }}"
            "{%- for call in m.tool_calls or [] %}{{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endgeneration %}"
            "{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")
# Answers have no end of their own, and the beginning of one is more than what stands before it later (GLM).
NO_END = ("[gMASK]{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '<|assistant|>' }}{% generation %}{{- m.content.split('</think>')[-1].strip() }}{%- endgeneration %}"
          "{%- else %}{{- '<|' + m.role + '|>' + m.content }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|><think>' }}{%- endif %}")
# The text ends with a token that no earlier answer has (Phi-3).
END = ("{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\\n' }}{% generation %}{{ m.content + '<|end|>\\n' }}{% if loop.last %}{{ eos_token }}{% endif %}{% endgeneration %}"
       "{% else %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% if loop.last and not add_generation_prompt %}{{ eos_token }}{% endif %}{% endif %}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}")
# The last answer ends otherwise than those before it (gpt-oss).
OTHER_END = ("{{ '<|start|>system<|message|>Be.<|end|>' }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|start|>assistant' }}{% generation %}{{ '<|channel|>final<|message|>' + m.content }}"
             "{% if loop.last and not add_generation_prompt %}{{ '<|return|>' }}{% else %}{{ '<|end|>' }}{% endif %}{% endgeneration %}{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}")
# The system's text stands in the last question; nothing begins an answer (Mistral).
MOVES = ("{{ bos_token }}{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}{{ '[INST]' }}{% if loop.index >= loop.length - 1 and messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}"
         "{{ m.content + '[/INST]' }}{% else %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}")
# The beginning of an answer stands behind every conversation (Hammer2.1, deepseek-coder).
ALWAYS = ("{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe.<|im_end|>\\n' }}{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}{% generation %}{{ m.content + '<|im_end|>\\n' }}"
          "{% endgeneration %}{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}{{ '<|im_start|>assistant\\n' }}")
ALWAYS_LINES = ("{% if messages[0].role != 'system' %}{{ 'Code.\\n' }}{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{{ '### Response:\\n' }}{% generation %}{{ m.content + '\\n<|EOT|>\\n' }}{% endgeneration %}"
                "{% elif m.role == 'user' %}{{ '### Instruction:\\n' + m.content + '\\n' }}{% else %}{{ m.content + '\\n' }}{% endif %}{% endfor %}{{ '### Response:\\n' }}")
# Lines are indented, more so in messages than where an answer is asked for (chujiezheng/chat_templates).
INDENTED = """{% for m in messages %}
    {% if m.role == 'assistant' %}
        {{ 'GPT4 Assistant: ' + m.content + eos_token + '\n' }}
    {% else %}
        {{ 'GPT4 ' + m.role | capitalize + ': ' + m.content | trim + '\n' }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
    {{ 'GPT4 Assistant:' }}
{% endif %}"""
TEMPLATES = {"always": ALWAYS, "always_lines": ALWAYS_LINES, "indented": INDENTED, "thoughts": THOUGHTS, "no_end": NO_END, "end": END, "other_end": OTHER_END, "moves": MOVES}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = [{"type": "function", "function": {"name": "weather", "arguments": {"town": "Ulm", "days": 2}}}]
THOUGHT = "<think>\nWell, é.\n</think>\n\n"
CONVERSATIONS = {
    "turns": [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "dé"), turn("user", "e"), turn("assistant", "f")],
    "same texts": [turn("user", "yes"), turn("assistant", "yes"), turn("user", "yes"), turn("assistant", "yes")],
    "thoughts": [turn("user", "a"), turn("assistant", THOUGHT + "b"), turn("user", "c"), turn("assistant", THOUGHT + "d")],
    "ends with a question": [turn("user", "a"), turn("assistant", THOUGHT + "b"), turn("user", "c")],
    "an empty answer": [turn("user", "a"), turn("assistant", ""), turn("user", "c"), turn("assistant", "d")],
    "begins with an answer": [turn("assistant", "I begin."), turn("user", "x"), turn("assistant", "y")],
    "a system": [turn("system", "s"), turn("user", "x"), turn("assistant", "y"), turn("user", "z"), turn("assistant", "w")],
    "a call": [turn("user", "Weather?"), turn("assistant", "", tool_calls=CALL), turn("tool", "{}"), turn("assistant", "Rain."), turn("user", "x"), turn("assistant", "y")],
}


def main():
    cases = []
    for form, template in TEMPLATES.items():
        for name, messages in CONVERSATIONS.items():
            if (name == "a call" and form != "thoughts") or (name == "thoughts" and form in ("end", "other_end", "moves", "always", "always_lines", "indented")):
                continue
            if name == "begins with an answer" and form in ("moves", "always", "always_lines", "indented"):
                continue  # nothing shows where it begins
            render = lambda some, **more: render_jinja_template([some], chat_template=template, bos_token="<s>", eos_token="</s>", **more)
            if form == "indented":  # what each message adds, without its name
                texts, sizes = render(messages)[0], [len(render(messages[:n])[0][0]) for n in range(len(messages) + 1)]
                spans = [[(texts[0].index("Assistant:", sizes[i]) + 10, sizes[i + 1]) for i, m in enumerate(messages) if m["role"] == "assistant"]]
            else:
                texts, spans = render(messages, return_assistant_tokens_mask=True)
            size = lambda end: len(texts[0][:end].encode())
            cases.append({"template": form, "name": name, "text": texts[0], "answers": [[size(begin), size(end)] for begin, end in spans[0]]})
    bare = {name: re.sub(r"\{%-? (end)?generation %\}", "", text) for name, text in TEMPLATES.items()}
    out = {"templates": bare, "conversations": CONVERSATIONS, "cases": cases}
    (HERE / "changing.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
