--- Falcon (Almazrouei et al., 2023), as Hugging Face's `FalconForCausalLM`: attention and
--- feed-forward layers run in parallel, with rotary positions or a bias by distance. There is one
--- head of keys (`multi_query`), one for each group (`new_decoder_architecture`), or as many as of
--- queries.
local alibi = require "redco.models.layers.alibi"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"
local rotary = require "redco.models.layers.rotary"
local tasks = require "redco.models.tasks"

local falcon = {
  model_type = "falcon",
  models = "Falcon",
  inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" },
  architecture = "FalconForCausalLM",
  base_model_prefix = "transformer",
  tasks = tasks.of_decoder("Falcon",
    { token_classification = "classifier", question_answering = true }),
  defaults = {
    vocab_size = 65024,
    hidden_size = 4544,
    num_hidden_layers = 32,
    num_attention_heads = 71,
    layer_norm_epsilon = 1e-5,
    initializer_range = 0.02,
    hidden_dropout = 0,
    attention_dropout = 0,
    alibi = false,
    new_decoder_architecture = false,
    multi_query = true,
    parallel_attn = true,
    bias = false,
    max_position_embeddings = 2048,
    rope_theta = 10000,
    activation = "gelu",
    tie_word_embeddings = true,
    bos_token_id = 11,
    eos_token_id = 11,
  },
  aliases = { n_embed = "hidden_size" },
  optional = { "num_kv_heads", "num_ln_in_parallel_attn", "ffn_hidden_size", "rope_scaling",
    "rope_parameters", "original_max_position_embeddings",
    "apply_residual_connection_post_layernorm" },
  only = { partial_rotary_factor = 1 },
}

function falcon.complete(c)
  rotary.complete(c)
  c.num_kv_heads = c.num_kv_heads or c.num_attention_heads
  c.ffn_hidden_size = c.ffn_hidden_size or 4 * c.hidden_size
end

local function head_size(c) return c.hidden_size / c.num_attention_heads end

-- Whether attention and the feed-forward layer have a norm each, or one norm together.
local function has_two_norms(c)
  return c.new_decoder_architecture and (c.num_ln_in_parallel_attn or 2) == 2
end

function falcon.check(c)
  blocks.check_multiple(c, "hidden_size", "num_attention_heads")
  if c.new_decoder_architecture then
    blocks.check_multiple(c, "num_attention_heads", "num_kv_heads")
    if not c.parallel_attn then
      fail "falcon: new_decoder_architecture = true needs parallel_attn = true"
    end
  end
  local n = c.num_ln_in_parallel_attn
  if n and n > (c.new_decoder_architecture and 2 or 1) then
    fail("falcon: num_ln_in_parallel_attn = %d is not supported%s", n,
      c.new_decoder_architecture and "" or " without new_decoder_architecture")
  end
  if not c.alibi then rotary.settings("falcon", c, head_size(c)) end
end

-- Returns the names of a layer's norms, then those of attention's and the feed-forward layer's.
local function norms_of(c)
  if has_two_norms(c) then return { "ln_attn", "ln_mlp" }, "ln_attn", "ln_mlp" end
  if c.parallel_attn then return { "input_layernorm" }, "input_layernorm", "input_layernorm" end
  return { "input_layernorm", "post_attention_layernorm" }, "input_layernorm",
    "post_attention_layernorm"
end

function falcon.add_parameters(c, add)
  local normal, width = blocks.normal(c.initializer_range), c.hidden_size
  local n_kv = c.new_decoder_architecture and c.num_kv_heads
    or c.multi_query and 1 or c.num_attention_heads
  local names = norms_of(c)
  add("transformer.word_embeddings.weight", { c.vocab_size, width }, normal, "embedding")
  for i = 0, c.num_hidden_layers - 1 do
    local block = ("transformer.h.%d."):format(i)
    local function linear(name, n_in, n_out)
      blocks.add_linear(add, block .. name, n_in, n_out, normal, c.bias)
    end
    linear("self_attention.query_key_value", width, width + 2 * n_kv * head_size(c))
    linear("self_attention.dense", width, width)
    linear("mlp.dense_h_to_4h", width, c.ffn_hidden_size)
    linear("mlp.dense_4h_to_h", c.ffn_hidden_size, width)
    for _, name in ipairs(names) do blocks.add_layer_norm(add, block .. name, width) end
  end
  blocks.add_layer_norm(add, "transformer.ln_f", width)
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, width }, normal, "head")
  end
