--- OLMo 3 (OLMo Team, 2025), as Hugging Face's `Olmo3ForCausalLM`: OLMo 2 with windows in three of
--- four layers, where positions are not scaled.
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.llama_like"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

local olmo3 = {
  model_type = "olmo3",
  models = "OLMo 3",
  remarks = "one `rope_theta` for all layers",
  architecture = "Olmo3ForCausalLM",
  tasks = tasks.of_decoder("Olmo3", {}),
  defaults = {
    vocab_size = 50304,
    intermediate_size = 11008,
    hidden_act = "silu",
    max_position_embeddings = 2048,
    rms_norm_eps = 1e-5,
    attention_bias = false,
    sliding_window = 4096,
    pad_token_id = 1,
    eos_token_id = 50279,
  },
  optional = { "layer_types" },
}

-- Version 5 of transformers has one table for each kind of layers.
local function read_rope_parameters(c)
  local given = c.rope_parameters
  local whole = type(given) == "table" and given.full_attention
  local near = type(given) == "table" and given.sliding_attention
  if not whole and not near then return end
  whole, near = whole or {}, near or {}
  if (near.rope_type or "default") ~= "default" then
    fail("olmo3: rope_parameters.sliding_attention has rope_type %s, only default is supported",
      near.rope_type)
  end
  if near.rope_theta and whole.rope_theta and near.rope_theta ~= whole.rope_theta then
    fail("olmo3: rope_parameters has rope_theta = %s for sliding_attention, which is not "
      .. "supported, only that of full_attention, %s", near.rope_theta, whole.rope_theta)
  end
  c.rope_theta, c.rope_parameters = whole.rope_theta or near.rope_theta or c.rope_theta, whole
end

function olmo3.complete(c)
  read_rope_parameters(c)
  windows.complete(c, function(i) return (i + 1) % 4 ~= 0 end)
end

function olmo3.facts(c)
  local near = rotary.settings("olmo3", {
    rope_theta = c.rope_theta, max_position_embeddings = c.max_position_embeddings,
  }, rotary.size(c))
  return {
    qkv_bias = c.attention_bias, o_bias = c.attention_bias, head_norms = "projection",
    norms = { nil, "post_attention_layernorm", nil, "post_feedforward_layernorm" },
    window = windows.of_types(c),
    rope = function(i, whole)
      return c.layer_types[i + 1] == "sliding_attention" and near or whole
    end,
  }
end

return new_family(olmo3)
