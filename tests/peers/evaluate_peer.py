"""Scores of tiny models on local tasks beside those of lm-evaluation-harness: scores, standard
errors, and of each document the prompts, the answers and the log-likelihoods.

evaluate_peer.py REDCO_LUA SOURCE
"""
import json
import logging
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LOGLEVEL": "ERROR",
               "DISABLE_MULTIPROC": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}

import datasets
import torch
import transformers
import yaml
from lm_eval import evaluate, tasks
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.api.group import Group
from lm_eval.tasks.hellaswag.utils import process_docs
from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer
from lm_eval.tasks.winogrande import preprocess_winogrande
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

program, source = sys.argv[1:]
torch.set_num_threads(1)
logging.disable(logging.WARNING)
datasets.disable_progress_bars()
evaluation = Path(source) / "examples/evaluation"
own_tasks = Path(tasks.__file__).parent


def yaml_of(path):
    """A task of the harness, without the functions in it."""
    class Loader(yaml.SafeLoader):
        pass
    Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    return yaml.load((own_tasks / path).read_text(), Loader)


scratch = Path(tempfile.mkdtemp())


def write_rows(name, rows):
    path = scratch / name
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


# ---- models: folders of the tests, and one with a template of conversations and a longer context

def save_models():
    config = transformers.LlamaConfig(
        vocab_size=768, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=400, initializer_range=0.4,
        bos_token_id=767, eos_token_id=767)
    torch.manual_seed(2)
    transformers.LlamaForCausalLM(config).save_pretrained(scratch / "chat")
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{source}/tests/cases/gpt2")
    tokenizer.model_max_length = 400
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}")
    tokenizer.save_pretrained(scratch / "chat")
    for name in ("gpt2", "llama"):
        shutil.copytree(f"{source}/tests/cases/{name}", scratch / name)


# ---- tasks, as the harness has them and as a table of redco.evaluate

jobs = []


def add(name, model, config, data, fewshot=None, task=None, options=None, functions=None):
    """A task of the harness over JSON lines. `task` is a path of redco.evaluate's, by default a table
    with the same fields. `functions` are Python's in the harness's task."""
    harness = {**config, **(functions or {}), "task": name, "dataset_path": "json",
               "dataset_name": None, "test_split": "test", "validation_split": None,
               "training_split": None, "dataset_kwargs": {"data_files": {
                   "test": str(data), **({"train": str(fewshot)} if fewshot else {})}}}
    harness["fewshot_split"] = "train" if fewshot else "test"
    for key in ("tag", "should_decontaminate", "doc_to_decontamination_query"):
        harness.pop(key, None)
    if task is None:
        task = {key: value for key, value in harness.items()
                if key in ("doc_to_text", "doc_to_target", "doc_to_choice", "output_type",
                           "metric_list", "filter_list", "generation_kwargs", "num_fewshot",
                           "description", "target_delimiter", "fewshot_delimiter", "task",
                           "fewshot_config", "repeats")}
        task["data"] = str(data)
        if fewshot:
            task["fewshot_data"] = str(fewshot)
    jobs.append({"name": name, "model": str(scratch / model), "harness": harness, "task": task,
                 "options": options or {}})


rng = random.Random(7)
words = "the a sea lamp red blue dog cat runs sleeps near far day night tree bread été naïve 海".split()


def sentence(n):
    return " ".join(rng.choice(words) for _ in range(n))


questions = [{"q": sentence(rng.randint(3, 20)), "options": [sentence(rng.randint(1, 5))
              for _ in range(rng.randint(2, 5))], "answer": 0} for _ in range(30)]
for question in questions:
    question["answer"] = rng.randrange(len(question["options"]))
questions.append(dict(questions[0]))  # twice: an example that is the document itself is left out
test_file = write_rows("test.jsonl", questions)
train_file = write_rows("train.jsonl", [
    {"q": sentence(4), "options": [sentence(2), sentence(3)], "answer": rng.randrange(2)}
    for _ in range(25)])

choice = {"output_type": "multiple_choice", "doc_to_text": "Q: {{q}}\nA:", "doc_to_choice": "options",
          "doc_to_target": "answer",
          "metric_list": [{"metric": m} for m in ("acc", "acc_norm", "acc_bytes", "exact_match")]}
