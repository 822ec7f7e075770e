--- redco.metrics
local metrics = redco.metrics
local function eval_metric_fn(examples, preds)  -- for Trainer:fit
  local references = {}
  for i, example in ipairs(examples) do references[i] = example.target end
  return { exact_match = metrics.exact_match(preds, references) }
end
local examples = { { target = "yes" }, { target = "no" } }
print(eval_metric_fn(examples, { "yes", "yes" }).exact_match)  --> 0.5

--- redco.metrics.accuracy
local predictions = { "cat", "dog", "cat" }
local references = { "cat", "dog", "dog" }
print(redco.metrics.accuracy(predictions, references))  --> 0.66666666666667
local logits, labels = torch.tensor { { 0.1, 2 }, { 3, 0.2 } }, { 1, 1 }
print(redco.metrics.accuracy(logits:argmax(-1), labels))  --> 0.5

--- redco.metrics.bleu
local predictions = { "the cat sat on the mat today" }
local references = { { "the cat sat on a mat", "the cat sat on the mat" } }
local bleu = redco.metrics.bleu(predictions, references)
print(bleu.score, bleu.sys_len, bleu.ref_len)  --> 80.910671157022  7  6

--- redco.metrics.bleu_and_rouge
local eval_metric_fn = redco.metrics.bleu_and_rouge "summary"
local examples = { { text = "...", summary = "the cat sat on the mat" } }
local scores = eval_metric_fn(examples, { "the cat sat on a mat" })
print(scores.bleu, scores.rouge1, scores.rougeL)
--> 53.728496591177  0.83333333333333  0.83333333333333

--- redco.metrics.character_error_rate
local cer = redco.metrics.character_error_rate({ "kat" }, { "cat" })
print(cer)  --> 0.33333333333333

--- redco.metrics.chrf
local chrf = redco.metrics.chrf({ "the cat sat" }, { "the cats sat" })
print(chrf.score)  --> 68.660617377865

--- redco.metrics.exact_match
local predictions = { "Paris", "the Rhine" }
local references = { "Paris", { "Rhine", "the Rhein" } }
print(redco.metrics.exact_match(predictions, references))  --> 0.5

--- redco.metrics.f1
local predictions, references = { 1, 0, 1, 1 }, { 1, 0, 0, 1 }
print(redco.metrics.f1(predictions, references))  --> 0.8
print(redco.metrics.f1(predictions, references, { average = "macro" }))
--> 0.73333333333333

--- redco.metrics.perplexity
local logits = torch.zeros { 2, 5, 100 }  -- [batch, length, vocab_size]
local labels = torch.randint(0, 100, { 2, 5 })
print(("%.1f"):format(redco.metrics.perplexity(logits, labels)))  --> 100.0

--- redco.metrics.perplexity_from_losses
local losses, counts = { 3.2, 3.0 }, { 100, 300 }  -- of two batches
print(redco.metrics.perplexity_from_losses(losses, counts))
--> 21.115344422541
print(math.exp((3.2 * 100 + 3.0 * 300) / 400))  --> 21.115344422541

--- redco.metrics.rouge
local predictions = { "the cat sat on the mat" }
local references = { { "a cat sat on the mat", "the mat" } }
local rouge = redco.metrics.rouge(predictions, references)
print(rouge.rouge1, rouge.rouge2, rouge.rougeL)
--> 0.83333333333333  0.8  0.83333333333333

--- redco.metrics.rouge_score
local scores = redco.metrics.rouge_score("the cat sat", "the cat sat down")
print(scores.rouge1.precision, scores.rouge1.recall)  --> 1  0.75

--- redco.metrics.sentence_bleu
local prediction, reference = "the cat sat on a mat", "the cat sat on the mat"
local bleu = redco.metrics.sentence_bleu(prediction, reference)
print(bleu.score, bleu.precisions[1])  --> 53.728496591177  83.333333333333

--- redco.metrics.squad
local predictions = { "The Eiffel Tower", "in 1889" }
local references = { "eiffel tower", { "1889", "year 1889" } }
local scores = redco.metrics.squad(predictions, references)
print(scores.exact_match, scores.f1)  --> 50  83.333333333333

--- redco.metrics.matthews_correlation
local predictions, references = { 1, 1, 0, 0 }, { 1, 1, 0, 1 }
print(redco.metrics.matthews_correlation(predictions, references))
--> 0.57735026918963

