"""OpenAI's own client talks with `redco-lua serve`.

serve_peer.py REDCO_LUA SOURCE
"""
import enum
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Annotated, Literal, Optional

import openai
import pydantic

program, source = sys.argv[1:]
folder = pathlib.Path(tempfile.mkdtemp())
model = folder / "tiny"
shutil.copytree(pathlib.Path(source, "tests/cases/llama"), model)
settings = model / "tokenizer_config.json"
config = json.loads(settings.read_text())
config["chat_template"] = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}")
settings.write_text(json.dumps(config))

server = subprocess.Popen(
    [program, "serve", str(model), "--port", "0", "--max-rows", "3", "--max-queue", "60"],
    stdout=subprocess.PIPE, text=True, env={**os.environ, "REDCO_SERVE_TOKEN": "secret"})
url = server.stdout.readline().split()[-1]
client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0)
hi = [{"role": "system", "content": "S"}, {"role": "user", "content": "the sea"}]


def chat(**more):
    return client.chat.completions.create(**{
        "model": "tiny", "messages": hi, "max_tokens": 8, "temperature": 0, **more})


def complete(**more):
    return client.completions.create(**{
        "model": "tiny", "prompt": "the sea", "max_tokens": 8, "temperature": 0, **more})


def written(command, *words, said=b""):
    return subprocess.run([program, command, str(model), "--max-new-tokens", "8", *words],
                          check=True, capture_output=True, input=said).stdout[:-1].decode()


def expect_raises(kind, request, *parts, param=None):
    try:
        request()
    except kind as error:
        assert type(error) is kind, error
        for part in parts:
            assert part in str(error), error
        assert param is None or error.param == param, error.param
    else:
        raise AssertionError(f"no {kind.__name__}")


try:
    assert [each.id for each in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "redco-lua"

    # Answers, whole and streamed.
    text = written("generate", "the sea")
    answer = complete()
    assert answer.choices[0].text == text, (answer.choices[0].text, text)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == 8 + answer.usage.prompt_tokens
    answer = chat()
    assert answer.object == "chat.completion" and answer.model == "tiny"
    message = answer.choices[0].message
    assert message.role == "assistant"
    said = written("chat", "--system", "S", said=b"the sea")
    assert message.content == said, (message.content, said)
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(each.choices[0].delta.content or "" for each in chunks[:-1]) == message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage == answer.usage and not chunks[-1].choices
    assert "".join(each.choices[0].text for each in complete(stream=True)) == text
    with client.chat.completions.stream(model="tiny", messages=hi, max_tokens=8,
                                        temperature=0, stop=said[-2:]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == said[:said.find(said[-2:])]

    # Samples.
    samples = chat(n=3, temperature=1.5, seed=7)
    texts = [each.message.content for each in samples.choices]
    assert [each.index for each in samples.choices] == [0, 1, 2] and len(set(texts)) > 1
    again = chat(n=3, temperature=1.5, seed=7, top_p=1)
    assert [each.message.content for each in again.choices] == texts
    assert [each.text for each in complete(prompt=["the sea", "a"]).choices][0] == text

    # Log-probabilities.
    content = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(content) == 8
    for each in content:
        assert each.logprob <= 0 and len(each.top_logprobs) == 2
        assert each.logprob == each.top_logprobs[0].logprob  # greedy
        assert bytes(each.bytes).decode(errors="replace") == each.token, each
    assert chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    logprobs = complete(logprobs=2).choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 8
    streamed = [entry for each in chat(stream=True, logprobs=True)
                if each.choices[0].logprobs for entry in each.choices[0].logprobs.content]
    assert [each.token for each in streamed] == [each.token for each in content]
    stop = text[3:6]
    assert complete(stop=[stop]).choices[0].text == text[:text.find(stop)]

    # Penalties and biases: of a token that a bias makes the likeliest, and of the next one.
    two = complete(logit_bias={"40": 100, "41": 99.5}, logprobs=0).choices[0].logprobs.tokens
    assert len(set(two)) == 1, two
    both = complete(logit_bias={"40": 100, "41": 95}, frequency_penalty=2, logprobs=0)
    assert set(both.choices[0].logprobs.tokens) > set(two), both

    # Pydantic's schemas, which the client reads the answer with.
    no_blanks = {str(i): -100 for i in range(3, 259) if i - 3 in b"\t\n"}  # <0x09> and <0x0A>

    class Kind(enum.Enum):
        sea = "sea"
        sky = "sky"

    class Answer(pydantic.BaseModel):
        k: Kind
        n: Literal[1, 22]
        b: Optional[bool]
        w: Annotated[list[Literal["x"]], pydantic.Field(max_length=1)]

    kinds = set()
    for seed in range(8):
        parsed = client.chat.completions.parse(
            model="tiny", messages=hi[1:], temperature=1.5, seed=seed, logit_bias=no_blanks,
            response_format=Answer).choices[0].message.parsed
        kinds.add((parsed.k, parsed.n, parsed.b, len(parsed.w)))
    assert len(kinds) > 2, kinds

    # Errors have the client's types.
    bad = openai.BadRequestError
    expect_raises(bad, lambda: chat(temperature=3), "from 0 to 2", param="temperature")
    expect_raises(bad, lambda: chat(max_tokens=1000), "together", param="max_tokens")
    expect_raises(bad, lambda: chat(frequency_penalty=2.5), "from -2 to 2")
    expect_raises(bad, lambda: chat(tool_choice="required", tools=[]), param="tool_choice")
    expect_raises(bad, lambda: chat(response_format={"type": "grammar"}), param="response_format")
    expect_raises(bad, lambda: chat(logit_bias={"5": 1000}), param="logit_bias")
    expect_raises(bad, lambda: chat(extra_body={"unheard": 1}), "unheard", param="unheard")
    expect_raises(bad, lambda: chat(messages=[]), param="messages")
    expect_raises(openai.NotFoundError, lambda: chat(model="gpt-5"), "tiny")
    expect_raises(openai.NotFoundError, lambda: client.embeddings.create(model="tiny", input="a"))
    stranger = openai.OpenAI(base_url=url, api_key="wrong", max_retries=0)
    expect_raises(openai.AuthenticationError, stranger.models.list, "token")

    # More requests than fit, from many threads: each is answered or told to come again.
    counts = {"fine": 0, "busy": 0}
    lock = threading.Lock()

    def ask():
        try:
            kind = "fine" if complete(max_tokens=30).choices[0].text.startswith(text) else "wrong"
        except openai.RateLimitError:
            kind = "busy"
        with lock:
            counts[kind] += 1

    threads = [threading.Thread(target=ask) for _ in range(200)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert counts["fine"] >= 63 and sum(counts.values()) == 200, counts
    patient = client.with_options(max_retries=5)
    assert patient.completions.create(model="tiny", prompt="the sea", max_tokens=8,
                                      temperature=0).choices[0].text == text

    # A stream that is left, and the end: SIGTERM lets the open answer finish.
    left = chat(stream=True, max_tokens=30)
    next(iter(left))
    left.close()
    last = chat(stream=True, max_tokens=30)
    first = next(iter(last))
    server.send_signal(signal.SIGTERM)
    assert [each.choices[0].finish_reason for each in last][-1] == "length"
    assert server.wait(60) == 0
finally:
    server.kill()
    shutil.rmtree(folder)
print("fine")