letters = {**choice, "doc_to_choice": ["A", "B"], "doc_to_target": "{{answer % 2}}",
           "doc_to_text": "{{q}}\n{% for o in options[:2] %}{{'AB'[loop.index0]}}. {{o}}\n{% endfor %}"
                          "Answer:"}


def add_all():
    for model in ("gpt2", "llama", "chat"):
        add(f"arc_{model}", model, yaml_of("arc/arc_easy.yaml"), evaluation / "data/arc.jsonl",
            task=str(evaluation / "arc_easy.toml"))
        add(f"hellaswag_{model}", model, yaml_of("hellaswag/hellaswag.yaml"),
            evaluation / "data/hellaswag.jsonl", task=str(evaluation / "hellaswag.lua"),
            functions={"process_docs": process_docs})
        add(f"gsm8k_{model}", model,
            {**yaml_of("gsm8k/gsm8k.yaml"), "generation_kwargs": {
                "until": ["Question:", "</s>", "<|im_end|>"], "do_sample": False,
                "temperature": 0.0, "max_gen_toks": 24}},
            evaluation / "data/gsm8k_test.jsonl", evaluation / "data/gsm8k_train.jsonl",
            options={"batch_size": 3})
        add(f"wikitext_{model}", model, yaml_of("wikitext/wikitext.yaml"),
            evaluation / "data/wikitext.jsonl", task=str(evaluation / "wikitext.lua"),
            functions={"doc_to_target": wikitext_detokenizer, "process_results": process_results})
        add(f"last_word_{model}", model, {
            "output_type": "loglikelihood", "doc_to_text": "{{text.split(' ')[:-1] | join(' ')}}",
            "doc_to_target": "{{' ' + text.split(' ')[-1]}}",
            "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]},
            evaluation / "data/last_word.jsonl", task=str(evaluation / "last_word.toml"))
        for shots in (0, 2):
            add(f"winogrande_{shots}_{model}", model, yaml_of("winogrande/default.yaml"),
                evaluation / "data/winogrande.jsonl", task=str(evaluation / "winogrande.lua"),
                functions={**{key: getattr(preprocess_winogrande, key) for key in (
                    "doc_to_text", "doc_to_target", "doc_to_choice")}, "num_fewshot": shots},
                options={"num_fewshot": shots})
        add(f"empty_prompt_{model}", model, {**choice, "doc_to_text": "", "target_delimiter": ""},
            test_file)
    for name, more, fewshot, options in (
        ("zero", {}, None, {}),
        ("own", {"num_fewshot": 2, "description": "Choose well.\n\n"}, None, {"seed": 5}),
        ("other", {"num_fewshot": 6, "fewshot_delimiter": "\n"}, train_file, {}),
        ("first", {"num_fewshot": 3, "fewshot_config": {"sampler": "first_n"}}, train_file, {}),
        ("first_own", {"num_fewshot": 3, "fewshot_config": {"sampler": "first_n"}}, None, {}),
        ("limit", {"num_fewshot": 1}, train_file, {"limit": 11}),
        ("share", {}, None, {"limit": 0.4}),
        ("talk", {"num_fewshot": 2, "description": "{{q}} in short."}, train_file,
         {"apply_chat_template": True}),
        ("short", {"num_fewshot": 4}, train_file, {"max_length": 37}),
    ):
        add(f"choice_{name}", "chat", {**choice, **more}, test_file, fewshot, options=options)
        add(f"letters_{name}", "chat", {**letters, **more}, test_file, fewshot, options=options)
    text = {"output_type": "generate_until", "doc_to_text": "{{q}}\n\n", "doc_to_target": "{{options}}",
            "generation_kwargs": {"until": ["\n", "e", " sea"], "max_gen_toks": 9}}
    add("several_answers", "chat", text, write_rows("answers.jsonl", answers(questions)),
        options={"batch_size": 7})
    add("prompt_by_choice", "chat", {
        **choice, "doc_to_text": "{{answer}}", "doc_to_target": "{{q}}"}, test_file,
        options={"apply_chat_template": True})
    add("two_classes", "chat", {**letters, "metric_list": [
        {"metric": m} for m in ("acc", "f1", "mcc", "brier_score")]}, test_file)
    add("corpus", "chat", {**text, "doc_to_target": "{{wanted}}", "metric_list": [
        {"metric": m} for m in ("bleu", "chrf", "chrf++", "ter")]},
        write_rows("corpus.jsonl", answers(questions)))
    add("majority", "chat", {**text, "doc_to_target": "{{wanted}}", "repeats": 3, "filter_list": [
        {"name": "maj@3", "filter": [
            {"function": "regex", "regex_pattern": r"(\w+)"}, {"function": "take_first_k", "k": 3},
            {"function": "majority_vote"}, {"function": "take_first"}]}]},
        write_rows("majority.jsonl", answers(questions)))
    add("stop_in_prompt", "gpt2", {
        **text, "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": 12}}, test_file)
    for name, options in (("ignoring", {"ignore_case": True, "ignore_punctuation": True,
                                        "ignore_numbers": True}),
                          ("without", {"regexes_to_ignore": ["[^a-zA-Z]", "(?i)E|o"]})):
        add(f"exact_{name}", "chat", {
            **text, "doc_to_target": "{{wanted}}", "metric_list": [
                {"metric": "exact_match", **options}],
            "filter_list": [
                {"name": "plain", "filter": [{"function": "take_first"}]},
                {"name": "words", "filter": [
                    {"function": "regex", "regex_pattern": r"(\w+)\W+(\w*)|(\W+)"},
                    {"function": "lowercase"}, {"function": "take_first"}]},
                {"name": "last", "filter": [
                    {"function": "remove_whitespace"},
                    {"function": "regex", "regex_pattern": r"[aeiou]\S*", "group_select": -1,
                     "fallback": "none"}, {"function": "take_first"}]}]},
            write_rows("wanted.jsonl", answers(questions)))