--- redco.metrics.pearsonr
print(redco.metrics.pearsonr({ 0.1, 0.4, 0.5 }, { 1, 2, 3 }) > 0.9)  --> true

--- redco.metrics.spearmanr
print(redco.metrics.spearmanr({ 0.1, 0.5, 0.4 }, { 1, 2, 3 }))  --> 0.5

--- redco.metrics.precision
local predictions, references = { 1, 0, 1, 1 }, { 1, 0, 0, 1 }
print(redco.metrics.precision(predictions, references))
--> 0.66666666666667

--- redco.metrics.recall
local predictions, references = { 1, 0, 1, 1 }, { 1, 0, 0, 1 }
print(redco.metrics.recall(predictions, references))  --> 1

--- redco.metrics.balanced_accuracy
local predictions, references = { 1, 0, 1, 1 }, { 1, 0, 0, 1 }
print(redco.metrics.balanced_accuracy(predictions, references))
--> 0.75

--- redco.metrics.confusion_matrix
local predictions = { "cat", "dog", "cat" }
local references = { "cat", "dog", "dog" }
local matrix, classes =
  redco.metrics.confusion_matrix(predictions, references)
print(table.concat(classes, " "), matrix)
--> cat dog  tensor([[1, 0],
-->                  [1, 1]])

--- redco.metrics.roc_auc
local scores, references = { 0.1, 0.4, 0.35, 0.8 }, { 0, 0, 1, 1 }
print(redco.metrics.roc_auc(scores, references))  --> 0.75

--- redco.metrics.average_precision
local scores, references = { 0.1, 0.4, 0.35, 0.8 }, { 0, 0, 1, 1 }
print(redco.metrics.average_precision(scores, references))
--> 0.83333333333333

--- redco.metrics.roc_curve
local scores, references = { 0.1, 0.4, 0.35, 0.8 }, { 0, 0, 1, 1 }
local curve = redco.metrics.roc_curve(scores, references)
print(unpack(curve.tpr))  --> 0  0.5  0.5  1  1
print(unpack(curve.fpr))  --> 0  0  0.5  0.5  1

--- redco.metrics.top_k_accuracy
local logits = torch.tensor { { 0.1, 0.5, 0.4 }, { 0.6, 0.3, 0.1 } }
print(redco.metrics.top_k_accuracy(logits, { 2, 2 }, { k = 2 }))  --> 0.5

--- redco.metrics.mean_squared_error
local predictions, references = { 2.5, 0, 2, 8 }, { 3, -0.5, 2, 7 }
print(redco.metrics.mean_squared_error(predictions, references))
--> 0.375

--- redco.metrics.mean_absolute_error
local predictions, references = { 2.5, 0, 2, 8 }, { 3, -0.5, 2, 7 }
print(redco.metrics.mean_absolute_error(predictions, references))
--> 0.5

--- redco.metrics.r2
local predictions, references = { 2.5, 0, 2, 8 }, { 3, -0.5, 2, 7 }
print(redco.metrics.r2(predictions, references))
--> 0.94860813704497

--- redco.metrics.ter
local ter = redco.metrics.ter({ "the cat sat on the mat" },
  { "on the mat the cat sat" })
print(ter.score)  --> 16.666666666667

--- redco.metrics.word_error_rate
local predictions = { "two three", "one nine four" }
local references = { "two three", "one five four" }
print(redco.metrics.word_error_rate(predictions, references))  --> 0.2

--- redco.metrics.mean_reciprocal_rank
local scores = torch.tensor { { 0.9, 0.2, 0.5 }, { 0.1, 0.8, 0.3 } }
print(redco.metrics.mean_reciprocal_rank(scores, { 3, 2 }))  --> 0.75

--- redco.metrics.ndcg_at_k
local scores = torch.tensor { { 0.9, 0.2, 0.5 }, { 0.1, 0.8, 0.3 } }
local ndcg = redco.metrics.ndcg_at_k(scores, { { 1, 2 }, 2 }, { k = 3 })
print(("%.4f"):format(ndcg))  --> 0.9599

--- redco.metrics.recall_at_k
local scores = torch.tensor { { 0.9, 0.2, 0.5 }, { 0.1, 0.8, 0.3 } }
print(redco.metrics.recall_at_k(scores, { 3, 2 }, { k = 1 }))  --> 0.5
