--- Scores of predictions against references, equal to those of the usual Python packages.
local registry = require "redco.registry"
local strict = require "redco.strict"

local metrics = {}

for _, part in ipairs { "rouge", "bleu", "chrf", "ter", "question_answering",
  "classification", "ranking", "regression", "retrieval", "correlation", "perplexity",
  "error_rates", "texts" } do
  for name, value in pairs(require("redco.metrics." .. part)) do metrics[name] = value end
end

return registry.define("redco.metrics", [[
redco.metrics
Scores of predictions against references. Each equals the score of the Python package that papers
usually report.]],
  strict("redco.metrics", metrics))
