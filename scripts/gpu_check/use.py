"""What a user does after the first step: resumes, offloads, generates, serves. On the device as on the CPU, in fp64."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import subprocess
import time

from part import Part, relative

TEXT = ["the loss falls slowly and then rises", "a rank waits for its neighbor", "every expert sees a few tokens"]
RUN = ("dataset.type=text model.num_layers=2 model.hidden_size=64 model.num_attention_heads=4 model.num_query_groups=2 "
       "train.seq_length=64 train.micro_batch_size=2 train.global_batch_size=4 train.train_iters=8 train.eval_interval=0 "
       "optimizer.lr=3e-3").split()
BOUND = 1e-8


def losses(steps):
    return [step["loss"] for step in steps if "loss" in step]


def worst(got, right):
    return max((relative(a, b) for a, b in zip(got, right, strict=True)), default=float("inf"))


class Use:
    """Runs of one small model on bytes of text."""

    def __init__(self, part):
        self.part = part
        self.text = os.path.join(part.scratch, "text.jsonl")
        with open(self.text, "w", encoding="utf-8") as file:
            for i in range(300):
                file.write(json.dumps({"text": f"{TEXT[i % 3]} {i}"}) + "\n")
        self.saved = os.path.join(part.scratch, "saved")

    @contextlib.contextmanager
    def on_cpu(self):
        device, self.part.device = self.part.device, "cpu"
        try:
            yield
        finally:
            self.part.device = device

    def train(self, name, *keys):
        return losses(self.part.train(name, f"dataset.path={self.text}", *RUN, *keys))

    def save_and_resume(self):
        whole = self.train("whole", "dtype=fp64", f"checkpoint.save={self.saved}", "checkpoint.save_interval=4", "checkpoint.keep=0")
        half = os.path.join(self.saved, "step_00000004")
        resumed = self.train("resumed", "dtype=fp64", f"checkpoint.load={half}")
        with self.on_cpu():
            on_cpu, all_on_cpu = self.train("resumed_on_cpu", "dtype=fp64", f"checkpoint.load={half}"), self.train("on_cpu", "dtype=fp64")
        found = {"steps": len(whole), "from_the_cpu": worst(whole, all_on_cpu), "resumed_on_the_cpu": worst(on_cpu, whole[4:]),
                 "same_bits": resumed == whole[4:], "bound": BOUND}
        return found["same_bits"] and max(found["from_the_cpu"], found["resumed_on_the_cpu"]) <= BOUND, found

    def same_bits(self, name, *keys):
        """Training with `keys` gives the losses of training without."""
        with_keys, without = self.train(name + "_with", *keys), self.train(name + "_without")
        return with_keys == without and len(without) == 8, {"worst": worst(with_keys, without)}

    def skipped_updates(self):
        """Steps whose updates are too large are left out by the device; the host reads it later."""
        keys = ["optimizer.grad_norm_skip_threshold=1.5", "dtype=fp64"]
        got = self.train("skipped", "logger.log_interval=5", *keys)
        with self.on_cpu():
            right, plain = self.train("skipped_on_cpu", *keys), self.train("plain_on_cpu", "dtype=fp64")
        return worst(got, right) <= BOUND and right != plain, {"loss": worst(got, right), "bound": BOUND}

    def generate(self, model, device, *arguments):
        out = self.part.run([self.part.program, "generate", model, f"device={device}", "--json", *arguments])
        return [json.loads(line) for line in out.splitlines()]

    def tokens_of(self, model):
        folder = os.path.join(self.part.data, "hf_tiny", model)
        arguments = ["dtype=fp64", "--tokens", "5,9,2,7", "--max-new-tokens", "24", "--temperature", "0", "--ignore-eos", "--logprobs"]
        got, right = (self.generate(folder, device, *arguments)[0] for device in (self.part.device, "cpu"))
        apart = max(abs(a - b) for a, b in zip(got["logprobs"], right["logprobs"], strict=True))
        return got["ids"] == right["ids"] and apart <= BOUND, {"tokens": len(got["ids"]), "log_probability": apart, "bound": BOUND}

    def texts(self):
        prompts = [part for text in TEXT for part in ("--prompt", text[:12])]
        arguments = ["dtype=fp64", *prompts, "--max-new-tokens", "40", "--seed", "3"]
        got, right = (self.generate(self.saved, device, *arguments) for device in (self.part.device, "cpu"))
        narrow = self.generate(self.saved, self.part.device, "dtype=bf16", *prompts, "--max-new-tokens", "40", "--kv-cache-dtype", "fp8")
        same = [one["text"] for one in got] == [one["text"] for one in right]
        return same and all(len(one["ids"]) > len(one["prompt_ids"]) for one in narrow), {"texts": [one["text"][:30] for one in got]}

    def server(self):
        right = [one["text"] for one in self.generate(self.saved, "cpu", "dtype=fp64", *[part for text in TEXT for part in ("--prompt", text)],
                                                      "--max-new-tokens", "32", "--temperature", "0", "--ignore-eos")]
        log = os.path.join(self.part.scratch, "server.txt")
        with open(log, "w", encoding="utf-8") as output:
            server = subprocess.Popen([self.part.program, "serve", self.saved, "--port", "0", f"device={self.part.device}", "dtype=fp64"],
                                      stdout=output, stderr=subprocess.STDOUT, env=self.part.environment())
        try:
            port, end = None, time.monotonic() + 60
            while not port:
                with open(log, encoding="utf-8") as file:
                    seen = file.read()
                port = re.search(r"http://127\.0\.0\.1:(\d+)", seen)
                if server.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the server did not start: {seen[-500:]}")
                time.sleep(0.1)

            def ask(text):
                connection = http.client.HTTPConnection("127.0.0.1", int(port.group(1)), timeout=60)
                connection.request("POST", "/v1/completions", json.dumps({"prompt": text, "max_tokens": 32, "temperature": 0, "ignore_eos": True}),
                                   {"Content-Type": "application/json"})
                try:
                    answer = json.loads(connection.getresponse().read())
                except http.client.HTTPException as error:
                    raise RuntimeError(f"the server does not answer: {error!r}") from error
                if "choices" not in answer:
                    raise RuntimeError(str(answer)[:300])
                return answer["choices"][0]["text"]

            with concurrent.futures.ThreadPoolExecutor(12) as clients:
                got = list(clients.map(ask, TEXT * 4))
        finally:
            server.kill()
            server.wait()
        return got == right * 4, {"requests": len(got), "same": sum(a == b for a, b in zip(got, right * 4))}


def main():
    part = Part()
    use = Use(part)
    part.attempt("save, resume, resume on the CPU", use.save_and_resume)
    part.attempt("reading four steps together", lambda: use.same_bits("late", "logger.log_interval=4"))
    part.attempt("updates that are left out", use.skipped_updates)
    files = [f"offload.dir={part.scratch}"] if part.device == "cpu" else []
    part.attempt("offloaded activations", lambda: use.same_bits("activations", "offload.activations=true", *files))
    part.attempt("offloaded optimizer", lambda: use.same_bits("optimizer", "offload.optimizer=true", *files))
    part.attempt("texts", use.texts)
    part.attempt("server", use.server)
    for model in sorted(os.listdir(os.path.join(part.data, "hf_tiny"))):
        if model != "bert":
            part.attempt(f"tokens of {model}", lambda model=model: use.tokens_of(model))


main()
