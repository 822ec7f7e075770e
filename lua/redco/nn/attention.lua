--- Scaled dot-product attention and the multi-head layer.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local check_params = require "redco.nn.check_params"
local dropout = require("redco.nn.dropout").dropout
local fail = require "redco.fail"
local layers = require "redco.nn.layers"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

local attention = {}

local sdpa = arguments("nn.attention",
  { causal = false, dropout = 0, train = false, enable_gqa = false },
  { "mask", "segment_ids", "window", "scale", "softcap", "sinks", "rng" })

-- Combines `mask`, `causal`, `segment_ids` and `window` into one mask of the dtype of `mask`.
local function whole_mask(q, k, o)
  if not o.causal then return o.mask end
  local seen = o.is_near and native.segment_mask(q, o.segment_ids, o.window)
    or torch.ones({ q:size(-2), k:size(-2) }, { dtype = "bool", device = q.device }):tril()
  if not o.mask then return seen end
  if o.mask.dtype == "bool" then return o.mask:logical_and(seen) end
  return o.mask:masked_fill(seen:logical_not(), -math.huge)
end

-- Whether there is one query in each head, with the same mask in all heads. False if q is sharded,
-- because shards of heads need not be whole groups.
local function is_one_token(q, mask)
  return q:size(-2) == 1 and not q:is_sharded()
    and (not mask or mask:dim() < 3 or mask:size(-3) == 1)
end

-- Returns q with the heads that share a head of k as queries of one head: then k and v are read
-- once without copies. The second result is the shape of the result of attention.
local function with_grouped_heads(q, k, v)
  local grouped, shape = { unpack(q.shape) }, { unpack(q.shape) }
  local n = #shape
  grouped[n - 2], grouped[n - 1], shape[n] = k:size(-3), shape[n - 2] / k:size(-3), v:size(-1)
  return q:reshape(grouped), shape
end

-- Returns k and v with each head repeated for the query heads that share it.
local function repeated(q, k, v)
  local groups = q:size(-3) / k:size(-3)
  return k:repeat_interleave(groups, -3), v:repeat_interleave(groups, -3)
end

-- Computes sinks by attention without them. A first key, which every query sees, has the value zero
-- and the sinks as scores: queries and keys get one more element for each query head that shares a
-- key head; a query has 1 in the place of its head, and the first key has the sinks. Returns the
-- arguments of LibTorch's attention, and a function that reads its result.
local function with_sink_key(q, k, v, mask, causal, o)
  local batch, n_heads, length, size = unpack(q.shape)
  local n_kv, v_size = k:size(1), v:size(-1)
  local groups, scale = n_heads / n_kv, o.scale or 1 / math.sqrt(size)
  local place = torch.eye(groups, { dtype = q.dtype, device = q.device }):tile { n_kv, 1 }
  local own = place:view { 1, n_heads, 1, groups }:expand { batch, n_heads, length, groups }
  local sinks = (o.sinks:to(q.dtype) / scale):view { 1, n_kv, 1, groups }
  local first = torch.constant_pad_nd(sinks, { size, 0 }, 0)
    :expand { batch, n_kv, 1, size + groups }
  q = torch.cat({ q, own }, -1)
  k = torch.cat({ first, torch.constant_pad_nd(k, { 0, groups }, 0) }, -2)
  -- Fused attention needs values of the size of keys.
  v = torch.constant_pad_nd(v, { 0, size + groups - v_size, 1, 0 }, 0)
  if mask then mask = torch.constant_pad_nd(mask, { 1, 0 }, mask.dtype == "bool" and 1 or 0) end
  -- Query i sees i keys, so the additional key needs an additional first query.
  if causal then q = torch.constant_pad_nd(q, { 0, 0, 1, 0 }, 0) end
  return q, k, v, mask, scale, function(y)
    return y:narrow(-1, 0, v_size):narrow(-2, causal and 1 or 0, length)
  end
end

