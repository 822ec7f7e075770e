--- What the families of models share: layers over a flat table of parameters by their dotted names,
--- masks and positions. Shapes: B batch, T new tokens, S tokens seen so far, H heads, D their size.
local adapter = require "redco.lora.adapter"
local fail = require "redco.fail"
local native = require "redco.native"
local nn = require "redco.nn"
local torch = require "redco.torch"

local blocks = {}

-- Initial values: each takes a tensor and a generator.

function blocks.normal(std)
  return function(t, generator) return nn.init.normal_(t, { std = std, generator = generator }) end
end

function blocks.zeros(t) return nn.init.zeros_(t) end

function blocks.ones(t) return nn.init.ones_(t) end

function blocks.constant(value)
  return function(t) return nn.init.constant_(t, value) end
end

--- The row of the padding token in an embedding, as `torch.nn.Embedding(padding_idx)` counts: a
--- negative token counts from the end. nil without a padding token.
function blocks.padding_row(c)
  local row = c.pad_token_id
  if row and row >= c.vocab_size then
    fail("%s: pad_token_id (%d) must be below vocab_size (%d)", c.model_type, row, c.vocab_size)
  end
  return row and row % c.vocab_size
end

--- For an embedding: normal, with zeros in the row of the padding token.
function blocks.normal_but_padding(c, std)
  local normal, row = blocks.normal(std), blocks.padding_row(c)
  if not row then return normal end
  return function(t, generator)
    normal(t, generator)
    -- No view of the row: the table may be split by rows.
    return torch.no_grad(function()
      return t:index_fill_(0, torch.tensor({ row }, { device = t.device }), 0)
    end)
  end
end

-- Names of the parameters of layers: `add(name, sizes, init)` is called for each.

function blocks.add_layer_norm(add, name, size)
  add(name .. ".weight", { size }, blocks.ones)
  add(name .. ".bias", { size }, blocks.zeros)
end

--- A weight [out, in], and a bias unless it is said to be false.
function blocks.add_linear(add, name, n_in, n_out, init, bias)
  add(name .. ".weight", { n_out, n_in }, init)
  if bias ~= false then add(name .. ".bias", { n_out }, blocks.zeros) end
end

--- Refuses a configuration whose `key` cannot be cut into as many parts as its `parts` says.
function blocks.check_multiple(c, key, parts)
  if c[key] % c[parts] ~= 0 then
    fail("%s: %s (%d) is no multiple of %s (%d)", c.model_type, key, c[key], parts, c[parts])
  end
end

-- A model as a part of another: its names begin with `prefix` there.

function blocks.add_with_prefix(add, prefix)
  return function(name, ...) add(prefix .. name, ...) end
end

--- Those of `params` that begin with the prefix, by the rest of their names.
function blocks.with_prefix(params, prefix)
  return setmetatable({}, { __index = function(_, name) return params[prefix .. name] end })
end

-- Layers.

--- x W^T + b, with what an adapter beside the weight adds.
function blocks.linear(params, name, x, options)
  local y = native.linear(x, params[name .. ".weight"], params[name .. ".bias"])
  return adapter.by_name(params, name, x, y, options)
end

--- The same for a weight [in, out].
function blocks.conv1d(params, name, x, options)
  local y = native.linear(x, params[name .. ".weight"]:t(), params[name .. ".bias"])
  return adapter.by_name(params, name, x, y, options)
end

function blocks.layer_norm(params, name, x, eps)
  local weight = params[name .. ".weight"]
  return torch.layer_norm(x, weight.shape, weight, params[name .. ".bias"], eps)
end

function blocks.rms_norm(params, name, x, eps)
  local weight = params[name .. ".weight"]
  return torch.rms_norm(x, weight.shape, weight, eps)
end

--- `padding_idx`: a row that gets no gradient from the lookup.
function blocks.embedding(params, name, ids, padding_idx)
  adapter.refuse(params, name)
  return torch.embedding(params[name .. ".weight"], ids, padding_idx or -1)
end

--- Learned positions [B or 1, T, size] of the tokens `ids` [B, T]; the first `offset` rows are for
--- others.
function blocks.position_embedding(params, name, inputs, options, ids, offset)
  adapter.refuse(params, name)
  local past, weight = blocks.past(options), params[name .. ".weight"]
  if not inputs.position_ids and not inputs.attention_mask then
    return weight:narrow(0, past + (offset or 0), ids:size(1)):unsqueeze(0)
  end
  return torch.embedding(weight, blocks.position_ids(inputs, options, ids) + (offset or 0))
end

function blocks.dropout(x, p, options)
  return nn.dropout(x, p, { train = options.train, rng = options.rng })
end

local function tanh_gelu(x) return torch.gelu(x, { approximate = "tanh" }) end

local activations = {
  gelu = torch.gelu,
  gelu_new = tanh_gelu,
  gelu_fast = tanh_gelu,
  gelu_pytorch_tanh = tanh_gelu,
  quick_gelu = function(x) return x * torch.sigmoid(x * 1.702) end,
  relu = torch.relu,
  silu = torch.silu,
  swish = torch.silu,
  tanh = torch.tanh,
}

--- An activation by the name that configurations give it.
function blocks.activation(family, name)
  return activations[name] or fail("%s: unknown activation '%s'", family, tostring(name))
end

-- Attention.

