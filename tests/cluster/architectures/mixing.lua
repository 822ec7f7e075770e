-- Attentions without a softmax, in windows, with biases by distance, to a memory; layers that mix
-- positions; and models whose blocks or embeddings are shared.
local of = require "architectures.language_model"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local width, n_heads, length, head_dim = of.width, of.n_heads, of.length, of.head_dim
local biased, norm = of.biased, of.norm
local heads, merged, attend = of.heads, of.merged, of.attend
local list = of.list()

local function qkvo()
  return { q = biased(width, width), k = biased(width, width), v = biased(width, width),
    o = biased(width, width) }
end
local qkvo_rules = { { "q.*", 0 }, { "k.*", 0 }, { "v.*", 0 }, { "o.weight", 1 } }
local function projected(p, x)
  return heads(nn.linear(p.q, x)), heads(nn.linear(p.k, x)), heads(nn.linear(p.v, x))
end
local function self_attention(p, x) return nn.linear(p.o, attend(projected(p, x))) end

list.add_attention("biases by distance", qkvo, function(p, x)
  local q, k, v = projected(p, x)
  local slopes = (torch.arange(n_heads) * -2 - 2):float():exp2():view { n_heads, 1, 1 }
  local distance = (torch.arange(length):unsqueeze(0) - torch.arange(length):unsqueeze(1)):float()
  local scores = q:matmul(k:transpose(-1, -2)) / math.sqrt(head_dim) + slopes * distance
  scores = scores:masked_fill(distance:gt(0), -math.huge):softmax(-1)
  return nn.linear(p.o, merged(scores:matmul(v)))
end, qkvo_rules)

-- PyTorch's multi_head_attention_forward: positions first, heads beside the rows of the batch.
list.add_attention("positions first", function()
  return { qkv = biased(3 * width, width), o = biased(width, width) }
end, function(p, x)
  local y = x:transpose(0, 1)
  local rows = y:size(1)
  local function folded(z)
    return z:contiguous():view { length, rows * n_heads, head_dim }:transpose(0, 1)
  end
  local q, k, v = unpack(nn.linear(p.qkv, y):chunk(3, -1))
  local scores = torch.bmm(folded(q) / math.sqrt(head_dim), folded(k):transpose(1, 2))
  scores = (scores + torch.full({ length, length }, -1e9):triu(1)):softmax(-1)
  local z = torch.bmm(scores, folded(v)):transpose(0, 1):contiguous():view { length, rows, width }
  return nn.linear(p.o, z):transpose(0, 1)
end, { { "qkv.*", { dim = 0, block = width } }, { "o.weight", 1 } })

-- Sums over what came before (arXiv 2006.16236).
list.add_attention("linear attention", qkvo, function(p, x)
  local q, k, v = projected(p, x)
  q, k = torch.elu(q) + 1, torch.elu(k) + 1
  local states = torch.einsum("bhtk,bhtv->bhtkv", k, v):cumsum(2)
  local sums = torch.einsum("bhtk,bhtk->bht", q, k:cumsum(2))
  local y = torch.einsum("bhtk,bhtkv->bhtv", q, states) / (sums:unsqueeze(-1) + 1e-6)
  return nn.linear(p.o, merged(y))
end, qkvo_rules)

-- Swin's: four positions see each other, with learned biases.
list.add_attention("windows", function()
  return { qkv = biased(3 * width, width), o = biased(width, width),
    bias = of.weight(n_heads, 4, 4) }
end, function(p, x)
  local windows = x:size(0) * length / 4
  local z = nn.linear(p.qkv, x:view { windows, 4, width })
    :reshape { windows, 4, 3, n_heads, head_dim }:permute { 2, 0, 3, 1, 4 }
  local scores = (z[0]:matmul(z[1]:transpose(-2, -1)) / math.sqrt(head_dim) + p.bias):softmax(-1)
  local y = scores:matmul(z[2]):transpose(1, 2):reshape { windows, 4, width }
  return nn.linear(p.o, y):view { x:size(0), length, width }
end, { { "qkv.*", { dim = 0, block = width } }, { "o.weight", 1 }, { "blocks.*.bias", 0 } })

list.add_attention("a memory that all layers read", function()
  local p = qkvo()
  p.cross = { q = biased(width, width), kv = biased(2 * width, width), o = biased(width, width),
    norm = norm() }
  return p
end, function(p, x, all)
  local y = self_attention(p, x)
  local memory = all.memory:unsqueeze(0):expand { x:size(0), -1, -1 }
  local k, v = unpack(nn.linear(p.cross.kv, memory):chunk(2, -1))
  local q = heads(nn.linear(p.cross.q, nn.rms_norm(p.cross.norm, x + y)))
  return y + nn.linear(p.cross.o, merged(nn.attention(q, heads(k), heads(v))))
end, of.joined({ { "memory", "replicate" }, { "kv.*", { dim = 0, block = width } } }, qkvo_rules),
  { more = function(all) all.memory = of.weight(8, width) end })

-- MLP-Mixer's (arXiv 2105.01601).
list.add_attention("positions mixed by layers", function()
  return { mixer = { up = biased(32, length), down = biased(length, 32) } }
end, function(p, x)
  local y = torch.gelu(nn.linear(p.mixer.up, x:transpose(1, 2)))
  return nn.linear(p.mixer.down, y):transpose(1, 2)
end, { { "*.mixer.up.*", 0 }, { "*.mixer.down.weight", 1 }, { "*.mixer.down.bias", "replicate" } })

list.add_attention("a head that is the embedding", qkvo, self_attention, qkvo_rules,
  { is_tied = true })

-- ALBERT's (arXiv 1909.11942).
list.add("one block for all layers", function() return { scale = torch.ones { 1 } } end,
  function(p, x, all)
    local shared = all.shared
    x = x + p.scale * self_attention(shared, nn.rms_norm(shared.norm_1, x))
    return of.fed(shared, x)
  end, of.joined(qkvo_rules, of.pair), { more = function(all)
    all.shared = qkvo()
    all.shared.norm_1, all.shared.norm_2, all.shared.ff = norm(), norm(), of.feed_forward()
  end })

return list