-- Softmax of scores [..., heads, rows, n] with one more score in each row, which is left out of the
-- result. `sinks` has its shape: [heads, rows or 1, 1].
local function softmax_with_sinks(scores, sinks)
  local n, shape = scores:size(-1), scores.shape
  shape[#shape] = 1
  local all = torch.cat({ scores, sinks:to(scores.dtype):expand(shape) }, -1)
  return all:softmax(-1):narrow(-1, 0, n)
end

-- Attention with dropout, because LibTorch's draws from the global generator instead of `rng`,
-- or with a soft cap, which LibTorch's lacks.
local function step_by_step(q, k, v, o)
  local mask = whole_mask(q, k, o)
  if o.enable_gqa then k, v = repeated(q, k, v) end
  local scale = o.scale or 1 / math.sqrt(q:size(-1))
  if o.train and o.dropout > 0 and o.rng and not o.sinks and not o.softcap then
    return native.dropout_attention(q, k, v, mask, scale, o.dropout, o.rng)
  end
  local scores = q:matmul(k:transpose(-2, -1)) * scale
  if o.softcap then scores = torch.tanh(scores / o.softcap) * o.softcap end
  if mask then
    scores = mask.dtype == "bool" and scores:masked_fill(mask:logical_not(), -math.huge)
      or scores + mask
  end
  -- A query that attends to nothing has probabilities of 0, as in LibTorch's attention.
  local probs = o.sinks
    and softmax_with_sinks(scores, o.sinks:view { scores:size(-3), -1, 1 })
    or torch._safe_softmax(scores, -1)
  return dropout(probs, o.dropout, { train = o.train, rng = o.rng }):matmul(v)
end

local function check_tensor(where, name, t, n_dims, shape)
  if not torch.is_tensor(t) or t:dim() < n_dims then
    fail("%s: %s: expected a tensor [%s], got %s", where, name, shape, native.describe(t))
  end
end

local function check_sinks(q, sinks)
  local is_list = torch.is_tensor(sinks) and sinks:dim() == 1
  if q:dim() == 4 and is_list and sinks:size(0) == q:size(1) then return end
  fail("nn.attention: sinks: expected a tensor [heads] for q [batch, heads, length, size], got %s "
    .. "for q %s", native.describe(sinks), native.describe(q))
end

-- Checks the other arguments that `segment_ids` and `window` need.
local function check_near(q, k, o)
  local name = o.segment_ids and "segment_ids" or "window"
  if not o.causal then fail("nn.attention: %s: causal = true is missing", name) end
  if q:dim() ~= 4 or k:dim() ~= 4 or q:size(2) ~= k:size(2) then
    fail("nn.attention: %s: expected q and k [batch, heads, length, size] of one length, got %s "
      .. "and %s", name, native.describe(q), native.describe(k))
  end
  if q:size(1) ~= k:size(1) and not o.enable_gqa then
    fail("nn.attention: %s: q has %d heads and k has %d; with enable_gqa = true they share k's",
      name, q:size(1), k:size(1))
  end
  if o.window then check_integer("nn.attention", "window", o.window, 1) end
end

-- Attention by the kernels that fit. `is_step` if q has one token.
local function attend(q, k, v, o, is_step)
  if o.softcap or o.train and o.dropout > 0 or o.sinks and is_step then
    return step_by_step(q, k, v, o)
  end
  if not o.causal and not o.enable_gqa and not o.sinks then
    local y = native.few_query_attention(q, k, v, o.mask, o.scale)
    if y then return y end
  end
  -- LibTorch accepts a mask or `causal`, but not both.
  local both = o.causal and (o.mask or o.is_near)
  local mask, causal = both and whole_mask(q, k, o) or o.mask, o.causal and not both
  local is_on_gpu, enable_gqa = native.device_type(q) == "cuda", o.enable_gqa
  -- LibTorch's fused kernel fails in backward if only the mask is trained.
  if is_on_gpu and mask and mask.requires_grad
    and not (q.requires_grad or k.requires_grad or v.requires_grad) then
    return step_by_step(q, k, v, o)
  end
  -- GPUs' fused float32 kernels do not support groups, and without them all scores would be stored.
  if is_on_gpu and enable_gqa and q.dtype == "float32" then
    k, v = repeated(q, k, v)
    enable_gqa = false
  end
  local scale, cut = o.scale, function(y) return y end
  if o.sinks then q, k, v, mask, scale, cut = with_sink_key(q, k, v, mask, causal, o) end
  -- GPUs' fused kernels refuse other masks, and without them all scores would be stored.
  if is_on_gpu and mask and mask:stride(-1) ~= 1 then mask = mask:contiguous() end
  local named = { scale = scale, enable_gqa = enable_gqa }
  if is_step and is_on_gpu then
    return cut(native.without_cudnn_attention(torch.scaled_dot_product_attention, q, k, v, mask, 0,
      causal, named))
  end
  return cut(torch.scaled_dot_product_attention(q, k, v, mask, 0, causal, named))
end

attention.attention = registry.define("redco.nn.attention", [[
attention(q, k, v, {mask = nil, causal = false, segment_ids = nil, window: integer = nil, dropout = 0, train = false, rng = nil, scale = nil, softcap = nil, sinks = nil, enable_gqa = false}) -> like q
Computes softmax(q k^T * scale + mask) v for q, k, v [..., heads, length, size]. The default scale
is 1/sqrt(size). `mask` is added to the scores; a boolean mask is false where q must not attend.
`causal` masks future positions. With causal, each sequence of a row attends only to itself with
`segment_ids` [batch, length], integers: a run of equal ones is a sequence. The numbers of two
sequences of a row differ, except for 0, padding. With a `window` a position attends only to so many
last ones, itself among them. Neither needs a mask [length, length], unless there is another mask,
dropout, a soft cap or sinks, or float32 on a GPU. `enable_gqa`: k and v have fewer heads, each used
by a group of q's heads. With `softcap`, scores become tanh(scores / softcap) * softcap before the
mask. `sinks` [heads] are one more score in each row of a head, which takes its share of the softmax
and has no value; q is then [batch, heads, length, size]. Dropout as in `nn.dropout`.]],
function(q, k, v, options)
  local o = sdpa(options)
  check_tensor("nn.attention", "q", q, 2, "..., heads, length, size")
  check_tensor("nn.attention", "k", k, 2, "..., heads, length, size")
  check_tensor("nn.attention", "v", v, 2, "..., heads, length, size")
  if o.sinks then check_sinks(q, o.sinks) end
  o.is_near = o.segment_ids or o.window
  if o.is_near then
    check_near(q, k, o)
    local is_plain = not (o.mask or o.softcap or o.sinks or o.train and o.dropout > 0)
    if is_plain and native.has_segment_attention(q) then
      return native.segment_attention(q, k, v, o.segment_ids, o.window, o.scale)
    end
  end
  local is_step, shape = is_one_token(q, o.mask), nil
  if is_step and o.enable_gqa and not o.causal then
    o.enable_gqa, q, shape = false, with_grouped_heads(q, k, v)
  end
  local y = attend(q, k, v, o, is_step)
  return shape and y:reshape(shape) or y
end)

local new = arguments("nn.MultiheadAttention", { bias = true }, { "generator" })
attention.MultiheadAttention = registry.define("redco.nn.MultiheadAttention", [[
MultiheadAttention(embed_dim, {bias = true, generator = nil}) -> params
Returns the parameters of `multihead_attention`: {q_proj, k_proj, v_proj, out_proj}, each those of
a linear layer from embed_dim to embed_dim.]],
function(embed_dim, options)
  local o = new(options)
  local params = {}
  for _, name in ipairs { "q_proj", "k_proj", "v_proj", "out_proj" } do
    params[name] = layers.Linear(embed_dim, embed_dim, o)
  end
  return params
end)

local use = arguments("nn.multihead_attention", { causal = false, dropout = 0, train = false },
  { "num_heads", "memory", "mask", "rng" })
attention.multihead_attention = registry.define("redco.nn.multihead_attention", [[
multihead_attention(params, x [batch, length, embed_dim], {num_heads, memory = x, mask = nil, causal = false, dropout = 0, train = false, rng = nil}) -> like x
Attends from x to `memory` in num_heads heads: Vaswani et al., 2017. Other arguments as in
`nn.attention`.]], function(params, x, options)
  check_params("multihead_attention", "MultiheadAttention", params)
  local o = use(options)
  local heads = o.num_heads or fail "nn.multihead_attention: num_heads is missing"
  check_tensor("nn.multihead_attention", "x", x, 3, "batch, length, embed_dim")
  local batch, length, embed_dim = unpack(x.shape)
  local function project(name, from)
    return layers.linear(params[name], from, { train = o.train, rng = o.rng })
  end
  local function split(name, from)
    return project(name, from):view { batch, from:size(1), heads, embed_dim / heads }
      :transpose(1, 2)
  end
  local memory = o.memory or x
  local q, k, v = split("q_proj", x), split("k_proj", memory), split("v_proj", memory)
  local y = attention.attention(q, k, v,
    { mask = o.mask, causal = o.causal, dropout = o.dropout, train = o.train, rng = o.rng })
  return project("out_proj", y:transpose(1, 2):reshape { batch, length, embed_dim })
end)

return attention
