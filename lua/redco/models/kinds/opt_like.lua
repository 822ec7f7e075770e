--- Decoders built as OPT is: attention with biases, and positions added to embeddings. A family is
--- a row of facts:
---   prefix, last_norm: of the names of parameters
---   keys: of the configuration, where they differ from OPT's; activation_dropout, which OPT lacks
---   has_sinusoids: whether positions are computed
---   norm_first(c), has_last_norm(c), has_bias(c): by default true
---   embedded(c): the size of embeddings, if not that of the layers
---   scales(c): whether embeddings are scaled
---   drops_embedding: whether there is dropout behind the embeddings
local blocks = require "redco.models.layers.blocks"
local masks = require "redco.models.layers.masks"
local nn = require "redco.nn"

local opt_keys = {
  size = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads",
  inner = "ffn_dim", activation = "activation_function", dropout = "dropout",
  attention_dropout = "attention_dropout", std = "init_std",
}

-- Tokens do not use the first two rows of the table of positions.
local position_offset = 2

local function always() return true end

local default_facts = { norm_first = always, has_last_norm = always, has_bias = always,
  scales = function() return false end, embedded = function() end }

local function add_parameters(row, value, c, add)
  local width, inner, prefix = value(c, "size"), value(c, "inner"), row.prefix
  local std, has_bias = value(c, "std"), row.has_bias(c)
  local normal, embedded = blocks.normal(std), row.embedded(c) or width
  add(prefix .. "embed_tokens.weight", { c.vocab_size, embedded },
    blocks.normal_but_padding(c, std))
  if not row.has_sinusoids then
    add(prefix .. "embed_positions.weight",
      { c.max_position_embeddings + position_offset, width }, normal)
  end
  if embedded ~= width then
    blocks.add_linear(add, prefix .. "project_in", embedded, width, normal, false)
    blocks.add_linear(add, prefix .. "project_out", width, embedded, normal, false)
  end
  for i = 0, value(c, "layers") - 1 do
    local layer = ("%slayers.%d."):format(prefix, i)
    for _, projection in ipairs { "k_proj", "v_proj", "q_proj", "out_proj" } do
      blocks.add_linear(add, layer .. "self_attn." .. projection, width, width, normal, has_bias)
    end
    blocks.add_layer_norm(add, layer .. "self_attn_layer_norm", width)
    blocks.add_linear(add, layer .. "fc1", width, inner, normal, has_bias)
    blocks.add_linear(add, layer .. "fc2", inner, width, normal, has_bias)
    blocks.add_layer_norm(add, layer .. "final_layer_norm", width)
  end
  if row.has_last_norm(c) then blocks.add_layer_norm(add, prefix .. row.last_norm, width) end
  if not c.tie_word_embeddings then
    add((row.lm_head or "lm_head") .. ".weight", { c.vocab_size, embedded }, normal)
  end
end

-- Returns function(params, inputs, o) -> [B or 1, T, size]
local function new_positions(row, c, size)
  if not row.has_sinusoids then
    return function(params, inputs, o)
      return blocks.position_embedding(params, row.prefix .. "embed_positions", inputs, o,
        inputs.input_ids, position_offset)
    end
  end
  return function(_, inputs, o, x)
    local places = blocks.position_ids(inputs, o, inputs.input_ids) + position_offset
    local y = blocks.sinusoids_at(size, places, x)
    -- The position pad_token_id is zero, like the row of padding in an embedding.
    return c.pad_token_id and y:masked_fill(places:eq(c.pad_token_id):unsqueeze(-1), 0) or y
  end
end

local function new_forward(row, value, c)
  local eps, width, prefix = 1e-5, value(c, "size"), row.prefix
  local activation = blocks.activation(c.model_type, value(c, "activation"))
  local padding_row, positions = blocks.padding_row(c), new_positions(row, c, width)
  local scale, is_first = row.scales(c) and math.sqrt(width) or 1, row.norm_first(c)
  local is_projected = (row.embedded(c) or width) ~= width
  local attention = blocks.new_attention(value(c, "heads"),
    { q = ".q_proj", k = ".k_proj", v = ".v_proj", out = ".out_proj" },
    value(c, "attention_dropout"))

  -- x + f(x), with the norm before f or after the sum.
  local function residual(params, norm, x, o, f)
    local function drop(y) return blocks.dropout(y, value(c, "dropout"), o) end
    if is_first then return x + drop(f(blocks.layer_norm(params, norm, x, eps))) end
    return blocks.layer_norm(params, norm, x + drop(f(x)), eps)
  end

  local function apply_layer(params, layer, x, mask, o)
    x = residual(params, layer .. "self_attn_layer_norm", x, o, function(y)
      return attention.to_itself(params, layer .. "self_attn", y, mask, o)
    end)
    return residual(params, layer .. "final_layer_norm", x, o, function(y)
      local z = activation(blocks.linear(params, layer .. "fc1", y, o))
      z = blocks.dropout(z, value(c, "activation_dropout") or 0, o)
      return blocks.linear(params, layer .. "fc2", z, o)
    end)
  end

  return function(params, inputs, o)
    blocks.check_length(c, "max_position_embeddings", o, inputs.input_ids)
    local x = blocks.embedding(params, prefix .. "embed_tokens", inputs.input_ids, padding_row)
    if scale ~= 1 then x = x * scale end
    if is_projected then x = blocks.linear(params, prefix .. "project_in", x, o) end
    x = x + positions(params, inputs, o, x)
    if row.drops_embedding then x = blocks.dropout(x, value(c, "dropout"), o) end
    local mask = masks.causal(inputs, o, x, { plain_dropout = value(c, "attention_dropout") })
    for i = 0, value(c, "layers") - 1 do
      x = nn.block(apply_layer, params, ("%slayers.%d."):format(prefix, i), x, mask, o)
    end
    if row.has_last_norm(c) then
      x = blocks.layer_norm(params, prefix .. row.last_norm, x, eps)
    end
    return is_projected and blocks.linear(params, prefix .. "project_out", x, o) or x
  end
end

--- Returns a family. A row has the fields of a family besides its facts.
return function(row)
  local keys = setmetatable(row.keys or {}, { __index = opt_keys })
  local facts = setmetatable(row, { __index = default_facts })
  local function value(c, name) return keys[name] and c[keys[name]] end
  local family = { inputs = { "input_ids", "attention_mask", "position_ids", "segment_ids" } }
  for key, field in pairs(row) do family[key] = field end
  family.size_key = keys.size ~= opt_keys.size and keys.size or nil

  function family.check(c) blocks.check_multiple(c, keys.size, keys.heads) end

  function family.add_parameters(c, add) add_parameters(facts, value, c, add) end

  family.head = blocks.tied_head(row.prefix .. "embed_tokens.weight",
    (row.lm_head or "lm_head") .. ".weight")

  function family.new_forward(c) return new_forward(facts, value, c) end

  return family
end
