--- MPT (MosaicML, 2023), as Hugging Face's `MptForCausalLM`: a bias by distance instead of
--- positions, norms without biases, and q, k and v in one projection.
local alibi = require "redco.models.layers.alibi"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local norms = require "redco.models.layers.norms"
local tasks = require "redco.models.tasks"

local mpt = {
  model_type = "mpt",
  models = "MPT",
  remarks = "without `qk_ln`, `prefix_lm` and `logit_scale`",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  architecture = "MptForCausalLM",
  base_model_prefix = "transformer",
  tasks = tasks.of_decoder("Mpt",
    { token_classification = "classifier", question_answering = true }),
  size_key = "d_model",
  defaults = {
    vocab_size = 50368,
    d_model = 2048,
    n_heads = 16,
    n_layers = 24,
    expansion_ratio = 4,
    max_seq_len = 2048,
    layer_norm_epsilon = 1e-5,
    initializer_range = 0.02,
    tie_word_embeddings = true,
  },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { hidden_size = "d_model", num_attention_heads = "n_heads",
    num_hidden_layers = "n_layers" },
  -- transformers ignores most of these keys: its model fixes the values of the public folders.
  optional = { "attn_config", "embedding_fraction", "emb_pdrop", "init_config", "init_device",
    "learned_pos_emb", "norm_type", "resid_pdrop", "tokenizer_name", "verbose" },
  only = { expansion_ratio = 4, no_bias = true, logit_scale = false },
}

-- Settings of attention of which only one value is supported.
local attention_only = { alibi = true, alibi_bias_max = 8, attn_type = "multihead_attention",
  attn_uses_sequence_id = false, prefix_lm = false, qk_ln = false }

function mpt.check(c)
  blocks.check_multiple(c, "d_model", "n_heads")
  if c.attn_config and type(c.attn_config) ~= "table" then
    fail("mpt: attn_config is %s, expected a table", c.attn_config)
  end
  for _, key in ipairs { "attn_pdrop", "clip_qkv", "softmax_scale" } do
    local value = (c.attn_config or {})[key]
    if value ~= nil and type(value) ~= "number" then
      fail("mpt: attn_config.%s is %s, expected a number", key, value)
    end
  end
  for key, value in pairs(attention_only) do
    local given = (c.attn_config or {})[key]
    if given ~= nil and given ~= value then
      fail("mpt: attn_config.%s = %s is not supported, only %s", key, given, value)
    end
  end
end

function mpt.add_parameters(c, add)
  local normal, width = blocks.normal(c.initializer_range), c.d_model
  local function linear(name, n_in, n_out)
    blocks.add_linear(add, name, n_in, n_out, normal, false)
  end
  local function norm(name) norms.layer_without_bias.add(add, name, { width }) end
  add("transformer.wte.weight", { c.vocab_size, width }, normal, "embedding")
  for i = 0, c.n_layers - 1 do
    local block = ("transformer.blocks.%d."):format(i)
    norm(block .. "norm_1")
    linear(block .. "attn.Wqkv", width, 3 * width)
    linear(block .. "attn.out_proj", width, width)
    norm(block .. "norm_2")
    linear(block .. "ffn.up_proj", width, 4 * width)
    linear(block .. "ffn.down_proj", 4 * width, width)
  end
  norm "transformer.norm_f"
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, width }, normal, "head")
  end
end

mpt.head = blocks.tied_head "transformer.wte.weight"

function mpt.new_forward(c)
  local given, bias = c.attn_config or {}, alibi.new(c.n_heads)
  local dropout = given.attn_pdrop or 0
  local mlp = blocks.new_mlp(blocks.activation("mpt", "gelu"), { ".up_proj", ".down_proj" })
  local sizes = { c.d_model, c.d_model, c.d_model }

  local function attention(params, name, x, mask, o)
    local parts = blocks.linear(params, name .. ".Wqkv", x, o):split(sizes, -1)
    for k = 1, 3 do
      local y = given.clip_qkv and parts[k]:clamp(-given.clip_qkv, given.clip_qkv) or parts[k]
      parts[k] = blocks.split_heads(y, c.n_heads)
    end
    local q, k, v = unpack(parts)
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v, { seen = mask, scale = given.softmax_scale,
      dropout = dropout }, o)
    return blocks.linear(params, name .. ".out_proj", y, o)
  end

  return function(params, inputs, o)
    local function norm(name, y)
      return norms.layer_without_bias.apply(params, name, y, c.layer_norm_epsilon)
    end
    local function drop(y) return blocks.dropout(y, dropout, o) end
    blocks.check_length(c, "max_seq_len", o, inputs.input_ids)
    local x = blocks.embedding(params, "transformer.wte", inputs.input_ids)
    -- Distances count padding.
    local mask = alibi.masked(masks.causal(inputs, o, x), bias({}, o, x))
    local function layer(block, y)
      y = y + drop(attention(params, block .. "attn", norm(block .. "norm_1", y), mask, o))
      return y + drop(mlp(params, block .. "ffn", norm(block .. "norm_2", y), o))
    end
    for i = 0, c.n_layers - 1 do x = nn.block(layer, ("transformer.blocks.%d."):format(i), x) end
    return norm("transformer.norm_f", x)
  end
end

return mpt
