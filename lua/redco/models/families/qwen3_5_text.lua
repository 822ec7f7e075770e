--- The text model of Qwen3.5 (Qwen Team, 2026), as Hugging Face's `Qwen3_5ForCausalLM`.
local new_family = require "redco.models.kinds.llama_like"
local rows = require "redco.models.states.qwen3_5_rows"

return new_family(rows.dense())
