--- GPT-NeoX (Black et al., 2022) and Pythia, as Hugging Face's `GPTNeoXForCausalLM`: attention and
--- feed-forward layers run in parallel, each after a separate norm; rotary positions cover a part
--- of each head.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local neox = {
  model_type = "gpt_neox",
  models = "GPT-NeoX, Pythia",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  architecture = "GPTNeoXForCausalLM",
  base_model_prefix = "gpt_neox",
  lm_head = "embed_out",
  tasks = tasks.of_decoder("GPTNeoX",
    { token_classification = "classifier", question_answering = true }),
  defaults = {
    vocab_size = 50432,
    hidden_size = 6144,
    num_hidden_layers = 44,
    num_attention_heads = 64,
    intermediate_size = 24576,
    hidden_act = "gelu",
    rotary_pct = 0.25,
    rotary_emb_base = 10000,
    attention_dropout = 0,
    hidden_dropout = 0,
    classifier_dropout = 0.1,
    max_position_embeddings = 2048,
    initializer_range = 0.02,
    layer_norm_eps = 1e-5,
    use_parallel_residual = true,
    attention_bias = true,
    tie_word_embeddings = false,
    bos_token_id = 0,
    eos_token_id = 2,
  },
  optional = { "rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor",
    "original_max_position_embeddings", "head_dim" },
  -- Buffers that old checkpoints store among the weights.
  ignored = { "%.attention%.bias$", "%.attention%.masked_bias$", "%.rotary_emb%.inv_freq$" },
}

function neox.complete(c)
  if c.rope_parameters then
    c.rope_theta, c.partial_rotary_factor = nil, nil
    rotary.complete(c)
    c.rotary_emb_base = c.rope_theta or c.rotary_emb_base
    c.rotary_pct = c.partial_rotary_factor or c.rotary_pct
  else
    rotary.complete(c)
  end
  c.rope_theta, c.partial_rotary_factor = c.rotary_emb_base, c.rotary_pct
end

local function rope(c)
  return rotary.settings("gpt_neox", c,
    math.floor(c.hidden_size / c.num_attention_heads * c.rotary_pct))
end

function neox.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  local size = c.hidden_size / c.num_attention_heads
  if c.head_dim and c.head_dim ~= size then
    fail("gpt_neox: head_dim = %d is not supported, only hidden_size / num_attention_heads = %d",
      c.head_dim, size)
  end
  rope(c)
end

function neox.add_parameters(c, add)
  local normal, width, inner = blocks.normal(c.initializer_range), c.hidden_size,
    c.intermediate_size
  add("gpt_neox.embed_in.weight", { c.vocab_size, width }, normal, "embedding")
  for i = 0, c.num_hidden_layers - 1 do
    local layer = ("gpt_neox.layers.%d."):format(i)
    local function linear(name, n_in, n_out, bias)
      blocks.add_linear(add, layer .. name, n_in, n_out, normal, bias)
    end
    blocks.add_layer_norm(add, layer .. "input_layernorm", width)
    blocks.add_layer_norm(add, layer .. "post_attention_layernorm", width)
    linear("attention.query_key_value", width, 3 * width, c.attention_bias)
    linear("attention.dense", width, width, c.attention_bias)
    linear("mlp.dense_h_to_4h", width, inner)
    linear("mlp.dense_4h_to_h", inner, width)
  end
  blocks.add_layer_norm(add, "gpt_neox.final_layer_norm", width)
  if not c.tie_word_embeddings then
    add("embed_out.weight", { c.vocab_size, width }, normal, "head")
  end
end

neox.head = blocks.tied_head("gpt_neox.embed_in.weight", "embed_out.weight")

function neox.new_forward(c)
  local mlp = blocks.new_mlp(blocks.activation("gpt_neox", c.hidden_act),
    { ".dense_h_to_4h", ".dense_4h_to_h" })
  local settings = rope(c)

  local function attention(params, name, x, angles, mask, o)
    local q, k, v = blocks.split_fused_heads(
      blocks.linear(params, name .. ".query_key_value", x, o), c.num_attention_heads)
    q, k = rotary.turn_halves(q, unpack(angles)), rotary.turn_halves(k, unpack(angles))
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v,
      { seen = mask, dropout = c.attention_dropout }, o)
    return blocks.dropout(blocks.linear(params, name .. ".dense", y, o), c.hidden_dropout, o)
  end

  local function apply_layer(params, layer, x, angles, mask, o)
    local function norm(name, y)
      return blocks.layer_norm(params, layer .. name, y, c.layer_norm_eps)
    end
    local y = x + attention(params, layer .. "attention", norm("input_layernorm", x), angles,
      mask, o)
    local z = norm("post_attention_layernorm", c.use_parallel_residual and x or y)
    return y + blocks.dropout(mlp(params, layer .. "mlp", z, o), c.hidden_dropout, o)
  end

  return function(params, inputs, o)
    local x = blocks.dropout(blocks.embedding(params, "gpt_neox.embed_in", inputs.input_ids),
      c.hidden_dropout, o)
    local angles = { rotary.angles(settings, inputs, o, x) }
    local mask = masks.causal(inputs, o, x, { plain_dropout = c.attention_dropout })
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(apply_layer, params, ("gpt_neox.layers.%d."):format(i), x, angles, mask, o)
    end
    return blocks.layer_norm(params, "gpt_neox.final_layer_norm", x, c.layer_norm_eps)
  end
end

return neox
