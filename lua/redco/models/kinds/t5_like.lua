--- Encoder-decoders built as T5 is: attention is not scaled; positions enter only as biases by
--- distance. A family is a row of facts:
---   bias_in_each_layer: true if each layer has separate biases, false if all share the first's
---   scales_in_version_5: whether version 5 of transformers scales what the head reads, where the
---   configuration does not say it
---   near_attention: a function of the configuration to the encoder's attention, if another, as
---   block_attention.lua
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local new_bias = require("redco.models.layers.relative_bias").new
local new_tasks = require "redco.models.tasks.encoder_decoder_tasks"
local nn = require "redco.nn"
local ties = require "redco.models.ties"
local torch = require "redco.torch"

local common = {
  base_model_prefix = "transformer",
  inputs = { "input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask",
    "encoder_hidden_states" },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { head_dim = "d_kv", hidden_size = "d_model", num_attention_heads = "num_heads",
    num_hidden_layers = "num_layers" },
  only = { is_encoder_decoder = true },
  optional = { "num_decoder_layers", "dense_act_fn", "is_gated_act", "classifier_dropout",
    "scale_decoder_outputs" },
  ignored = { "[ed][ne]coder%.embed_tokens%.weight$", "^classification_head%.", "^classifier%.",
    "^qa_outputs%.",
    "decoder%.block%.0%.layer%.1%.EncDecAttention%.relative_attention_bias%.weight$" },
  size_key = "d_model",
}

function common.head_inits(c, task)
  local by_model = blocks.normal(c.initializer_factor * c.d_model ^ -0.5)
  return by_model, task == "token_classification" and blocks.normal(c.initializer_factor)
    or by_model
end

function common.complete(c)
  c.num_decoder_layers = c.num_decoder_layers or c.num_layers
  c.decoder_start_token_id = c.decoder_start_token_id or c.pad_token_id
end

-- Version 5 of transformers ties the head if the file has none, whatever the configuration says.
function common.complete_by_weights(family, given, weights)
  if (ties.version(given) or 0) < 5 then return end
  given.tie_word_embeddings = true
  for _, name in ipairs(weights:keys()) do
    if name == "lm_head.weight" then given.tie_word_embeddings = false end
  end
  if given.scale_decoder_outputs == nil then
    given.scale_decoder_outputs = family.scales_in_version_5 or false
  end
end

-- Whether the output is scaled for the head; by default, if the head is the embedding.
local function has_scaled_output(c)
  if c.scale_decoder_outputs ~= nil then return c.scale_decoder_outputs end
  return c.tie_word_embeddings
end

-- Returns the activation, and whether it is gated. feed_forward_proj replaces missing keys.
local function feed_forward_of(c)
  local gate = c.feed_forward_proj:match "^gated%-(.+)$"
  local activation = c.dense_act_fn
    or gate == "gelu" and "gelu_new" or gate or c.feed_forward_proj
  if c.is_gated_act ~= nil then return activation, c.is_gated_act end
  return activation, gate ~= nil
end

function common.check(c)
  if c.relative_attention_num_buckets < 4
    or c.relative_attention_max_distance <= c.relative_attention_num_buckets / 2 then
    fail("%s: relative_attention_num_buckets (%d) must be 4 or more, and "
      .. "relative_attention_max_distance (%d) more than half of them",
      c.model_type, c.relative_attention_num_buckets, c.relative_attention_max_distance)
  end
end

local function add_parameters(row, c, add)
  local d_attention = c.num_heads * c.d_kv
  local function normal(std) return blocks.normal(c.initializer_factor * std) end
  local by_model = normal(c.d_model ^ -0.5)
  local function linear(name, n_in, n_out, init)
    blocks.add_linear(add, name, n_in, n_out, init, false)
  end
  local function norm(name)
    add(name .. ".weight", { c.d_model }, blocks.constant(c.initializer_factor))
  end
  local function attention(layer, kind)
    local name = layer .. kind
    linear(name .. ".q", c.d_model, d_attention, normal((c.d_model * c.d_kv) ^ -0.5))
    linear(name .. ".k", c.d_model, d_attention, by_model)
    linear(name .. ".v", c.d_model, d_attention, by_model)
    linear(name .. ".o", d_attention, c.d_model, normal(d_attention ^ -0.5))
    norm(layer .. "layer_norm")
  end
  local function feed_forward(layer)
    local name, _, is_gated = layer .. "DenseReluDense.", feed_forward_of(c)
    for _, part in ipairs(is_gated and { "wi_0", "wi_1" } or { "wi" }) do
      linear(name .. part, c.d_model, c.d_ff, by_model)
    end
    linear(name .. "wo", c.d_ff, c.d_model, normal(c.d_ff ^ -0.5))
    norm(layer .. "layer_norm")
  end
  local near = row.near_attention and row.near_attention(c)
  add("shared.weight", { c.vocab_size, c.d_model }, normal(1))
  for _, stack in ipairs { "encoder", "decoder" } do
    for i = 0, (stack == "encoder" and c.num_layers or c.num_decoder_layers) - 1 do
      local layers = ("%s.block.%d.layer."):format(stack, i)
      local other = stack == "encoder" and near
      local kind = other and near.name or "SelfAttention"
      attention(layers .. "0.", kind)
      if i == 0 or row.bias_in_each_layer then
        add(layers .. "0." .. kind .. ".relative_attention_bias.weight",
          { c.relative_attention_num_buckets, c.num_heads }, by_model)
      end
      if other then
        near.add_parameters(layers .. "0." .. kind, add, by_model, i == 0,
          blocks.constant(c.initializer_factor))
      end
      if stack == "decoder" then attention(layers .. "1.", "EncDecAttention") end
      feed_forward(layers .. (stack == "decoder" and "2." or "1."))
    end
    norm(stack .. ".final_layer_norm")
  end
  if not c.tie_word_embeddings then
    add("lm_head.weight", { c.vocab_size, c.d_model }, normal(1))
  end
