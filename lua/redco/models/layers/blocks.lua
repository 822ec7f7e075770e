--- Building blocks of the model families: layers over a flat table of parameters with dotted names,
--- and positions. Shapes: B batch, T new tokens, S tokens seen so far, H heads, D their size.
local adapter = require "redco.lora.adapter"
local fail = require "redco.fail"
local native = require "redco.native"
local nn = require "redco.nn"
local torch = require "redco.torch"
local weights = require "redco.quant.weights"

local blocks = {}

-- Initialisers: functions of a tensor and a generator.

function blocks.normal(std)
  return function(t, generator) return nn.init.normal_(t, { std = std, generator = generator }) end
end

--- An initialiser for layers and convolutions, as PyTorch's are initialised.
function blocks.of_fan_in(t, generator)
  return nn.init.kaiming_uniform_(t, { a = math.sqrt(5), generator = generator })
end

function blocks.zeros(t) return nn.init.zeros_(t) end

function blocks.ones(t) return nn.init.ones_(t) end

function blocks.constant(value)
  return function(t) return nn.init.constant_(t, value) end
end

--- Returns the row of the padding token in an embedding, or nil without one. As in
--- `torch.nn.Embedding(padding_idx)`, a negative token counts from the end. `key` of the
--- configuration is the number of rows, by default vocab_size.
function blocks.padding_row(c, key)
  key = key or "vocab_size"
  local row, n = c.pad_token_id, c[key]
  if row and row >= n then
    fail("%s: pad_token_id (%d) must be below %s (%d)", c.model_type, row, key, n)
  end
  return row and row % n
end

--- An initialiser for embeddings: normal, with zeros in the row of the padding token.
function blocks.normal_but_padding(c, std, key)
  local normal, row = blocks.normal(std), blocks.padding_row(c, key)
  if not row then return normal end
  return function(t, generator)
    normal(t, generator)
    -- Does not use a view of the row, because the table may be sharded by rows.
    return torch.no_grad(function()
      return t:index_fill_(0, torch.tensor({ row }, { device = t.device }), 0)
    end)
  end
end

-- Declarations of the parameters of layers: each calls `add(name, sizes, init, kind)`. The kind
-- names how the model uses a weight that may be quantized: "linear", "head" or "embedding".

function blocks.add_layer_norm(add, name, size)
  add(name .. ".weight", { size }, blocks.ones)
  add(name .. ".bias", { size }, blocks.zeros)
end

--- Adds a weight [out, in] and a bias. `bias` is false for none, or its initialiser, by default
--- zeros.
function blocks.add_linear(add, name, n_in, n_out, init, bias)
  add(name .. ".weight", { n_out, n_in }, init, "linear")
  if bias == false then return end
  add(name .. ".bias", { n_out }, type(bias) == "function" and bias or blocks.zeros)
end

--- Adds the weight [out, in, ...] and the bias of a convolution. `shape` is that of the weight.
function blocks.add_convolution(add, name, shape, init)
  add(name .. ".weight", shape, init)
  add(name .. ".bias", { shape[1] }, blocks.zeros)
end

--- Raises an error if the configuration's `key` is not a multiple of its `parts`.
function blocks.check_multiple(c, key, parts)
  if c[key] % c[parts] ~= 0 then
    fail("%s: %s (%d) is not a multiple of %s (%d)", c.model_type, key, c[key], parts, c[parts])
  end
end

-- A model as a part of another: its parameter names get a prefix there.

function blocks.add_with_prefix(add, prefix)
  return function(name, ...) add(prefix .. name, ...) end
end

--- Returns the parameters whose names begin with the prefix, with the prefix removed.
function blocks.with_prefix(params, prefix)
  return setmetatable({}, { __index = function(_, name) return params[prefix .. name] end })
end

-- Layers.

