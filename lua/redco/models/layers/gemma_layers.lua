--- Parts of the layers of Gemma 3n and Gemma 4: attention whose keys and values may be those of an
--- earlier layer, and embeddings for each layer. Shapes: B batch, T new tokens.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local norms = require "redco.models.layers.norms"
local rotary = require "redco.models.layers.rotary"
local torch = require "redco.torch"

local gemma = {}

--- Returns a function of i: the layer whose keys and values layer i uses, or nil: the last
--- num_kv_shared_layers use those of the last one before them of the same kind.
function gemma.new_shared(c)
  local first = c.num_hidden_layers - c.num_kv_shared_layers
  local last = {}
  for i = 0, first - 1 do last[c.layer_types[i + 1]] = i end
  return function(i)
    -- As in transformers, no layer is shared if all layers would be.
    if first <= 0 or i < first then return nil end
    return last[c.layer_types[i + 1]] or fail("%s: no layer before the last %d has %s",
      c.model_type, c.num_kv_shared_layers, c.layer_types[i + 1])
  end
end

--- Adds the parameters of the attention `name`. sizes: head_dim, n_kv and has_v, whether values
--- have a projection, not that of keys.
function gemma.add_attention(c, name, sizes, is_shared, linear, norm)
  local width, size, bias = c.hidden_size, sizes.head_dim, c.attention_bias
  linear(name .. ".q_proj", width, c.num_attention_heads * size, bias)
  norm(name .. ".q_norm", { size })
  if not is_shared then
    linear(name .. ".k_proj", width, sizes.n_kv * size, bias)
    if sizes.has_v then linear(name .. ".v_proj", width, sizes.n_kv * size, bias) end
    norm(name .. ".k_norm", { size })
  end
  linear(name .. ".o_proj", c.num_attention_heads * size, width, bias)
end

--- Returns function(params, name, x, angles, mask, shared, o) -> y, k, v; `shared` is a table of k
--- and v of another layer, or nil.
function gemma.new_attention(c, sizes)
  local n_kv = sizes.n_kv
  local function norm(params, name, x, kind)
    return (kind or norms.rms).apply(params, name, x, c.rms_norm_eps)
  end
  local function heads(params, name, part, n, x, o)
    return blocks.linear(params, name .. part, x, o)
      :view { x:size(0), x:size(1), n, sizes.head_dim }
  end
  return function(params, name, x, angles, mask, shared, o)
    local q = norm(params, name .. ".q_norm",
      heads(params, name, ".q_proj", c.num_attention_heads, x, o))
    q = rotary.turn_halves(q:transpose(1, 2), unpack(angles))
    local k, v = unpack(shared or {})
    if not shared then
      local projected = heads(params, name, ".k_proj", n_kv, x, o)
      k = norm(params, name .. ".k_norm", projected)
      k = rotary.turn_halves(k:transpose(1, 2), unpack(angles))
      v = sizes.has_v and heads(params, name, ".v_proj", n_kv, x, o) or projected
      v = norm(params, nil, v, norms.rms_plain):transpose(1, 2)
      if o.cache then k, v = o.cache:extend(name, k, v) end
    end
    local y = blocks.attention(q, k, v, { seen = mask, scale = 1, dropout = c.attention_dropout,
      enable_gqa = n_kv < c.num_attention_heads }, o)
    return blocks.linear(params, name .. ".o_proj", y, o), k, v
  end
end

--- Returns x times the root of `size`, rounded to their dtype.
function gemma.scaled(x, size)
  return x * torch.tensor(math.sqrt(size), { dtype = x.dtype }):item()
end

--- Adds the parameters of what each layer reads of the tokens.
function gemma.add_inputs_of_layers(c, linear, norm, add)
  local n = c.num_hidden_layers * c.hidden_size_per_layer_input
  add("model.embed_tokens_per_layer.weight", { c.vocab_size_per_layer_input, n },
    blocks.normal_but_padding(c, c.initializer_range, "vocab_size_per_layer_input"), "embedding")
  linear("model.per_layer_model_projection", c.hidden_size, n)
  norm("model.per_layer_projection_norm", { c.hidden_size_per_layer_input })
end

--- Returns what each layer reads of the tokens `ids` with the embeddings x: [B, T, layers,
--- hidden_size_per_layer_input].
function gemma.inputs_of_layers(c, params, ids, x, o)
  local own = c.hidden_size_per_layer_input
  local shape = { ids:size(0), ids:size(1), c.num_hidden_layers, own }
  local of_tokens = gemma.scaled(blocks.embedding(params, "model.embed_tokens_per_layer", ids,
    blocks.padding_row(c, "vocab_size_per_layer_input")), own):view(shape)
  local of_states = blocks.linear(params, "model.per_layer_model_projection", x, o)
    * c.hidden_size ^ -0.5
  of_states = norms.rms.apply(params, "model.per_layer_projection_norm", of_states:view(shape),
    c.rms_norm_eps)
  return (of_states + of_tokens) * 2 ^ -0.5
end

return gemma