end

falcon.head = blocks.tied_head "transformer.word_embeddings.weight"

-- Returns a function that splits the output of query_key_value into q, k and v, each [B, H, T, D].
local function splitter(c)
  local n_heads, size = c.num_attention_heads, head_size(c)
  if not c.new_decoder_architecture and not c.multi_query then
    return function(x) return blocks.split_fused_heads(x, n_heads) end
  end
  if not c.new_decoder_architecture then
    local sizes = { n_heads * size, size, size }
    return function(x)
      local q, k, v = unpack(x:split(sizes, -1))
      return blocks.split_heads(q, n_heads), blocks.split_heads(k, 1), blocks.split_heads(v, 1)
    end
  end
  -- There is a group for each head of k.
  local n_groups = c.num_kv_heads
  local n = n_heads / n_groups
  return function(x)
    local batch, length = x:size(0), x:size(1)
    local all = x:view { batch, length, n_groups, n + 2, size }
    local q = all:narrow(3, 0, n):reshape { batch, length, n_heads, size }
    return q:transpose(1, 2), all:select(3, n):transpose(1, 2), all:select(3, n + 1):transpose(1, 2)
  end
end

function falcon.new_forward(c)
  local mlp = blocks.new_mlp(blocks.activation("falcon", c.activation),
    { ".dense_h_to_4h", ".dense_4h_to_h" })
  local split = splitter(c)
  local bias = c.alibi and alibi.new(c.num_attention_heads, "bfloat16")
  local settings = not c.alibi and rotary.settings("falcon", c, head_size(c))
  local _, norm_of_attention, norm_of_mlp = norms_of(c)

  local function attention(params, name, x, angles, mask, o)
    local q, k, v = split(blocks.linear(params, name .. ".query_key_value", x, o))
    if angles then
      q, k = rotary.turn_halves(q, unpack(angles)), rotary.turn_halves(k, unpack(angles))
    end
    if o.cache then k, v = o.cache:extend(name, k, v) end
    local y = blocks.attention(q, k, v, { seen = mask,
      dropout = c.alibi and c.attention_dropout or 0, enable_gqa = k:size(1) < q:size(1) }, o)
    return blocks.linear(params, name .. ".dense", y, o)
  end

  local function layer(params, block, x, angles, mask, o)
    local function norm(name, y)
      return blocks.layer_norm(params, block .. name, y, c.layer_norm_epsilon)
    end
    local y = attention(params, block .. "self_attention", norm(norm_of_attention, x), angles,
      mask, o)
    if c.parallel_attn then
      y = y + mlp(params, block .. "mlp", norm(norm_of_mlp, x), o)
      return x + blocks.dropout(y, c.hidden_dropout, o)
    end
    x = x + blocks.dropout(y, c.attention_dropout, o)
    return x + blocks.dropout(mlp(params, block .. "mlp", norm(norm_of_mlp, x), o),
      c.hidden_dropout, o)
  end

  return function(params, inputs, o)
    local x = blocks.embedding(params, "transformer.word_embeddings", inputs.input_ids)
    local mask = masks.causal(inputs, o, x, { plain_dropout = not bias and 0 or nil })
    local angles
    if bias then
      mask = alibi.masked(mask, bias(inputs, o, x) / math.sqrt(head_size(c)))
    else
      angles = { rotary.angles(settings, inputs, o, x) }
    end
    for i = 0, c.num_hidden_layers - 1 do
      x = nn.block(layer, params, ("transformer.h.%d."):format(i), x, angles, mask, o)
    end
    return blocks.layer_norm(params, "transformer.ln_f", x, c.layer_norm_epsilon)
  end
end

return falcon
