#!/usr/bin/env python3
"""`pentatron serve` as clients see it that others wrote.

usage: serving.py PROGRAM MODEL.gguf TASKS_FOLDER [PART...]

Parts: client (the openai package), scores (lm_eval's local-completions against `pentatron evaluate --tasks`), load (64 clients
for SECONDS, default 60), page (Chromium; pictures go to PICTURES if that is set). Default: all.
"""

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time

from server import Server

CLIENTS = 64
SECONDS = float(os.environ.get("SECONDS_OF_LOAD", "60"))


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")


def client_part(program, model):
    import openai

    with Server(program, model, "--name", "smol") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        check([m.id for m in client.models.list()] == ["smol"], "models.list")
        check(client.models.retrieve("smol").id == "smol", "models.retrieve")

        question = [{"role": "user", "content": "What is the capital of France?"}]
        options = {"model": "smol", "messages": question, "max_tokens": 24, "temperature": 0}
        whole = client.chat.completions.create(**options)
        text = whole.choices[0].message.content
        check("Paris" in text, f"the capital of France is {text!r}")
        check(whole.usage.completion_tokens > 3 and whole.usage.prompt_tokens > 20, f"usage {whole.usage}")
        chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        check(streamed == text, f"streamed {streamed!r}, whole {text!r}")
        check(chunks[-1].usage.completion_tokens == whole.usage.completion_tokens, "usage of the stream")
        again = client.chat.completions.create(**options)
        check(again.usage.prompt_tokens_details.cached_tokens % 64 == 0, "cached tokens")
        check(again.choices[0].message.content == text, "the same question has the same greedy answer")

        scored = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
        content = scored.choices[0].logprobs.content
        check(b"".join(bytes(t.bytes) for t in content).decode() == text, "bytes of the tokens are the text")
        check(all(t.logprob == t.top_logprobs[0].logprob for t in content), "greedy tokens are the likeliest")
        tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
        try:  # the template of this model has none
            client.chat.completions.create(**options, tools=tools)
            check(False, "tools were accepted")
        except openai.BadRequestError as refused:
            check(refused.param == "tools", f"tools: {refused}")

        seeded = [client.completions.create(model="smol", prompt="Once upon", max_tokens=12, seed=s).choices[0].text for s in (1, 1, 2)]
        check(seeded[0] == seeded[1] != seeded[2], f"seeds {seeded}")
        several = client.completions.create(model="smol", prompt=["One", "Two"], n=2, max_tokens=5)
        check([c.index for c in several.choices] == [0, 1, 2, 3], "two choices of two prompts")
        echo = client.completions.create(model="smol", prompt="The sky is", max_tokens=0, echo=True, logprobs=1)
        check(echo.choices[0].text == "The sky is" and len(echo.choices[0].logprobs.tokens) == 3, "echo")
        stopped = client.completions.create(model="smol", prompt="1, 2, 3,", max_tokens=20, temperature=0, stop=[" 6"])
        check(" 6" not in stopped.choices[0].text and stopped.choices[0].finish_reason == "stop", f"stop {stopped}")
        best = client.completions.create(model="smol", prompt="Once", max_tokens=5, best_of=3)
        check(len(best.choices) == 1, "best_of")

        for error, arguments in ((openai.NotFoundError, {"model": "gpt-4", "prompt": "a"}),
                                 (openai.BadRequestError, {"model": "smol", "prompt": "a", "logit_bias": {"5": 1}}),
                                 (openai.BadRequestError, {"model": "smol", "prompt": "a " * 20000})):
            try:
                client.completions.create(**arguments)
                check(False, f"{arguments} is refused")
            except error as refused:
                check(refused.body["message"], "an error has a message")

        generated = subprocess.run([program, "generate", model, "--prompt", "The capital of France is", "--temperature", "0",
                                    "--max-new-tokens", "40", "--json"], capture_output=True, text=True, check=True).stdout
        served = client.completions.create(model="smol", prompt="The capital of France is", temperature=0, max_tokens=40)
        check(served.choices[0].text == json.loads(generated)["text"], "the greedy text is that of pentatron generate")
        check(server.stop() == 0, "exit status")
    print("client: the openai package works")


