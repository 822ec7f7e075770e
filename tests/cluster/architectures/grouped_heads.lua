-- Attentions in which several heads of queries share keys and values, and blocks whose attention
-- and feed-forward layer read the same.
local of = require "architectures.language_model"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local width, n_heads, head_dim = of.width, of.n_heads, of.head_dim
local linear, norm, heads, merged, attend = of.linear, of.norm, of.heads, of.merged, of.attend
local list = of.list()

local function grouped(q, k, v)
  return merged(nn.attention(q, k, v, { causal = true, enable_gqa = true }))
end

-- Keys and values of `n` heads are split like the queries, if every shard gets a head.
local function qkvo(n)
  return function()
    return { q = linear(width, width), k = linear(n * head_dim, width),
      v = linear(n * head_dim, width), o = linear(width, width) }
  end
end
local function qkvo_rules(n)
  return function(n_shards)
    local shared = n % n_shards == 0 and 0 or "replicate"
    return { { "q.weight", 0 }, { "k.weight", shared }, { "v.weight", shared },
      { "o.weight", 1 } }
  end
end

list.add_attention("two heads of keys", qkvo(2), function(p, x)
  return nn.linear(p.o, grouped(heads(nn.linear(p.q, x)), heads(nn.linear(p.k, x)),
    heads(nn.linear(p.v, x))))
end, qkvo_rules(2))

list.add_attention("two heads of keys, repeated", qkvo(2), function(p, x)
  local k, v = heads(nn.linear(p.k, x)), heads(nn.linear(p.v, x))
  k = k:unsqueeze(2):expand { -1, -1, n_heads / 2, -1, -1 }:reshape { x:size(0), n_heads, -1,
    head_dim }
  return nn.linear(p.o, attend(heads(nn.linear(p.q, x)), k, v:repeat_interleave(2, 1)))
end, qkvo_rules(2))

-- Phi-3's.
list.add("two heads of keys, all projections fused", function()
  return { qkv = linear(width + 4 * head_dim, width), o = linear(width, width),
    gate_up = linear(8 * width, width), down = linear(width, 4 * width), norm_1 = norm(),
    norm_2 = norm() }
end, function(p, x)
  local sizes = { width, 2 * head_dim, 2 * head_dim }
  local q, k, v = unpack(nn.linear(p.qkv, nn.rms_norm(p.norm_1, x)):split_with_sizes(sizes, -1))
  x = x + nn.linear(p.o, grouped(heads(q), heads(k), heads(v)))
  local gate, up = unpack(nn.linear(p.gate_up, nn.rms_norm(p.norm_2, x)):chunk(2, -1))
  return x + nn.linear(p.down, torch.silu(gate) * up)
end, function(n_shards)
  local blocks = { dim = 0, block = { width, 2 * head_dim, 2 * head_dim } }
  return { { "qkv.weight", n_shards == 2 and blocks or "replicate" }, { "o.weight", 1 },
    { "gate_up.weight", { dim = 0, block = 4 * width } }, { "down.weight", 1 } }
end)

list.add_attention("one head of keys", function()
  return { q = linear(width, width), kv = linear(2 * head_dim, width), o = linear(width, width) }
end, function(p, x)
  local k, v = unpack(nn.linear(p.kv, x):chunk(2, -1))
  return nn.linear(p.o, grouped(heads(nn.linear(p.q, x)), heads(k), heads(v)))
end, { { "q.weight", 0 }, { "kv.weight", "replicate" }, { "o.weight", 1 } })

-- StarCoder's.
list.add_attention("one head of keys, fused", function()
  return { qkv = of.biased(width + 2 * head_dim, width), o = of.biased(width, width) }
end, function(p, x)
  local q, k, v = unpack(nn.linear(p.qkv, x):split_with_sizes({ width, head_dim, head_dim }, -1))
  return nn.linear(p.o, grouped(heads(q), heads(k), heads(v)))
end, { { "qkv.*", "replicate" }, { "o.weight", 1 } })

-- PaLM's (arXiv 2204.02311), with one projection in and one out.
list.add_fed("attention and feed-forward layer in one", function()
  return { all = linear(11 * width, width), out = linear(width, 5 * width) }
end, function(p, x)
  local sizes = { width, width, width, 4 * width, 4 * width }
  local q, k, v, gate, up = unpack(nn.linear(p.all, x):split_with_sizes(sizes, -1))
  local attended = attend(heads(q), heads(k), heads(v))
  return nn.linear(p.out, torch.cat({ attended, torch.silu(gate) * up }, -1))
end, { { "all.weight", { dim = 0, block = { width, width, width, 4 * width, 4 * width } } },
  { "out.weight", { dim = 1, block = { width, 4 * width } } } })

-- GPT-J's.
list.add_fed("attention beside the feed-forward layer", function()
  local p = qkvo(n_heads)()
  p.ff = of.feed_forward()
  return p
end, function(p, x)
  local y = attend(heads(nn.linear(p.q, x)), heads(nn.linear(p.k, x)), heads(nn.linear(p.v, x)))
  return nn.linear(p.o, y) + nn.linear(p.ff.down, torch.gelu(nn.linear(p.ff.up, x)))
end, of.joined(qkvo_rules(n_heads)(1), of.pair))

return list
