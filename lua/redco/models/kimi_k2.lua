--- Kimi K2 (Moonshot AI, 2025): DeepSeek-V3 by another name.
return setmetatable({ model_type = "kimi_k2" }, { __index = require "redco.models.deepseek_v3" })
