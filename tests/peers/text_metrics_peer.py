"""BLEU, chrF, TER, ROUGE and error rates are those of sacrebleu, rouge_score and jiwer.

text_metrics_peer.py REDCO_LUA CORPUS [SEED [COUNT]]

The texts are random, and for TER also paragraphs of the file CORPUS with words moved.
"""
import json
import logging
import pathlib
import random
import subprocess
import sys
import tempfile

import jiwer
from rouge_score import rouge_scorer
from sacrebleu.metrics import BLEU, CHRF, TER

logging.getLogger("sacrebleu").setLevel(logging.ERROR)
program, corpus, *rest = sys.argv[1:]
draw = random.Random(int(rest[0]) if rest else 1)
count = int(rest[1]) if len(rest) > 1 else 300
script = pathlib.Path(__file__).parent / "text_metrics.lua"

WORDS = ["the", "The", "a", "cat", "cats", "running", "don't", "3.14", "1,000", "1,", "-", "--", "e.g.",
         "é", "É", "İstanbul", "ΣΑΣ", "ß", "日本", "語。", "한국", "…", "“x”", "&amp;", "&lt;", "<skipped>",
         "x-y", "2-3", "?!", "$5", "50%", "\u00a0", "\u2028", "\u3000", "\x1c", "\t", "\n", "", "naïve",
         "İ", "K", "foo_bar", "#tag", "—", "١٢", "²", "happily", "flies", "died", "agreed", "sses"]
PARAGRAPHS = [" ".join(each.split()[:draw.randint(1, 70)])
              for each in pathlib.Path(corpus).read_text().split("\n\n") if each.strip()]
ROUGE = ["rouge1", "rouge2", "rouge3", "rougeL", "rougeLsum"]


def random_text():
    words = draw.choices(WORDS, k=draw.choice([0, 1, 2, 5, 12]))
    return draw.choice([" ", " ", " ", "  ", "\n"]).join(words)


def changed(text):
    words = text.split(" ")
    for _ in range(draw.randrange(3)):
        words[draw.randrange(len(words))] = draw.choice(WORDS)
    if draw.random() < 0.3:
        draw.shuffle(words)
    return " ".join(words)


def by_reference(references):
    """The references as sacrebleu takes them: the first of each example, the second, and so on."""
    most = max(map(len, references))
    return [[own[i] if i < len(own) else None for own in references] for i in range(most)]


def bleu(predictions, references):
    options = {"tokenize": draw.choice(["13a", "intl", "char", "none"]),
               "smooth_method": draw.choice(["exp", "floor", "add-k", "none"]),
               "lowercase": draw.random() < 0.5}
    is_short = draw.random() < 0.5
    if options["smooth_method"] in ("floor", "add-k") and draw.random() < 0.5:
        options["smooth_value"] = draw.choice([0.1, 0.5, 2.0])
    found = BLEU(effective_order=is_short, **options).corpus_score(
        predictions, by_reference(references))
    return ({**options, "use_effective_order": is_short},
            [found.score, found.bp, found.sys_len, found.ref_len, *found.precisions])


def chrf(predictions, references):
    options = {"char_order": draw.choice([4, 6]), "word_order": draw.choice([0, 2]),
               "beta": draw.choice([1, 2, 3]), "lowercase": draw.random() < 0.5}
    return options, [CHRF(**options).corpus_score(predictions, by_reference(references)).score]


def ter(predictions, references):
    options = {name: draw.random() < 0.5
               for name in ["normalized", "no_punct", "asian_support", "case_sensitive"]}
    if draw.random() < 0.6:  # longer ones, with spans that moved
        references[:] = [[draw.choice(PARAGRAPHS) for _ in own] for own in references]
        predictions[:] = [moved(draw.choice(own)) for own in references]
    found = TER(**options).corpus_score(predictions, by_reference(references))
    return options, [found.score, found.num_edits, found.ref_length]


def moved(text):
    words = changed(text).split(" ")
    for _ in range(draw.randrange(5)):
        first, to = draw.randrange(len(words)), draw.randrange(len(words))
        span = words[first:first + draw.randint(1, 12)]
        del words[first:first + len(span)]
        words[to:to] = span
    return " ".join(words[:draw.choice([None, None, 5])])


def rouge(predictions, references):
    options = {"use_stemmer": draw.random() < 0.5, "rouge_types": ROUGE}
    scorer = rouge_scorer.RougeScorer(ROUGE, use_stemmer=options["use_stemmer"])
    scores = [scorer.score_multi(own, text) for text, own in zip(predictions, references)]
    return options, [sum(score[name].fmeasure for score in scores) / len(scores) for name in ROUGE]


def error_rates(predictions, references):
    references[:] = [own[0] + "x" for own in references]  # not empty
    return {}, [jiwer.wer(references, predictions), jiwer.cer(references, predictions)]


cases = []
for i in range(count):
    references = [[random_text() for _ in range(draw.choice([1, 1, 2, 3]))]
                  for _ in range(draw.choice([1, 2, 4]))]
    predictions = [changed(draw.choice(own)) if draw.random() < 0.8 else random_text()
                   for own in references]
    metric = [bleu, chrf, ter, rouge, error_rates][i % 5]
    options, scores = metric(predictions, references)
    cases.append({"metric": metric.__name__, "predictions": predictions, "references": references,
                  "options": options, "scores": scores})

with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    json.dump(cases, file)
    file.flush()
    sys.exit(subprocess.run([program, script, file.name]).returncode)