--- [B, T, H * D] -> [B, H, T, D]
function blocks.split_heads(x, n_heads)
  local batch, length, size = unpack(x.shape)
  return x:view { batch, length, n_heads, size / n_heads }:transpose(1, 2)
end

--- [B, H, T, D] -> [B, T, H * D]
function blocks.merge_heads(x)
  local batch, n_heads, length, size = unpack(x.shape)
  return x:transpose(1, 2):reshape { batch, length, n_heads * size }
end

--- The number of tokens that were seen before these.
function blocks.past(options)
  return options.cache and options.cache.length or 0
end

--- Refuses more tokens than the configuration's `key` says there are positions for; `ids` [B, T]
--- are the new ones.
function blocks.check_length(c, key, options, ids)
  local length = blocks.past(options) + ids:size(1)
  if length > c[key] then
    fail("%s: %d tokens are more than the model's %s, %d", c.model_type, length, key, c[key])
  end
end

--- The keys and values of a layer that looks at an encoder's output: with a cache, made once.
function blocks.of_memory(options, layer, make)
  if options.cache then return options.cache:once(layer, make) end
  return make()
end

--- [B, T] or [1, T]: the positions of the new tokens, of which x [B, T, ...] is made. Where
--- `attention_mask` [B, S] tells tokens (1) from padding (0), they count the tokens: padding on the
--- left moves nothing.
function blocks.position_ids(inputs, options, x)
  if inputs.position_ids then return inputs.position_ids end
  local past, length = blocks.past(options), x:size(1)
  if not inputs.attention_mask then
    return torch.arange(past, past + length, { device = x.device }):unsqueeze(0)
  end
  return inputs.attention_mask:cumsum(1):sub(1):clamp(0):narrow(1, past, length)
end

-- [B, 1, 1, S]
local function seen_keys(attention_mask)
  return attention_mask:ne(0):unsqueeze(1):unsqueeze(1)
end

-- What is added to scores: 0 where `seen`, else -inf.
local function additive(seen, dtype)
  return torch.zeros_like(seen, { dtype = dtype }):masked_fill(seen:logical_not(), -math.huge)
end

local function segments_mask(inputs, options, x)
  local segments, length = inputs.segment_ids, x:size(1)
  if options.cache then fail("segment_ids: rows of several sequences have no cache") end
  if not inputs.position_ids then
    fail("segment_ids: they need position_ids, which count from 0 in each sequence")
  end
  local same = segments:unsqueeze(-1):eq(segments:unsqueeze(1)):unsqueeze(1)
  local before = torch.ones({ length, length }, { dtype = "bool", device = x.device }):tril()
  return { mask = additive(same:logical_and(before), x.dtype) }
end

--- How the new tokens x [B, T, ...] look at themselves and at those before: `{causal = true}`
--- where LibTorch's own mask will do, else `{mask = [B or 1, 1, T, S]}`, to be added. Padding
--- before the first token looks at itself, because a row must see something; padding after it the
--- tokens, as in transformers. Each sequence of a row, as `segment_ids` [B, T] number them, sees
--- itself alone.
function blocks.causal_mask(inputs, options, x)
  if inputs.segment_ids then return segments_mask(inputs, options, x) end
  local past, padding = blocks.past(options), inputs.attention_mask
  local length, dtype = x:size(1), x.dtype
  if not padding and length == 1 then return {} end
  if not padding and past == 0 then return { causal = true } end
  if padding and length == 1 then return { mask = additive(seen_keys(padding), dtype) } end
  local all = torch.ones({ length, past + length },
    { dtype = "bool", device = x.device })
  local seen = all:tril(past)
  if padding then
    local is_leading = padding:ne(0):cumsum(1):eq(0):narrow(1, past, length)
    local itself = all:triu(past):logical_and(seen)
      :logical_and(is_leading:unsqueeze(1):unsqueeze(-1))
    seen = seen_keys(padding):logical_and(seen):logical_or(itself)
  end
  return { mask = additive(seen, dtype) }
end

--- How all look at a sequence with padding: nil, or [B, 1, 1, S], to be added.
function blocks.padding_mask(attention_mask, dtype)
  return attention_mask and additive(seen_keys(attention_mask), dtype)
end

--- softmax(q k^T scale + mask) v, heads put together: [B, T, H * D]. `given`: mask, causal, scale,
--- enable_gqa and dropout, as nn.attention takes them. `options` are the model's.
function blocks.attention(q, k, v, given, options)
  return blocks.merge_heads(nn.attention(q, k, v, { mask = given.mask, causal = given.causal,
    scale = given.scale, enable_gqa = given.enable_gqa, dropout = given.dropout,
    train = options.train, rng = options.rng }))
end

--- An attention layer without rotary positions, with as many heads for k and v as for q:
--- `layer.to_itself(params, name, x, mask, o)` and `layer.to_memory(params, name, x, memory, mask,
--- o)`. Masks are as causal_mask gives them; `names` are the ends of the names of q, k, v and out.
function blocks.new_attention(n_heads, names, dropout, scale)
  local function heads(params, name, x, o)
    return blocks.split_heads(blocks.linear(params, name, x, o), n_heads)
  end

  local function keys_and_values(params, name, x, o)
    return heads(params, name .. names.k, x, o), heads(params, name .. names.v, x, o)
  end

  local function attend(params, name, x, k, v, mask, o)
    local y = blocks.attention(heads(params, name .. names.q, x, o), k, v,
      { mask = mask.mask, causal = mask.causal, dropout = dropout, scale = scale }, o)
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
