"""pentatron from Python: starts the program, reads its output, and raises its errors.

    import pentatron

    config = pentatron.Config({"model": {"num_layers": 2}, "train": {"train_iters": 20}})
    with pentatron.run(config, {"checkpoint.save": "runs/first"}) as run:
        for step in run:
            print(step["iteration"], step.get("loss"))
    print(pentatron.generate("runs/first", "It is a truth"))

Everything is computed by the program; docs/python.md is the guide.
"""
from pentatron._config import Config, schema
from pentatron._generate import generate
from pentatron._program import ConfigError, Error, program
from pentatron._run import Run, run

__all__ = ["Config", "ConfigError", "Error", "Run", "generate", "program", "run", "schema"]
