--- DeBERTa (He et al., 2020), as Hugging Face's `DebertaForMaskedLM` and other classes: DeBERTa-v2
--- with q, k and v in one projection, and relative positions without buckets.
local v2 = require "redco.models.families.deberta-v2"

local deberta = {
  model_type = "deberta",
  models = "DeBERTa",
  remarks = "without `talking_head`",
  architecture = "DebertaModel",
  tasks = {},
  defaults = {},
}

local own_defaults = { vocab_size = 50265, hidden_size = 768, num_hidden_layers = 12,
  num_attention_heads = 12, intermediate_size = 3072 }
for key, value in pairs(v2.defaults) do deberta.defaults[key] = own_defaults[key] or value end

-- Keys of DeBERTa-v2, with the values that DeBERTa has.
deberta.only = { position_buckets = -1, share_att_key = false, norm_rel_ebd = "none",
  conv_kernel_size = 0, talking_head = false }

for name, row in pairs(v2.tasks) do
  local own = {}
  for key, value in pairs(row) do own[key] = value end
  own.architecture = row.architecture:gsub("^DebertaV2", "Deberta")
  deberta.tasks[name] = own
end
deberta.tasks.multiple_choice = nil

return setmetatable(deberta, { __index = v2 })
