--- LFM2 (Liquid AI, 2025), as Hugging Face's `Lfm2ForCausalLM`: most layers have a short
--- convolution in place of attention.
local gated_convolution = require "redco.models.states.gated_convolution"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

local lfm2 = {
  model_type = "lfm2",
  models = "LFM2 350M to 2.6B",
  remarks = "states",
  architecture = "Lfm2ForCausalLM",
  tasks = { features = tasks.features "Lfm2" },
  inputs = { "input_ids", "attention_mask", "position_ids" },
  defaults = {
    vocab_size = 65536,
    hidden_size = 2560,
    intermediate_size = 12288,
    num_key_value_heads = 8,
    max_position_embeddings = 128000,
    rope_theta = 1000000,
    norm_eps = 1e-5,
    conv_bias = false,
    conv_L_cache = 3,
    block_multiple_of = 256,
    block_ffn_dim_multiplier = 1,
    block_auto_adjust_ff_dim = true,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "block_ffn_dim_multiplier" },
  optional = { "full_attn_idxs", "layer_types" },
  -- The keys of the makers' folders.
  aliases = { block_ff_dim = "intermediate_size", theta = "rope_theta",
    tie_embedding = "tie_word_embeddings" },
  layer_kinds = { "full_attention", "conv" },
}

function lfm2.complete(c)
  if c.layer_types then return end
  local has_attention, all = {}, c.full_attn_idxs == nil
  for _, i in ipairs(c.full_attn_idxs or {}) do has_attention[i] = true end
  c.layer_types = {}
  for i = 0, c.num_hidden_layers - 1 do
    c.layer_types[i + 1] = (all or has_attention[i]) and "full_attention" or "conv"
  end
end

-- Returns the size of the feed-forward layers.
local function inner_size(c)
  if not c.block_auto_adjust_ff_dim then return c.intermediate_size end
  local size, unit = math.floor(2 * c.intermediate_size / 3), c.block_multiple_of
  if not c.block_ffn_dim_multiplier then return size end
  return unit * math.ceil(math.floor(c.block_ffn_dim_multiplier * size) / unit)
end

function lfm2.facts(c)
  local facts = gated_convolution.facts(c)
  facts.inner = inner_size(c)
  return facts
end

return new_family(lfm2)
