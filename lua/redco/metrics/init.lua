--- Scores of predictions against references, with the figures of the packages that papers report.
local registry = require "redco.registry"

local metrics = {}

for _, part in ipairs { "rouge", "bleu", "chrf", "question_answering", "classification",
  "perplexity" } do
  for name, value in pairs(require("redco.metrics." .. part)) do metrics[name] = value end
end

return registry.define("redco.metrics", [[
redco.metrics
Scores of predictions. They are those of the packages whose figures papers report.]],
  metrics)