def answers(rows):
    """Rows of which some have the text that the model writes as an answer."""
    lm = HFLM(pretrained=str(scratch / "chat"), device="cpu", batch_size=4)
    found = []
    for i, row in enumerate(rows):
        ids = lm.tokenizer(row["q"] + "\n\n", return_tensors="pt")
        out = lm.model.generate(**ids, max_new_tokens=9, do_sample=False, pad_token_id=767)
        text = lm.tokenizer.decode(out[0, ids.input_ids.shape[1]:], skip_special_tokens=True)
        for stop in ("\n", "e", " sea"):
            text = text.split(stop)[0]
        own = [text] if i % 3 == 0 else []
        found.append({**row, "options": own + row["options"], "wanted":
                      text.upper() + "!7" if i % 2 == 0 else row["options"][0]})
    return found


# ---- comparison

failures = compared = 0


def expect(name, what, found, expected):
    global failures, compared
    compared += 1
    if isinstance(expected, bool | str) or not isinstance(expected, int | float):
        same = found == expected
    else:
        same = isinstance(found, int | float) and (
            abs(found - expected) <= 1e-4 * max(1, abs(expected)))
    if not same:
        failures += 1
        print(f"{name}: {what}: {found!r}, expected {expected!r}")


def compare(job, found):
    options, name = job["options"], job["name"]
    lm = HFLM(pretrained=job["model"], device="cpu", batch_size=4, dtype="float32",
              **({"max_length": options["max_length"]} if "max_length" in options else {}))
    talks = options.get("apply_chat_template", False)
    task = ConfigurableTask(config=dict(job["harness"]))
    task.set_fewshot_seed(options.get("seed", 1234))
    result = evaluate(
        lm=lm, task_dict={"tasks": {name: task}}, bootstrap_iters=2000, log_samples=True,
        limit=options.get("limit"), apply_chat_template=talks, fewshot_as_multiturn=talks)
    expected = result["results"][name]
    for key, value in expected.items():
        if "," in key:
            expect(name, key, found["results"].get(key), value)
    surplus = [key for key in found["results"] if "," in key and key not in expected]
    expect(name, "other scores", surplus, [])
    expect(name, "n-samples", found["n_samples"], result["n-samples"][name])
    expect(name, "higher_is_better", found["higher_is_better"], result["higher_is_better"][name])
    samples = result["samples"][name]
    expect(name, "number of samples", len(found["samples"]), len(samples))
    for ours, theirs in zip(found["samples"], samples, strict=False):
        place = f"{name}, document {theirs['doc_id']}, {theirs['filter']}"
        expect(place, "filter", ours["filter"], theirs["filter"])
        for a, b in zip(ours["arguments"], theirs["arguments"], strict=True):
            expect(place, "prompt", a[0], b[0])
            if isinstance(b[-1], str):
                expect(place, "continuation", a[-1], b[-1])
        for a, b in zip(ours["filtered_resps"], theirs["filtered_resps"], strict=True):
            if isinstance(b, tuple | list):
                expect(place, "log-likelihood", a[0], b[0])
                expect(place, "is_greedy", a[1], b[1])
            else:
                expect(place, "answer", a, b)


