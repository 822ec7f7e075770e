--- VaultGemma (Google, 2025), as Hugging Face's `VaultGemmaForCausalLM`: Gemma 2 with norms only
--- before the layers.
local gemma2 = require "redco.models.families.gemma2"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "vaultgemma",
  models = "VaultGemma",
  architecture = "VaultGemmaForCausalLM",
  tasks = { features = tasks.features "VaultGemma" },
  defaults = gemma2.defaults,
  nullable = gemma2.nullable,
  optional = gemma2.optional,
  complete = gemma2.complete,
  logits_cap = gemma2.logits_cap,
  facts = function(c)
    local facts = gemma2.facts(c)
    facts.norms = { "input_layernorm", nil, "pre_feedforward_layernorm" }
    return facts
  end,
}
