--- Kimi K2 (Moonshot AI, 2025): DeepSeek-V3 by another name.
local deepseek_v3 = require "redco.models.families.deepseek_v3"

return setmetatable({
  model_type = "kimi_k2",
  models = "Kimi K2",
}, { __index = deepseek_v3 })
