"""What the reference packages give on real and on random text: metrics.py OUT.json"""
import json
import os
import random
import re
import string
import sys
from collections import Counter
from pathlib import Path

import sacrebleu
import scipy.stats
import sklearn.metrics
from nltk.stem.porter import PorterStemmer
from rouge_score.rouge_scorer import RougeScorer

ROOT = Path(__file__).resolve().parents[2]
TYPES = ['rouge1', 'rouge2', 'rouge4', 'rougeL', 'rougeLsum']
BLEU = [{}, {'lowercase': True}, {'tokenize': 'none'}, {'tokenize': 'char'}, {'tokenize': 'intl'},
        {'smooth_method': 'floor'}, {'smooth_method': 'floor', 'smooth_value': 0.3},
        {'smooth_method': 'add-k'}, {'smooth_method': 'none'}, {'use_effective_order': True}]
CHRF = [{}, {'word_order': 2}, {'lowercase': True}, {'char_order': 4, 'beta': 1}]
# Blanks, signs, marks and letters that the tokenizers and the lower case treat in their own ways.
ALPHABET = list('aaabthe AN  .,-!?\'"$%&<>()[]{}/\\_~+019\t\n\x1cßéÉñÑΣσς日本語„“”’—«»€£°½²٣…¿¡') + [
    '\xa0', '\u2009', '\u3000', '\u0301', '\u200b', 'K', 'Ω', '😀', '&amp;', '&quot;', '&lt;', '<skipped>', '-\n', ' the ']

IS_FULL = 'REDCO_TEST_FULL' in os.environ
rng = random.Random(7)


def changed(text):
    """`text` with words dropped, doubled, swapped, put in upper case; lines with some joined."""
    words = [w for w in re.split(r'(?<=\s)', text) if rng.random() > 0.2]
    for _ in range(rng.randrange(4)):
        if len(words) > 1:
            i = rng.randrange(len(words) - 1)
            words[i], words[i + 1] = words[i + 1], rng.choice([words[i], words[i].upper()])
    return ''.join(words)


def corpus():
    lines = (ROOT / 'examples/language_modeling/data/corpus.txt').read_text().split('\n')
    starts = rng.sample(range(len(lines) - 6), 250 if IS_FULL else 60)
    return ['\n'.join(lines[i:i + rng.randint(1, 6)]) for i in starts]


def spanish():
    cases = json.loads((ROOT / 'tests/cases/metrics/metrics.json').read_text())['cases']
    return [case['reference'] for case in cases]


def noise():
    return [''.join(rng.choices(ALPHABET, k=rng.randrange(60))) for _ in range(400)]


def normalized(text):
    text = ''.join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r'\b(a|an|the)\b', ' ', text).split()


def squad(prediction, references):
    exact, f1 = 0, 0
    for reference in references:
        p, r = normalized(prediction), normalized(reference)
        same = sum((Counter(p) & Counter(r)).values())
        exact = max(exact, p == r)
        f1 = max(f1, 2 * same / (len(p) + len(r)) if same else 0)
    return exact, f1


def chrf(predictions, by_place, options):
    return sacrebleu.CHRF(**options).corpus_score(predictions, by_place).score


def bleu(score):
    names = 'score', 'counts', 'totals', 'precisions', 'bp', 'sys_len', 'ref_len'
    return {name: getattr(score, name) for name in names}


def group(texts):
    references = [[text, changed(text)] for text in texts]
    predictions = [changed(text) for text in texts]
    if len(predictions) > 5:
        predictions[3], predictions[4] = references[3][0], ''
    by_place = [list(each) for each in zip(*references)]
    rouge = {}
    for name, stemming in ('plain', False), ('stemmed', True):
        scorer = RougeScorer(TYPES, use_stemmer=stemming)
        scores = [scorer.score_multi(r, p) for p, r in zip(predictions, references)]
        rouge[name] = [{t: [s[t].precision, s[t].recall, s[t].fmeasure] for t in TYPES}
                       for s in scores]
    answers = [squad(p, r) for p, r in zip(predictions, references)]
    return {
        'predictions': predictions, 'references': references, 'types': TYPES, 'rouge': rouge,
        'bleu': [[options, bleu(sacrebleu.corpus_bleu(predictions, by_place, **options))]
                 for options in BLEU],
        'sentence_bleu': [sacrebleu.sentence_bleu(p, r).score
                          for p, r in zip(predictions, references)],
        'chrf': [[options, chrf(predictions, by_place, options)] for options in CHRF],
        'squad': [100 * sum(values) / len(answers) for values in zip(*answers)],
    }


