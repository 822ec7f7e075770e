--- Encoder-decoders built as BART is: attention with biases, positions added to embeddings, and an
--- embedding that both stacks and the head share. A family is a row of facts:
---   norm_first: whether norms are before layers, and one after each stack
---   norm_of_embedding: whether there is one
---   positions: "learned", "sinusoidal" or "of tokens": sinusoids of the tokens that are no padding
---   position_offset: the rows of the table that tokens do not use, by default 2
---   lacks_logits_bias: whether the head has no bias
---   near_attention: a function of the configuration to the encoder's attention, if another, as
---     led_attention.lua; its windows are attention_window
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local masks = require "redco.models.layers.masks"
local new_tasks = require "redco.models.tasks.encoder_decoder_tasks"
local nn = require "redco.nn"

-- The defaults of configurations, unless the row of a family has others.
local defaults = {
  vocab_size = 50265,
  max_position_embeddings = 1024,
  d_model = 1024,
  encoder_layers = 12,
  encoder_attention_heads = 16,
  encoder_ffn_dim = 4096,
  decoder_layers = 12,
  decoder_attention_heads = 16,
  decoder_ffn_dim = 4096,
  activation_function = "gelu",
  dropout = 0.1,
  attention_dropout = 0.0,
  activation_dropout = 0.0,
  init_std = 0.02,
  scale_embedding = false,
  is_encoder_decoder = true,
}

local common = {
  base_model_prefix = "model",
  inputs = { "input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask",
    "encoder_hidden_states" },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { hidden_size = "d_model", num_attention_heads = "encoder_attention_heads" },
  buffers = { final_logits_bias = true },
  new_if_missing = { final_logits_bias = true },
  head_parameters = "^final_logits_bias$",
  size_key = "d_model",
}

local function position_offset(row) return row.position_offset or 2 end

-- Returns the sinusoids of the tokens `ids` [B, T]. Positions count from the one after
-- pad_token_id; padding has zeros.
local function sinusoids_of_tokens(c, ids, past, x)
  local is_token = ids:ne(c.pad_token_id):to "int64"
  local places = (is_token:cumsum(1) + past) * is_token + c.pad_token_id
  return blocks.sinusoids_at(c.d_model, places, x) * is_token:unsqueeze(-1)
end

local function stack_of(row, side) return ("%s.%s."):format(row.base_model_prefix, side) end

local function embedding_of(row, c, side)
  if c.share_encoder_decoder_embeddings ~= false then return row.base_model_prefix .. ".shared" end
  return stack_of(row, side) .. "embed_tokens"
end

-- Returns the key of the number of positions: that of the stack, or else the common one.
local function length_key(c, side)
  local key = ("max_%s_position_embeddings"):format(side)
  return c[key] and key or "max_position_embeddings"
end

local function vocab_size_of(c, side)
  if side == "encoder" or c.share_encoder_decoder_embeddings ~= false then return c.vocab_size end
  return c.decoder_vocab_size
end

local function add_parameters(row, c, add)
  local normal = blocks.normal(c.init_std)
  local function linear(name, n_in, n_out) blocks.add_linear(add, name, n_in, n_out, normal) end
  local function norm(name) blocks.add_layer_norm(add, name, c.d_model) end
  local function attention(name)
    for _, part in ipairs { ".k_proj", ".v_proj", ".q_proj", ".out_proj" } do
      linear(name .. part, c.d_model, c.d_model)
    end
    norm(name .. "_layer_norm")
  end
  local function embedding(side)
    add(embedding_of(row, c, side) .. ".weight", { vocab_size_of(c, side), c.d_model },
      blocks.normal_but_padding(c, c.init_std))
  end
  embedding "encoder"
  if c.share_encoder_decoder_embeddings == false then embedding "decoder" end
  for _, side in ipairs { "encoder", "decoder" } do
    local stack, inner = stack_of(row, side), c[side .. "_ffn_dim"]
    local near = side == "encoder" and row.near_attention and row.near_attention(c)
    if row.positions == "learned" then
      add(stack .. "embed_positions.weight",
        { c[length_key(c, side)] + position_offset(row), c.d_model }, normal)
    end
    if row.norm_of_embedding then norm(stack .. "layernorm_embedding") end
    for i = 0, c[side .. "_layers"] - 1 do
      local layer = ("%slayers.%d."):format(stack, i)
      if near then
        near.add_parameters(layer .. "self_attn", add, normal)
        norm(layer .. "self_attn_layer_norm")
      else
        attention(layer .. "self_attn")
      end
      if side == "decoder" then attention(layer .. "encoder_attn") end
      linear(layer .. "fc1", c.d_model, inner)
      linear(layer .. "fc2", inner, c.d_model)
      norm(layer .. "final_layer_norm")
    end
    if row.norm_first then norm(stack .. "layer_norm") end
  end
  if not row.lacks_logits_bias then
    add("final_logits_bias", { 1, vocab_size_of(c, "decoder") }, blocks.zeros)
  end
end

-- Returns the mask of the encoder's tokens.
local function memory_mask_of(row, c, params, inputs)
  return { mask = masks.padding(inputs.attention_mask,
    params[embedding_of(row, c, "encoder") .. ".weight"].dtype) }
end

-- Returns the mask of the encoder's attention to itself.
local function encoder_mask_of(row, c, params, inputs)
  if not row.near_attention then return memory_mask_of(row, c, params, inputs) end
  local dtype = params[embedding_of(row, c, "encoder") .. ".weight"].dtype
  return row.near_attention(c).mask(inputs, dtype)