--- Computes x W^T + b, plus the output of the layer's adapter.
function blocks.linear(params, name, x, options)
  local y = weights.linear(params, name .. ".", x, params[name .. ".bias"])
  return adapter.by_name(params, name, x, y, options)
end

--- The same for a weight [in, out], as in the layers that transformers calls Conv1D.
function blocks.transposed_linear(params, name, x, options)
  weights.note(name, x, params[name .. ".weight"])
  local y = native.linear(x, params[name .. ".weight"]:t(), params[name .. ".bias"])
  return adapter.by_name(params, name, x, y, options)
end

--- Convolves images x [B, C, H, W].
function blocks.conv2d(params, name, x, options)
  return torch.conv2d(x, params[name .. ".weight"], params[name .. ".bias"], options)
end

--- Returns the embeddings [B, size, rows, columns] of the patches of images, in the weight's dtype.
function blocks.patches(params, name, pixels, options)
  return blocks.conv2d(params, name, pixels:to(params[name .. ".weight"].dtype), options)
end

function blocks.layer_norm(params, name, x, eps)
  local weight = params[name .. ".weight"]
  return torch.layer_norm(x, weight.shape, weight, params[name .. ".bias"], eps)
end

function blocks.rms_norm(params, name, x, eps)
  local weight = params[name .. ".weight"]
  return torch.rms_norm(x, weight.shape, weight, eps)
end

--- Looks up embeddings. The row `padding_idx` gets no gradient.
function blocks.embedding(params, name, ids, padding_idx)
  adapter.refuse(params, name)
  local y = weights.rows(params, name .. ".", ids, padding_idx)
  return adapter.embedded(params, name .. ".", y, ids)
end

--- Looks up the learned positions [B or 1, T, size] of the tokens `ids` [B, T]. The first position
--- is in row `offset`.
function blocks.position_embedding(params, name, inputs, options, ids, offset)
  adapter.refuse(params, name)
  local weight = params[name .. ".weight"]
  if not inputs.position_ids and not inputs.attention_mask and not blocks.place(options) then
    return weight:narrow(0, blocks.past(options) + (offset or 0), ids:size(1)):unsqueeze(0)
  end
  return torch.embedding(weight, blocks.position_ids(inputs, options, ids) + (offset or 0))
end

--- Returns sinusoidal positions [T, size] of `length` tokens after `past`: sines, then cosines, in
--- the order of transformers.
function blocks.sinusoids(size, past, length, like)
  local options = { dtype = "float64", device = like.device }
  local places = torch.arange(past, past + length, options):unsqueeze(1)
  local function angles(first)
    return places / torch.pow(10000, torch.arange(first, size, 2, options):sub(first) / size)
  end
  return torch.cat({ angles(0):sin(), angles(1):cos() }, 1):to(like.dtype)
end

--- Returns fairseq's sinusoids of the places [B or 1, T]: sines, then cosines, [B or 1, T, size].
function blocks.sinusoids_at(size, places, like)
  local half = math.floor(size / 2)
  local steps = (torch.arange(half, { device = places.device }):float()
    * (-math.log(10000) / (half - 1))):exp()
  local angles = places:float():unsqueeze(-1) * steps
  local y = torch.cat({ angles:sin(), angles:cos() }, -1)
  if size % 2 == 1 then y = torch.constant_pad_nd(y, { 0, 1 }, 0) end
  return y:to(like.dtype)
end

function blocks.dropout(x, p, options)
  return nn.dropout(x, p, { train = options.train, rng = options.rng })
end

--- In training, leaves out the branch x of each example with the probability p, and divides the
--- others by 1 - p: stochastic depth (Huang et al., 2016).
function blocks.drop_path(x, p, options)
  if not options.train or p == 0 then return x end
  local first = x:detach()
  for d = 1, x:dim() - 1 do first = first:narrow(d, 0, 1) end
  return x * blocks.dropout(torch.ones_like(first), p, options)
end