def compare_group(found):
    """A group in a group of three tasks, by sizes and not."""
    lm = HFLM(pretrained=str(scratch / "gpt2"), device="cpu", batch_size=4, dtype="float32")
    own = {job["name"]: ConfigurableTask(config=dict(job["harness"])) for job in jobs
           if job["name"] in group_tasks}
    inner = Group.from_config({"group": "inner", "task": group_tasks[1:], "aggregate_metric_list": [
        {"metric": "acc", "weight_by_size": False}]})
    outer = Group.from_config({"group": "outer", "task": [group_tasks[0], "inner"],
                               "aggregate_metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]})
    for name in group_tasks[1:]:
        inner.add(own[name])
    outer.add(own[group_tasks[0]])
    outer.add(inner)
    expected = evaluate(lm=lm, task_dict={"tasks": own, "groups": {"inner": inner, "outer": outer}},
                        bootstrap_iters=2000)
    for name in ("inner", "outer"):
        for key, value in expected["results"][name].items():
            if key != "sample_count":
                expect(name, key, found[name].get(key), value)
                expect(name, key, expected["groups"][name].get(key), value)


def compare_strides():
    """The harness has no option for overlapping windows, but the function."""
    lm = HFLM(pretrained=str(scratch / "llama"), device="cpu", batch_size=4)
    rows = [json.loads(line)["page"] for line in open(evaluation / "data/wikitext.jsonl")]
    total = 0
    for page in rows:
        windows = get_rolling_token_windows(lm.tok_encode(page), lm.prefix_token_id, 40, 40 - 15 + 1)
        pairs = [(None, *make_disjoint_window(window)) for window in windows]
        lm._max_length = 40
        total += sum(nll for nll, _ in lm._loglikelihood_tokens(pairs, disable_tqdm=True))
    return math.exp(-total / sum(len(page.encode()) for page in rows))


save_models()
add_all()
group_tasks = ["arc_gpt2", "winogrande_0_gpt2", "empty_prompt_gpt2"]
named = {job["name"]: job["task"] for job in jobs}
rows = [{**named["empty_prompt_gpt2"]}, named["arc_gpt2"], named["winogrande_0_gpt2"]]
group = {"group": "outer", "aggregate_metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
         "task": [rows[1], {"group": "inner", "task": [rows[2], rows[0]], "aggregate_metric_list": [
             {"metric": "acc", "weight_by_size": False}]}]}
stride = {"task": "stride", "data": str(evaluation / "data/wikitext.jsonl"), "stride": 15,
          "output_type": "loglikelihood_rolling", "doc_to_target": "page"}
(scratch / "jobs.json").write_text(json.dumps(
    [{"model": job["model"], "task": job["task"], "options": job["options"]} for job in jobs]
    + [{"model": str(scratch / "llama"), "task": stride, "options": {"max_length": 40}},
       {"model": str(scratch / "gpt2"), "task": group, "options": {}}]))
subprocess.run([program, f"{source}/tests/peers/evaluate.lua", scratch], check=True)
results = json.loads((scratch / "found.json").read_text())
for job, found in zip(jobs, results, strict=False):
    compare(job, found)
compare_group(results[-1]["groups"])
expect("stride", "byte_perplexity", results[-2]["results"]["byte_perplexity,none"],
       compare_strides())
shutil.rmtree(scratch)
print(f"{len(jobs)} tasks, {compared} comparisons, {failures} differences")
sys.exit(failures > 0)
