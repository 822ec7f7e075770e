--- Ministral (Mistral AI, 2024), as Hugging Face's `MinistralForCausalLM`: Mistral with a list of
--- the layers that have windows.
local mistral = require "redco.models.families.mistral"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "ministral",
  models = "Ministral 8B",
  architecture = "MinistralForCausalLM",
  tasks = tasks.of_decoder("Ministral",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = mistral.defaults,
  nullable = mistral.nullable,
  optional = { "layer_types" },
  complete = function(c)
    windows.complete(c, function() return c.sliding_window ~= nil end)
  end,
  facts = function(c) return { window = windows.of_types(c) } end,
}