--- Returns the output y of a layer, but in training, with the probability p, its input x in place
--- of it: LayerDrop (Fan et al., 2019). For each example, not for the whole batch as in
--- transformers, so that all layouts leave out the same.
function blocks.layerdrop(x, y, p, options)
  if not options.train or p == 0 then return y end
  local first = torch.ones_like(x:narrow(1, 0, 1):narrow(2, 0, 1))
  return torch.where(blocks.dropout(first, p, options):gt(0), y, x)
end

local function tanh_gelu(x) return torch.gelu(x, { approximate = "tanh" }) end

local activations = {
  gelu = torch.gelu,
  gelu_new = tanh_gelu,
  gelu_fast = tanh_gelu,
  gelu_pytorch_tanh = tanh_gelu,
  quick_gelu = function(x) return x * torch.sigmoid(x * 1.702) end,
  relu = torch.relu,
  relu2 = function(x) return torch.relu(x):square() end,
  silu = torch.silu,
  swish = torch.silu,
  tanh = torch.tanh,
}

--- Returns the activation of this name in Hugging Face's configurations.
function blocks.activation(family, name)
  return activations[name] or fail("%s: unknown activation '%s'", family, name)
end

--- activation(gate) * up; for SiLU one operator, which keeps less for backward.
function blocks.gated(activation, gate, up)
  if activation == torch.silu then return nn.silu_mul(gate, up) end
  return activation(gate) * up
end

--- Returns a feed-forward layer, function(params, name, x, o): two linear layers with an activation
--- between them. `names` are their suffixes.
function blocks.new_mlp(activation, names)
  return function(params, name, x, o)
    local y = activation(blocks.linear(params, name .. names[1], x, o))
    return blocks.linear(params, name .. names[2], y, o)
  end
end

--- Returns a function of a configuration to the name of the head's weight: `embedding` if they are
--- tied, else `head` or "lm_head.weight".
function blocks.tied_head(embedding, head)
  return function(c) return c.tie_word_embeddings and embedding or head or "lm_head.weight" end
end

--- Returns the dtype for sums and losses of a tensor: "float64" for float64, else "float32".
function blocks.wide_dtype(t) return t.dtype == "float64" and "float64" or "float32" end

-- Attention.

--- [B, T, H * D] -> [B, H, T, D]
function blocks.split_heads(x, n_heads)
  local batch, length, size = unpack(x.shape)
  return x:view { batch, length, n_heads, size / n_heads }:transpose(1, 2)
end

--- [B, T, H * 3 * D] -> q, k and v, each [B, H, T, D]
function blocks.split_fused_heads(x, n_heads)
  local batch, length, size = unpack(x.shape)
  local q, k, v = unpack(x:view { batch, length, n_heads, 3, size / n_heads / 3 }:unbind(3))
  return q:transpose(1, 2), k:transpose(1, 2), v:transpose(1, 2)
end

--- [B, H, T, D] -> [B, T, H * D]
function blocks.merge_heads(x)
  local batch, n_heads, length, size = unpack(x.shape)
  return x:transpose(1, 2):reshape { batch, length, n_heads * size }
end

--- Returns the number of tokens in the cache. Raises an error if the calls of the model must not
--- depend on it.
function blocks.past(options)
  local cache = options.cache
  if cache and cache.place then
    fail("model.generate: cache_implementation = \"static\": the layers of this model depend on "
      .. "the length of the text: leave the option out")
  end
  return cache and cache.length or 0
end

--- Returns the tensor [1] with the number of tokens in a cache, if calls of the model must not
--- depend on it, or nil.
function blocks.place(options) return options.cache and options.cache.place end

--- Returns whether no token was before the new ones.
function blocks.is_prompt(options)
  return not blocks.place(options) and blocks.past(options) == 0
end

--- Returns the number of keys that the new tokens x [B, T, ...] attend to.
function blocks.n_keys(options, x)
  return (options.cache and options.cache:n_columns() or 0) + x:size(1)
