--- BLOOM (BigScience, 2022), as Hugging Face's `BloomForCausalLM`: a bias by distance instead of
--- positions, and a norm after the embedding.
local alibi = require "redco.models.layers.alibi"
local blocks = require "redco.models.layers.blocks"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local tasks = require "redco.models.tasks"

local bloom = {
  model_type = "bloom",
  models = "BLOOM, BLOOMZ",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  architecture = "BloomForCausalLM",
  base_model_prefix = "transformer",
  tasks = tasks.of_decoder("Bloom",
    { token_classification = "classifier", question_answering = true }),
  defaults = {
    vocab_size = 250880,
    hidden_size = 64,
    n_layer = 2,
    n_head = 8,
    layer_norm_epsilon = 1e-5,
    initializer_range = 0.02,
    apply_residual_connection_post_layernorm = false,
    hidden_dropout = 0,
    attention_dropout = 0,
    tie_word_embeddings = true,
    bos_token_id = 1,
    eos_token_id = 2,
  },
  -- Other names of the same settings (attribute_map of transformers, and n_embed).
  aliases = { n_embed = "hidden_size", num_attention_heads = "n_head",
    num_hidden_layers = "n_layer" },
  optional = { "pretraining_tp", "unk_token_id", "seq_length", "masked_softmax_fusion",
    "bias_dropout_fusion", "attention_softmax_in_fp32", "skip_bias_add", "skip_bias_add_qkv",
    "offset_alibi", "n_inner" },
  only = { slow_but_exact = false },
}

function bloom.check(c) blocks.check_multiple(c, "hidden_size", "n_head") end

function bloom.add_parameters(c, add)
  local normal, width = blocks.normal(c.initializer_range), c.hidden_size
  add("transformer.word_embeddings.weight", { c.vocab_size, width }, normal, "embedding")
  blocks.add_layer_norm(add, "transformer.word_embeddings_layernorm", width)
  for i = 0, c.n_layer - 1 do
    local block = ("transformer.h.%d."):format(i)
    blocks.add_layer_norm(add, block .. "input_layernorm", width)
    blocks.add_linear(add, block .. "self_attention.query_key_value", width, 3 * width, normal)
    blocks.add_linear(add, block .. "self_attention.dense", width, width, normal)
    blocks.add_layer_norm(add, block .. "post_attention_layernorm", width)
    blocks.add_linear(add, block .. "mlp.dense_h_to_4h", width, 4 * width, normal)
    blocks.add_linear(add, block .. "mlp.dense_4h_to_h", 4 * width, width, normal)
  end
  blocks.add_layer_norm(add, "transformer.ln_f", width)
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, width }, normal, "head")
  end
end

bloom.head = blocks.tied_head "transformer.word_embeddings.weight"

function bloom.new_forward(c)
  local mlp = blocks.new_mlp(blocks.activation("bloom", "gelu_new"),
    { ".dense_h_to_4h", ".dense_4h_to_h" })
  local bias = alibi.new(c.n_head)

  local function attention(params, name, x, mask, o)
    local q, k, v = blocks.split_fused_heads(
      blocks.linear(params, name .. ".query_key_value", x, o), c.n_head)
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v,
      { seen = mask, dropout = c.attention_dropout }, o)
    return blocks.linear(params, name .. ".dense", y, o)
  end

  return function(params, inputs, o)
    local function norm(name, y) return blocks.layer_norm(params, name, y, c.layer_norm_epsilon) end
    local x = norm("transformer.word_embeddings_layernorm",
      blocks.embedding(params, "transformer.word_embeddings", inputs.input_ids))
    local mask = alibi.masked(masks.causal(inputs, o, x), bias(inputs, o, x))
    -- The output of a layer is added to its input, or to the norm of its input.
    local function residual(name, input, f)
      local y = norm(name, input)
      return (c.apply_residual_connection_post_layernorm and y or input)
        + blocks.dropout(f(y), c.hidden_dropout, o)
    end
    local function layer(block, input)
      local seen = residual(block .. "input_layernorm", input, function(y)
        return attention(params, block .. "self_attention", y, mask, o)
      end)
      return residual(block .. "post_attention_layernorm", seen, function(y)
        return mlp(params, block .. "mlp", y, o)
      end)
    end
    for i = 0, c.n_layer - 1 do
      x = nn.block(layer, ("transformer.h.%d."):format(i), x)
    end
    return norm("transformer.ln_f", x)
  end
end

return bloom
