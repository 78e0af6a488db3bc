"""The table of docs/design.md section 2: what each module may include, besides itself.

A module may also include what its listed modules may; `allowed` is that closure.
"""

MAY_USE = {
    "base": [],
    "config": ["base"],
    "kernels": ["base"],
    "comm": ["base", "config"],
    "nn": ["base", "config", "comm", "kernels"],
    "parallel/tensor": ["nn", "comm", "kernels"],
    "parallel/context": ["nn", "comm", "kernels"],
    "parallel/expert": ["nn", "comm", "kernels", "parallel/tensor"],
    "layers": ["nn", "comm", "kernels", "config", "parallel/tensor", "parallel/context", "parallel/expert"],
    "models": ["layers", "data"],
    "optim": ["nn", "comm", "kernels", "config"],
    "parallel/ddp": ["nn", "comm", "optim"],
    "parallel/pipeline/schedule": ["base"],
    "parallel/pipeline": ["nn", "comm", "parallel/pipeline/schedule"],
    "data": ["base", "config"],
    "checkpoint/sharded": ["base"],
    "checkpoint/gguf": ["base"],
    "checkpoint": ["nn", "comm", "models", "optim", "parallel/ddp", "checkpoint/sharded", "checkpoint/gguf"],
    "parallelize": ["models", "optim", "parallel/tensor", "parallel/context", "parallel/expert", "parallel/ddp",
              "parallel/pipeline", "checkpoint"],
    "planner": ["models", "parallel/pipeline/schedule", "comm", "nn"],
    "plot": ["base"],
    "generate": ["parallelize", "checkpoint", "data"],
    "serve/http": ["base"],
    "serve": ["generate", "data", "serve/http"],
    "evaluation/tasks": ["config", "data"],
    "evaluation": ["generate", "data", "evaluation/tasks"],
    "trainer": ["parallelize", "data", "plot", "planner", "evaluation"],
    "cli/files": ["data", "plot"],
    "cli": ["trainer", "generate", "serve", "cli/files"],
}

# Modules whose files see no torch header.
WITHOUT_TORCH = ["base", "config", "kernels", "data", "plot", "evaluation/tasks", "parallel/pipeline/schedule",
                 "checkpoint/sharded",
                 "checkpoint/gguf", "cli/files", "serve/http"]

# What another module may see of a module it may use.
ONLY = {
    ("models", "data"): ["pentatron/data/field"],
    ("generate", "data"): ["pentatron/data/tokenizer"],
    ("serve", "data"): ["pentatron/data/tokenizer"],
    ("evaluation", "data"): ["pentatron/data/tokenizer"],
}


def module_of(path):
    """The module of "pentatron/<module>/file", or None for pentatron/main.cpp."""
    parts = path.split("/")[1:-1]
    for length in (3, 2, 1):
        name = "/".join(parts[:length])
        if len(parts) >= length and name in MAY_USE:
            return name
    return None


def allowed(module):
    """The closure of MAY_USE, with the module itself."""
    seen = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += MAY_USE[name]
    return seen