def classes(n):
    labels, found = rng.choices(range(n), k=200), rng.choices(range(n), k=200)
    averages = ['macro', 'micro', 'weighted'] + ['binary'] * (n == 2)
    return {'predictions': found, 'references': labels,
            'accuracy': sklearn.metrics.accuracy_score(labels, found),
            'matthews': float(sklearn.metrics.matthews_corrcoef(labels, found)),
            'balanced': float(sklearn.metrics.balanced_accuracy_score(labels, found)),
            'confusion': sklearn.metrics.confusion_matrix(labels, found).tolist(),
            'f1': {a: sklearn.metrics.f1_score(labels, found, average=a) for a in averages},
            'precision': {a: sklearn.metrics.precision_score(labels, found, average=a)
                          for a in averages},
            'recall': {a: sklearn.metrics.recall_score(labels, found, average=a)
                       for a in averages}}


def scores(n, values):
    """Scores, many of them equal if there are few values, of two classes."""
    labels = [1, 0] + rng.choices([0, 1], k=n - 2)
    found = [rng.randrange(values) / values + 0.2 * label for label in labels]
    fpr, tpr, thresholds = sklearn.metrics.roc_curve(labels, found, drop_intermediate=False)
    return {'scores': found, 'references': labels,
            'roc_auc': float(sklearn.metrics.roc_auc_score(labels, found)),
            'average_precision': float(sklearn.metrics.average_precision_score(labels, found)),
            'curve': {'fpr': fpr.tolist(), 'tpr': tpr.tolist(),
                      'thresholds': [1e300] + thresholds[1:].tolist()}}


def top_k(k):
    labels, found = rng.choices(range(6), k=50), [[rng.random() for _ in range(6)] for _ in range(50)]
    return {'k': k, 'scores': found, 'references': labels,
            'accuracy': float(sklearn.metrics.top_k_accuracy_score(labels, found, k=k,
                                                                   labels=range(6)))}


def numbers(values):
    found, references = rng.choices(values, k=100), rng.choices(values, k=100)
    return {'predictions': found, 'references': references,
            'mean_squared_error': float(sklearn.metrics.mean_squared_error(references, found)),
            'mean_absolute_error': float(sklearn.metrics.mean_absolute_error(references, found)),
            'r2': float(sklearn.metrics.r2_score(references, found)),
            'pearsonr': float(scipy.stats.pearsonr(found, references).statistic),
            'spearmanr': float(scipy.stats.spearmanr(found, references).statistic)}


stem = PorterStemmer().stem
words = set(re.findall('[a-z0-9]{3,}', ' '.join(corpus()).lower()))
words |= {a + b for a in rng.sample(sorted(words), 300)
          for b in ['ational', 'logi', 'alli', 'ed', 'ing', 'eed', 'y', 'ies', 'ousness', 'ion']}
json.dump({
    'groups': {'corpus': group(corpus()), 'spanish': group(spanish()), 'noise': group(noise())},
    'classes': [classes(2), classes(5)],
    'scores': [scores(2, 5), scores(50, 5), scores(500, 10**9)],
    'top_k': [top_k(1), top_k(3), top_k(6)],
    'numbers': [numbers([rng.gauss(3, 2) for _ in range(n)]) for n in (5, 1000)],
    'stems': {word: stem(word) for word in sorted(words)},
}, open(sys.argv[1], 'w'))
