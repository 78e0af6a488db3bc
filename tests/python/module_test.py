"""The Python module with a program of a build. PENTATRON_PROGRAM names it; PYTHONPATH has python/."""
import inspect
import os
import signal
import tempfile
import unittest

import pentatron
from pentatron import _program

TINY = {"model": {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2},
        "train": {"seq_length": 32, "global_batch_size": 2, "micro_batch_size": 1, "train_iters": 4}, "device": "cpu"}


class Configs(unittest.TestCase):
    def test_sections_and_dots_are_the_same(self):
        dotted = pentatron.Config({"model.num_layers": 2, "model.hidden_size": 32, "optimizer": {"lr": 1e-3}})
        self.assertEqual(dict(dotted), {"model": {"num_layers": 2, "hidden_size": 32}, "optimizer": {"lr": 1e-3}})

    def test_what_breaks_the_schema_is_told(self):
        for values, text in (({"model.num_layer": 2}, "there is no key model.num_layer"),
                             ({"model.num_layers": 0}, "model.num_layers=0 breaks minimum=1"),
                             ({"model.num_layers": "two"}, "model.num_layers='two' is not of type integer"),
                             ({"model": {"num_layers": True}}, "is not of type integer"),
                             ({"model.type": "rnn"}, "model.type='rnn' is not one of gpt, bert, t5"),
                             ({"model": 3}, "model=3 is not of type object"),
                             ({"logger.sample_prompts": [1]}, "logger.sample_prompts[0]=1 is not of type string")):
            with self.assertRaisesRegex(pentatron.ConfigError, text.replace("[", r"\[")):
                pentatron.Config(values)

    def test_a_complete_configuration_has_the_values(self):
        text = pentatron.Config({"logger": {"run_name": "a: \"b\" # c", "sample_prompts": ["", "x, y"]},
                                 "optimizer.lr": 0.002, "model.num_query_groups": None}).complete()
        for line in ('run_name: "a: \\"b\\" # c"', "lr: 0.002", '"x, y"'):
            self.assertIn(line, text)

    def test_rules_between_keys_are_the_programs(self):
        config = pentatron.Config({"model.hidden_size": 30, "model.num_attention_heads": 4,
                                   "model.position_embedding_type": "learned_absolute"})
        with self.assertRaises(pentatron.ConfigError) as caught:
            pentatron.run(config)
        self.assertEqual(caught.exception.exit_status, 2)
        self.assertIn("model.hidden_size=30", caught.exception.message)
        self.assertTrue(caught.exception.suggestion)


class Runs(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def test_streams_resumes_and_generates(self):
        keys = {"checkpoint.save": self.path("saved"), "logger.dir": self.path("run = 1")}
        run = pentatron.run(TINY, keys)
        steps = [entry for entry in run if "loss" in entry]
        self.assertEqual([step["iteration"] for step in steps], [1, 2, 3, 4])
        self.assertEqual(run.summary()["exit_reason"], "finished")
        self.assertEqual(run.folder, self.path("run = 1"))

        resumed = pentatron.run(TINY, {**keys, "checkpoint.load": self.path("saved"), "train.train_iters": 6})
        self.assertEqual([entry["iteration"] for entry in resumed if "loss" in entry], [5, 6])

        options = {"max_new_tokens": 4, "temperature": 0}
        text = pentatron.generate(self.path("saved"), "It is", **options)
        self.assertIsInstance(text, str)
        self.assertEqual(pentatron.generate(self.path("saved"), ["It is", "It was"], {"device": "cpu"}, **options)[0], text)

    def test_raises_the_error_of_the_program(self):
        with self.assertRaises(pentatron.Error) as caught:
            list(pentatron.run(TINY, {"dataset.path": self.path("nothing")}))
        self.assertRegex(caught.exception.message, "^dataset.path=.*nothing does not exist$")
        self.assertIn(".jsonl", caught.exception.suggestion)
        self.assertEqual(caught.exception.exit_status, 1)

    def test_leaving_the_block_stops_the_run_and_removes_the_temporary_folder(self):
        with pentatron.run(TINY, {"train.train_iters": 1000000}) as run:
            self.assertEqual(next(iter(run))["iteration"], 1)
        self.assertFalse(os.path.exists(run.folder))

    def test_a_file_of_settings(self):
        file = self.path("tiny.yaml")
        with open(file, "w", encoding="utf-8") as out:
            out.write("model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}\n"
                      "train: {seq_length: 32, global_batch_size: 2, micro_batch_size: 1}\n")
        run = pentatron.run(file, {"train.train_iters": 1})
        with run:
            self.assertEqual(sum("loss" in entry for entry in run), 1)
            self.assertTrue(os.path.exists(os.path.join(run.folder, "config.yaml")))


class Errors(unittest.TestCase):
    def test_text_becomes_message_and_suggestion(self):
        error = _program.error_of("model 3M\nerror: a=1 is wrong\n  more\n  try: a=2\n  rank 1\n", 2)
        self.assertIsInstance(error, pentatron.ConfigError)
        self.assertEqual((error.message, error.suggestion), ("a=1 is wrong\n  more\n  rank 1", "a=2"))

    def test_a_signal_is_named(self):
        error = _program.error_of("last line\n", -signal.SIGKILL)
        self.assertEqual(error.message, "pentatron was ended by signal 9\nlast line")

    def test_a_program_that_is_not_there(self):
        before = os.environ["PENTATRON_PROGRAM"]
        os.environ["PENTATRON_PROGRAM"] = "/nowhere/pentatron"
        try:
            with self.assertRaisesRegex(pentatron.Error, "PENTATRON_PROGRAM=/nowhere/pentatron is not a program"):
                pentatron.program()
        finally:
            os.environ["PENTATRON_PROGRAM"] = before


class Documentation(unittest.TestCase):
    def test_what_is_public_is_typed_and_documented(self):
        for name in pentatron.__all__:
            thing = getattr(pentatron, name)
            self.assertTrue(inspect.getdoc(thing), name)
            if inspect.isfunction(thing):
                hints = thing.__annotations__
                self.assertEqual(set(hints), {*inspect.signature(thing).parameters, "return"}, name)


if __name__ == "__main__":
    unittest.main()
