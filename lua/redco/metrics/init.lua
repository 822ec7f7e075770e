--- Scores of predictions against references, with the figures of the packages that papers report.
local metrics = {}

for _, part in ipairs { "rouge", "bleu", "chrf", "question_answering", "classification",
  "perplexity" } do
  for name, value in pairs(require("redco.metrics." .. part)) do metrics[name] = value end
end

return metrics