end

function common.head(c) return c.tie_word_embeddings and "shared.weight" or "lm_head.weight" end

-- Returns either stack: function(params, input_ids, o, padding mask of the encoder's tokens,
-- memory, attention_mask of the stack's tokens).
local function new_stack(row, c, stack, n_layers)
  local near = stack == "encoder" and row.near_attention and row.near_attention(c)
  local name_of_activation, is_gated = feed_forward_of(c)
  local activation = blocks.activation(c.model_type, name_of_activation)
  local attention = blocks.new_attention(c.num_heads, { q = ".q", k = ".k", v = ".v", out = ".o" },
    c.dropout_rate, 1)

  local function drop(x, o) return blocks.dropout(x, c.dropout_rate, o) end

  local function feed_forward(params, name, x, o)
    local function linear(part, y) return blocks.linear(params, name .. part, y, o) end
    local y = is_gated and blocks.gated(activation, linear(".wi_0", x), linear(".wi_1", x))
      or activation(linear(".wi", x))
    return drop(linear(".wo", drop(y, o)), o)
  end

  local function apply_block(params, layers, x, mask, memory, memory_mask, o)
    local function norm(layer)
      return blocks.rms_norm(params, layers .. layer .. ".layer_norm", x, c.layer_norm_epsilon)
    end
    local attend, name = attention.to_itself, "0.SelfAttention"
    if near then attend, name = near.attend, "0." .. near.name end
    x = x + drop(attend(params, layers .. name, norm(0), mask, o), o)
    if memory then
      local seen = attention.to_memory(params, layers .. "1.EncDecAttention", norm(1), memory,
        memory_mask, o)
      x = x + drop(seen, o)
    end
    local last = memory and 2 or 1
    return x + feed_forward(params, layers .. last .. ".DenseReluDense", norm(last), o)
  end

  -- Returns function(i) -> the mask of layer i, with the biases by distance.
  local function new_mask(params, input_ids, x, o, padding, own_padding)
    if near then
      local mask = near.mask(params, "encoder.block.0.layer.0." .. near.name,
        own_padding or torch.ones_like(input_ids), x)
      return function() return mask end
    end
    local bias_of = new_bias(c.relative_attention_num_buckets, c.relative_attention_max_distance, {
      device = x.device, past = blocks.past(o), length = input_ids:size(1),
      is_causal = stack == "decoder" })
    local added, mask = padding, nil
    if stack == "decoder" then
      added = own_padding and masks.causal({ attention_mask = own_padding }, o, x).mask
    end
    return function(i)
      if i == 0 or row.bias_in_each_layer then
        local bias = bias_of(params,
          ("%s.block.%d.layer.0.SelfAttention.relative_attention_bias"):format(stack, i))
        mask = { mask = added and bias + added or bias }
      end
      return mask
    end
  end

  return function(params, input_ids, o, padding, memory, own_padding)
    local x = drop(blocks.embedding(params, "shared", input_ids), o)
    local mask_of, memory_mask = new_mask(params, input_ids, x, o, padding, own_padding),
      { mask = padding }
    for i = 0, n_layers - 1 do
      x = nn.block(apply_block, params, ("%s.block.%d.layer."):format(stack, i), x, mask_of(i),
        memory, memory_mask, o)
    end
    return drop(blocks.rms_norm(params, stack .. ".final_layer_norm", x, c.layer_norm_epsilon), o)
  end
end

local function padding_mask(params, inputs)
  return masks.padding(inputs.attention_mask, params["shared.weight"].dtype)
end

-- The encoder alone, whose hidden states another model reads: transformers' `T5EncoderModel`.
local function encoder_of(family)
  local result = {
    architecture = family.architecture:gsub("ForConditionalGeneration", "EncoderModel"),
    task = "features", only = {}, head = false, new_encoder = false, new_head_input = false,
    inputs = { "input_ids", "attention_mask" },
    ignored = { "^decoder%.", "^lm_head%.", unpack(family.ignored) },
  }

  function result.add_parameters(c, add)
    family.add_parameters(c, function(name, ...)
      if not name:find "^decoder%." and name ~= "lm_head.weight" then add(name, ...) end
    end)
  end

  function result.complete(c)
    local start = c.decoder_start_token_id
    family.complete(c)
    c.decoder_start_token_id = start
  end

  result.new_forward = family.new_encoder

  return setmetatable(result, { __index = family })
end

--- Returns a family. A row has the fields of a family besides its facts.
return function(row)
  local family = {}
  for _, part in ipairs { common, row } do
    for key, value in pairs(part) do family[key] = value end
  end
  family.tasks = new_tasks(row.architecture:match "^(.*)ForConditionalGeneration$", "transformer.")

  function family.add_parameters(c, add) add_parameters(row, c, add) end

  function family.new_encoder(c)
    local encoder = new_stack(row, c, "encoder", c.num_layers)
    return function(params, inputs, o)
      return encoder(params, inputs.input_ids, o, padding_mask(params, inputs), nil,
        inputs.attention_mask)
    end
  end

  function family.new_forward(c)
    local decoder = new_stack(row, c, "decoder", c.num_decoder_layers)
    return function(params, inputs, o, memory)
      return decoder(params, inputs.decoder_input_ids, o, padding_mask(params, inputs), memory,
        inputs.decoder_attention_mask)
    end
  end

  function family.new_head_input(c)
    return has_scaled_output(c) and function(_, hidden) return hidden * c.d_model ^ -0.5 end
  end

  family.variants = { encoder_of(family) }
  return family
end
