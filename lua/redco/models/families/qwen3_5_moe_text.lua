--- The text model of Qwen3.5's mixtures of experts (Qwen Team, 2026), as Hugging Face's
--- `Qwen3_5MoeForCausalLM`.
local new_family = require "redco.models.kinds.llama_like"
local rows = require "redco.models.states.qwen3_5_rows"

return new_family(rows.mixture())
