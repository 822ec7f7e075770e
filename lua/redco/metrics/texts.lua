--- BLEU and ROUGE together, for the evaluation of a model that writes texts.
local bleu = require "redco.metrics.bleu"
local registry = require "redco.registry"
local rouge = require "redco.metrics.rouge"

return {
  bleu_and_rouge = registry.define("redco.metrics.bleu_and_rouge", [[
bleu_and_rouge(key: string) -> function
Returns an `eval_metric_fn` for `Trainer:fit`. It compares each predicted text with
example[key], and returns the scores of `redco.metrics.rouge` with that of `redco.metrics.bleu` as
`bleu`.]], function(key)
    return function(examples, preds)
      local references = {}
      for i, example in ipairs(examples) do references[i] = example[key] end
      local scores = rouge.rouge(preds, references)
      scores.bleu = bleu.bleu(preds, references).score
      return scores
    end
  end),
}
