-- text_metrics.lua FILE: checks the scores of text_metrics_peer.py, and reports all that differ.
local redco = require "redco"

local metrics = redco.metrics

-- The scores by metric, in the order of text_metrics_peer.py.
local scores_of = {
  bleu = function(...)
    local found = metrics.bleu(...)
    return { found.score, found.bp, found.sys_len, found.ref_len, unpack(found.precisions) }
  end,
  chrf = function(...) return { metrics.chrf(...).score } end,
  ter = function(...)
    local found = metrics.ter(...)
    return { found.score, found.num_edits, found.ref_length }
  end,
  rouge = function(predictions, references, options)
    local found, list = metrics.rouge(predictions, references, options), {}
    for i, name in ipairs(options.rouge_types) do list[i] = found[name] end
    return list
  end,
  error_rates = function(...)
    return { metrics.word_error_rate(...), metrics.character_error_rate(...) }
  end,
}

local n_cases, n_wrong = 0, 0
for i, case in ipairs(redco.data.json(arg[1])) do
  local found = scores_of[case.metric](case.predictions, case.references, case.options)
  for k, expected in ipairs(case.scores) do
    local off = math.abs(found[k] - expected)
    if off > 1e-9 * math.max(1, math.abs(expected)) or off ~= off then
      print(("case %d, %s: score %d is %.17g, expected %.17g"):format(i, case.metric, k, found[k],
        expected))
      n_wrong = n_wrong + 1
    end
  end
  n_cases = i
end
print(("%d cases, %d scores differ"):format(n_cases, n_wrong))
if n_wrong > 0 then os.exit(1) end