end

--- Returns the places [1, T] of the new tokens x [B, T, ...], which count padding.
function blocks.places(options, x)
  local place = blocks.place(options)
  if place then return place:unsqueeze(0) end
  local past = blocks.past(options)
  return torch.arange(past, past + x:size(1), { device = x.device }):unsqueeze(0)
end

--- Raises an error if the tokens, `ids` [B, T] being the new ones, exceed the number of positions,
--- which is the configuration's `key`.
function blocks.check_length(c, key, options, ids)
  if blocks.place(options) then return end
  local length = blocks.past(options) + ids:size(1)
  if length > c[key] then
    fail("%s: %d tokens are more than the model's %s, %d", c.model_type, length, key, c[key])
  end
end

--- Returns the keys and values of a cross-attention layer. With a cache, they are computed once.
function blocks.of_memory(options, layer, make)
  if options.cache then return options.cache:once(layer, make) end
  return make()
end

--- Returns the positions [B, T] or [1, T] of the new tokens x [B, T, ...]. With `attention_mask`
--- [B, S] (1 for tokens, 0 for padding) positions count only tokens, so padding on the left does
--- not shift them.
function blocks.position_ids(inputs, options, x)
  if inputs.position_ids then return inputs.position_ids end
  local mask = inputs.attention_mask
  if not mask then return blocks.places(options, x) end
  -- All padding is before a new token.
  if blocks.place(options) then return blocks.places(options, x) - mask:eq(0):sum({ 1 }, true) end
  return mask:cumsum(1):sub(1):clamp(0):narrow(1, blocks.past(options), x:size(1))
end

--- Computes softmax(q k^T scale + mask) v: [B, H, T, D]. `given` has mask or `seen`, a mask of
--- masks.lua, and scale, softcap, sinks, enable_gqa and dropout, as in nn.attention. `options` are
--- those of the model call.
function blocks.attend(q, k, v, given, options)
  local seen = given.seen or given
  return nn.attention(q, k, v, { mask = seen.mask, causal = seen.causal,
    segment_ids = seen.segment_ids, window = seen.window, scale = given.scale,
    softcap = given.softcap, sinks = given.sinks, enable_gqa = given.enable_gqa,
    dropout = given.dropout, train = options.train, rng = options.rng })
end

--- The same with merged heads: [B, T, H * D].
function blocks.attention(q, k, v, given, options)
  return blocks.merge_heads(blocks.attend(q, k, v, given, options))
end

--- Returns an attention layer without rotary positions, with as many heads for k and v as for q:
--- `layer.to_itself(params, name, x, mask, o)` and `layer.to_memory(params, name, x, memory, mask,
--- o)`. Masks have the form of masks.causal; `names` are the suffixes of q, k, v and out.
function blocks.new_attention(n_heads, names, dropout, scale)
  local function heads(params, name, x, o)
    return blocks.split_heads(blocks.linear(params, name, x, o), n_heads)
  end

  local function keys_and_values(params, name, x, o)
    return heads(params, name .. names.k, x, o), heads(params, name .. names.v, x, o)
  end

  local function attend(params, name, x, k, v, mask, o)
    local y = blocks.attention(heads(params, name .. names.q, x, o), k, v,
      { seen = mask, dropout = dropout, scale = scale }, o)
    return blocks.linear(params, name .. names.out, y, o)
  end

  return {
    to_itself = function(params, name, x, mask, o)
      local k, v = keys_and_values(params, name, x, o)
      if o.cache then k, v = o.cache:extend(name, k, v) end
      return attend(params, name, x, k, v, mask, o)
    end,
    to_memory = function(params, name, x, memory, mask, o)
      local k, v = blocks.of_memory(o, name, function()
        return keys_and_values(params, name, memory, o)
      end)
      return attend(params, name, x, k, v, mask, o)
    end,
  }
end

return blocks
