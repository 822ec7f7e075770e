--- Ministral 3 (Mistral AI, 2025), as Hugging Face's `Ministral3ForCausalLM`: Mistral whose queries
--- grow with the position, beyond the length of the training texts.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

local ministral3 = {
  model_type = "ministral3",
  models = "Ministral 3",
  remarks = "of folders with images only the text model is read",
  architecture = "Ministral3ForCausalLM",
  tasks = tasks.of_decoder("Ministral3",
    { token_classification = "score", question_answering = true }),
  defaults = {
    vocab_size = 131072,
    intermediate_size = 14336,
    num_hidden_layers = 34,
    num_key_value_heads = 8,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 262144,
    rms_norm_eps = 1e-5,
    rope_theta = 1000000,
    pad_token_id = 11,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads", "head_dim" },
  optional = { "sliding_window" },
}

function ministral3.complete(c)
  local given = c.rope_parameters or c.rope_scaling
  local context, own = c.original_max_position_embeddings, type(given) == "table"
    and given.original_max_position_embeddings
  if context and own and context ~= own then
    fail("ministral3: original_max_position_embeddings = %s is not supported beside that of "
      .. "rope_parameters, %s", context, own)
  end
  if given then return end
  c.rope_parameters = {
    rope_type = "yarn", rope_theta = c.rope_theta, factor = 16,
    original_max_position_embeddings = 16384, beta_fast = 32, beta_slow = 1, mscale_all_dim = 1,
    mscale = 1, llama_4_scaling_beta = 0.1,
  }
end

-- Returns llama_4_scaling_beta and the length of the training texts. longrope has this length
-- outside of rope_scaling.
local function growth_of(c)
  local scaling = c.rope_scaling or {}
  return scaling.llama_4_scaling_beta,
    scaling.original_max_position_embeddings or c.original_max_position_embeddings
end

function ministral3.check(c)
  local beta, context = growth_of(c)
  for key, value in pairs { llama_4_scaling_beta = beta or false,
    original_max_position_embeddings = context or false } do
    if type(value) ~= "number" or value < 0 then
      fail("ministral3: rope_parameters.%s is %s, expected a number, and rope_parameters without "
        .. "a scaling are not supported", key, value or "missing")
    end
  end
end

function ministral3.facts(c)
  local beta, context = growth_of(c)
  return {
    window = windows.of_all(c),
    query_scale = function(inputs, o, x)
      local places = blocks.position_ids(inputs, o, x):float()
      local scale = ((places / context):floor() + 1):log() * beta + 1
      return scale:unsqueeze(1):unsqueeze(-1):to(x.dtype)
    end,
  }
end

return new_family(ministral3)