def scores_part(program, model, tasks):
    """The same numbers as `pentatron evaluate --tasks`, which the tests compare with lm_eval's own models."""
    names = [n for n in ("choice", "last_word") if os.path.exists(f"{tasks}/{n}.yaml")] or ["yes_no", "cloze"]
    with tempfile.TemporaryDirectory() as folder, Server(program, model, "--name", "smol") as server:
        for name in os.listdir(tasks):
            if name.endswith((".yaml", ".jsonl")):
                with open(f"{tasks}/{name}", encoding="utf-8") as source, open(f"{folder}/{name}", "w", encoding="utf-8") as copy:
                    copy.write(source.read())
        subprocess.run([program, "convert", model, f"{folder}/tokenizer", "--format", "hf"], check=True, stderr=subprocess.DEVNULL)
        arguments = (f"model=smol,base_url={server.url}/v1/completions,tokenizer_backend=huggingface,tokenizer={folder}/tokenizer,"
                     "max_length=256,num_concurrent=8,max_retries=1,add_bos_token=False")
        subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--tasks",
                        ",".join(names), "--include_path", ".", "--output_path", "out.json"], cwd=folder, check=True,
                       env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = next(os.path.join(f, n) for f, _, all_names in os.walk(folder) for n in all_names
                      if n.endswith(".json") and "out" in os.path.join(f, n))
        with open(result, encoding="utf-8") as file:
            theirs = json.load(file)["results"]
        subprocess.run([program, "evaluate", model, "--tasks", ",".join(f"{name}.yaml" for name in names), "--out", "own.json",
                        "eval.max_length=256"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(f"{folder}/own.json", encoding="utf-8") as file:
            ours = json.load(file)["scores"]
    compared = 0
    for name in names:
        for metric, value in theirs[name].items():
            own = ours[name].get(metric.split(",")[0])
            if isinstance(value, float) and isinstance(own, float) and "stderr" not in metric:
                check(abs(value - own) <= 2e-3 * max(1, abs(own)), f"{name} {metric}: {value} over HTTP, {own} without")
                compared += 1
    check(compared >= 2, f"scores were compared: {theirs} {ours}")
    print(f"scores: lm_eval's local-completions gives the {compared} numbers of pentatron evaluate")


async def one_client(number, server, deadline, counts):
    """Asks until the time is over; leaves some answers half-read, and sends some requests that are broken."""
    import httpx

    rng = random.Random(number)
    limits = httpx.Timeout(120)
    async with httpx.AsyncClient(base_url=server.url, timeout=limits) as client:
        while time.monotonic() < deadline:
            kind = rng.random()
            if kind < 0.1:
                await broken_request(rng, server.port)
                counts["broken"] += 1
                continue
            body = {"prompt": "word " * rng.randint(1, 60) + str(rng.randint(0, 9)), "max_tokens": rng.randint(1, 40),
                    "temperature": rng.choice([0, 1])}
            if kind < 0.2:
                body["temperature"] = "hot"
                answer = await client.post("/v1/completions", json=body)
                check(answer.status_code == 400, f"a broken field: {answer.status_code}")
                counts["refused"] += 1
            elif kind < 0.4:
                async with client.stream("POST", "/v1/completions", json={**body, "stream": True, "max_tokens": 200}) as answer:
                    check(answer.status_code in (200, 429), f"a stream: {answer.status_code}")
                    async for _ in answer.aiter_lines():
                        if rng.random() < 0.3:
                            break  # and leaves
                counts["left"] += 1
            else:
                answer = await client.post("/v1/completions", json=body)
                check(answer.status_code in (200, 429), f"a request: {answer.status_code} {answer.text}")
                counts["finished" if answer.status_code == 200 else "full"] += 1


async def broken_request(rng, port):
    pieces = [b"GET", b" /v1/models HTTP/1.1\r\n", b"Host: localhost\r\n", b"\x00\xff\xfe", b"Content-Length: -5\r\n", b"\r\n\r\n",
              b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"prompt",
              b"A" * 20000]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(rng.randint(1, 4)):
            writer.write(rng.choice(pieces))
        await writer.drain()
        await asyncio.wait_for(reader.read(100), 0.2)
    except (OSError, asyncio.TimeoutError):
        pass
    finally:
        writer.close()


async def load(server, counts):
    start = time.monotonic()
    memory = {}

    async def watch():
        await asyncio.sleep(min(10, SECONDS / 3))
        memory["early"] = server.memory()

    await asyncio.gather(watch(), *(one_client(i, server, start + SECONDS, counts) for i in range(CLIENTS)))
    memory["late"] = server.memory()
    return memory


def load_part(program, model):
    counts = dict.fromkeys(("finished", "left", "refused", "broken", "full"), 0)
    with Server(program, model, "--max-batch", "16") as server:
        memory = asyncio.run(load(server, counts))
        check(server.process.poll() is None, "the server is still there")
        status = server.stop()
    ratio = memory["late"] / memory["early"]
    print(f"load: {CLIENTS} clients for {SECONDS:.0f} s: {counts}; memory {memory['early'] / 2**20:.0f} MiB early, "
          f"{memory['late'] / 2**20:.0f} MiB at the end ({ratio:.3f}); exit status {status}")
    check(status == 0 and counts["finished"] > 0, "the load ended well")
    check(ratio <= 1.05, "memory does not grow")


def page_part(program, model):
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    pictures = os.environ.get("PICTURES")

    def browser(width, height, dark):
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                               {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        scheme = "dark" if dark else "light"
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        return driver

    def picture(driver, name):
        if pictures:
            driver.save_screenshot(os.path.join(pictures, name + ".png"))

    with Server(program, model, "--name", "smol") as server:
        for name, width, height, dark in (("light", 1000, 700, False), ("phone_dark", 360, 640, True)):
            driver = browser(width, height, dark)
            try:
                driver.get(server.url + "/")
                wait = WebDriverWait(driver, 60)
                wait.until(lambda d: d.title.startswith("smol"))
                field = driver.switch_to.active_element
                check(field.get_attribute("id") == "input", "the message field has the focus")
                picture(driver, name + "_empty")
                field.send_keys("Say hello." + Keys.ENTER)
                wait.until(lambda d: d.find_element(By.ID, "stop").is_displayed())
                wait.until(lambda d: d.find_element(By.ID, "send").is_displayed())
                answers = [e.text for e in driver.find_elements(By.CSS_SELECTOR, ".assistant p")]
                check(len(answers) == 1 and answers[0], f"an answer: {answers}")
                picture(driver, name + "_answer")
                field.send_keys("Count from 1 to 500, and write every number." + Keys.ENTER)
                wait.until(lambda d: len(d.find_elements(By.CSS_SELECTOR, ".assistant p")) == 2
                           and len(d.find_elements(By.CSS_SELECTOR, ".assistant p")[1].text) > 5)
                driver.switch_to.active_element.send_keys(Keys.ESCAPE)
                wait.until(lambda d: d.find_element(By.ID, "send").is_displayed())
                picture(driver, name + "_stopped")
                check(driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"),
                      "nothing is wider than the window")
                unnamed = driver.execute_script(
                    "return [...document.querySelectorAll('input, textarea, select, button')].filter("
                    "e => !e.getAttribute('aria-label') && !e.textContent.trim() && !e.closest('label')).length")
                check(unnamed == 0, "every control has a name")
                driver.find_element(By.ID, "new").click()
                check(not driver.find_elements(By.CSS_SELECTOR, ".message"), "a new chat is empty")
                errors = [e for e in driver.get_log("browser") if e["level"] == "SEVERE"]
                check(not errors, f"errors of the page: {errors}")
            finally:
                driver.quit()
        with socket.create_connection(("127.0.0.1", server.port)) as probe:
            probe.sendall(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
            check(b" 421 " in probe.recv(100), "another host is refused")
    print("page: works in Chromium, wide and light, narrow and dark, with the keyboard")


def main(program, model, tasks, *parts):
    parts = parts or ("client", "scores", "load", "page")
    if "client" in parts:
        client_part(program, model)
    if "scores" in parts:
        scores_part(program, model, tasks)
    if "load" in parts:
        load_part(program, model)
    if "page" in parts:
        page_part(program, model)


if __name__ == "__main__":
    main(*sys.argv[1:])