end

-- Returns either stack: function(params, input_ids, o, mask of the encoder's tokens, memory,
-- attention_mask of the decoder's tokens).
local function new_stack(row, c, side)
  local stack, embedding = stack_of(row, side), embedding_of(row, c, side)
  local near = side == "encoder" and row.near_attention and row.near_attention(c)
  local attention = blocks.new_attention(c[side .. "_attention_heads"],
    { q = ".q_proj", k = ".k_proj", v = ".v_proj", out = ".out_proj" }, c.attention_dropout)
  local activation = blocks.activation(c.model_type, c.activation_function)
  local scale = c.scale_embedding and math.sqrt(c.d_model) or 1
  local padding_row = blocks.padding_row(c)

  local function drop(x, o) return blocks.dropout(x, c.dropout, o) end

  local function feed_forward(params, layer, x, o)
    local y = activation(blocks.linear(params, layer .. "fc1", x, o))
    return blocks.linear(params, layer .. "fc2", blocks.dropout(y, c.activation_dropout, o), o)
  end

  local function positions(params, input_ids, x, o)
    if row.positions == "learned" then
      return blocks.position_embedding(params, stack .. "embed_positions", {}, o, input_ids,
        position_offset(row))
    elseif row.positions == "of tokens" then
      return sinusoids_of_tokens(c, input_ids, blocks.past(o), x)
    end
    return blocks.sinusoids(c.d_model, blocks.past(o), input_ids:size(1), x)
  end

  return function(params, input_ids, o, memory_mask, memory, own_padding)
    if row.positions ~= "of tokens" then
      blocks.check_length(c, length_key(c, side), o, input_ids)
    end
    local function norm(name, x) return blocks.layer_norm(params, name, x, 1e-5) end
    -- x + f(x), with the norm before f or after the sum.
    local function residual(name, x, f)
      if row.norm_first then return x + drop(f(norm(name, x)), o) end
      return norm(name, x + drop(f(x), o))
    end
    local x = blocks.embedding(params, embedding, input_ids, padding_row) * scale
    x = x + positions(params, input_ids, x, o)
    local mask = memory and masks.causal({ attention_mask = own_padding }, o, x)
      or memory_mask
    if row.norm_of_embedding then x = norm(stack .. "layernorm_embedding", x) end
    x = drop(x, o)
    local function apply_layer(layer, z, window)
      z = residual(layer .. "self_attn_layer_norm", z, function(y)
        if near then return near.attend(params, layer .. "self_attn", window, y, mask, o) end
        return attention.to_itself(params, layer .. "self_attn", y, mask, o)
      end)
      z = memory and residual(layer .. "encoder_attn_layer_norm", z, function(y)
        return attention.to_memory(params, layer .. "encoder_attn", y, memory, memory_mask, o)
      end) or z
      return residual(layer .. "final_layer_norm", z, function(y)
        return feed_forward(params, layer, y, o)
      end)
    end
    for i = 0, c[side .. "_layers"] - 1 do
      x = nn.block(apply_layer, ("%slayers.%d."):format(stack, i), x,
        near and c.attention_window[i + 1])
    end
    return row.norm_first and norm(stack .. "layer_norm", x) or x
  end
end

--- Returns a family. A row has the fields of a family besides its facts; `tasks` is the begin of
--- the names of its classes, if it has tasks.
return function(row)
  local family = { defaults = {}, optional = { "num_hidden_layers", unpack(row.optional or {}) } }
  for _, part in ipairs { row, common } do
    for key, value in pairs(part) do
      if not family[key] then family[key] = value end
    end
  end
  for _, part in ipairs { defaults, row.defaults } do
    for key, value in pairs(part) do family.defaults[key] = value end
  end
  family.tasks = row.tasks and new_tasks(row.tasks)
  family.ignored = { "^lm_head%.weight$", "^classification_head%.", "^qa_outputs%.",
    "coder%.version$", unpack(row.ignored or {}) }
  if row.positions ~= "learned" then
    table.insert(family.ignored, "coder%.embed_positions%.weights?$")
  end

  function family.check(c)
    for _, key in ipairs { "encoder_attention_heads", "decoder_attention_heads" } do
      blocks.check_multiple(c, "d_model", key)
    end
    if row.positions == "of tokens" and not (c.d_model > 3 and (c.pad_token_id or -1) >= 0) then
      fail("%s: positions count from pad_token_id (%s) and need a d_model above 3 (%d)",
        c.model_type, c.pad_token_id, c.d_model)
    end
  end

  function family.add_parameters(c, add) add_parameters(family, c, add) end

  function family.head(c)
    return embedding_of(family, c, "decoder") .. ".weight",
      not row.lacks_logits_bias and "final_logits_bias" or nil
  end

  function family.new_encoder(c)
    local encoder = new_stack(family, c, "encoder")
    return function(params, inputs, o)
      return encoder(params, inputs.input_ids, o, encoder_mask_of(family, c, params, inputs))
    end
  end

  function family.new_forward(c)
    local decoder = new_stack(family, c, "decoder")
    return function(params, inputs, o, memory)
      return decoder(params, inputs.decoder_input_ids, o,
        memory_mask_of(family, c, params, inputs), memory, inputs.decoder_attention_mask)
    end
  end

  return family
end
