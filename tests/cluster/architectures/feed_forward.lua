-- Feed-forward layers of other forms: gates, mixtures, made weights, messages.
local of = require "architectures.language_model"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local width, length = of.width, of.length
local weight, linear, norm, heads = of.weight, of.linear, of.norm, of.heads
local merged, attend = of.merged, of.attend
local list = of.list()

list.add_fed("a gate of every second feature", function()
  return { both = linear(8 * width, width), down = linear(width, 4 * width) }
end, function(p, x)
  local y = nn.linear(p.both, x)
  local n = y:size(-1)
  return nn.linear(p.down, torch.silu(y[{ "...", { 0, n, 2 } }]) * y[{ "...", { 1, n, 2 } }])
end, { { "both.weight", { dim = 0, grain = 2 } }, { "down.weight", 1 } })

-- RWKV's channel mixing: what is mixed of this position and the one before.
list.add_fed("shifted positions", function()
  return { mix = weight(2, width), up = linear(4 * width, width), down = linear(width, 4 * width),
    gate = linear(width, width) }
end, function(p, x)
  local before = torch.constant_pad_nd(x, { 0, 0, 1, -1 })
  local function mixed(i) return x * p.mix[i] + before * (1 - p.mix[i]) end
  local y = nn.linear(p.down, torch.relu(nn.linear(p.up, mixed(0))):square())
  return torch.sigmoid(nn.linear(p.gate, mixed(1))) * y
end, { { "mix", "replicate" }, { "up.weight", 0 }, { "down.weight", 1 },
  { "gate.weight", "replicate" } })

list.add_fed("weight norm", function()
  return { up = weight(4 * width, width), up_scale = torch.ones { 4 * width, 1 },
    down = weight(width, 4 * width), down_scale = torch.ones { width, 1 } }
end, function(p, x)
  local function normed(v, scale) return v / v:square():sum(1, true):sqrt() * scale end
  local y = torch.gelu(torch.linear(x, normed(p.up, p.up_scale)))
  return torch.linear(y, normed(p.down, p.down_scale))
end, { { "up", 0 }, { "up_scale", 0 }, { "down", 1 } })

list.add_fed("a dense mixture by batches of products", function()
  return { router = linear(4, width), up = weight(4, width, 2 * width),
    down = weight(4, 2 * width, width) }
end, function(p, x)
  local shares = nn.linear(p.router, x):softmax(-1)  -- [batch, length, experts]
  local rows = x:reshape { 1, -1, width }:expand { 4, -1, -1 }
  local y = torch.bmm(torch.gelu(torch.bmm(rows, p.up)), p.down)
  return (y * shares:reshape { -1, 4 }:transpose(0, 1):unsqueeze(-1)):sum(0):view_as(x)
end, { { "router.weight", "replicate" }, { "up", 0 }, { "down", 0 } })

-- Each token chooses two experts, which compute those that chose them in a loop.
list.add_fed("a mixture in a loop", function()
  local p = { router = linear(4, width), experts = {} }
  for i = 1, 4 do
    p.experts[i] = { gate = linear(2 * width, width), up = linear(2 * width, width),
      down = linear(width, 2 * width) }
  end
  return p
end, function(p, x)
  local rows = x:reshape { -1, width }
  local shares, chosen = nn.linear(p.router, rows):softmax(-1):topk(2, -1)
  local sum = torch.zeros_like(rows)
  for i, expert in ipairs(p.experts) do
    local hits = chosen:eq(i - 1)
    local at = hits:any(1):nonzero():squeeze(1)
    local own = rows:index_select(0, at)
    local y = torch.silu(nn.linear(expert.gate, own)) * nn.linear(expert.up, own)
    y = nn.linear(expert.down, y) * (shares * hits):sum(1):index_select(0, at):unsqueeze(1)
    sum = sum:index_add(0, at, y)
  end
  return sum:view_as(x)
end, { { "router.weight", "replicate" }, { "gate.weight", 0 }, { "up.weight", 0 },
  { "down.weight", 1 } })

-- A switch (arXiv 2101.03961): an expert takes as many tokens as it has places for.
list.add_fed("a mixture with places", function()
  return { router = linear(4, width), up = weight(4, width, 2 * width),
    down = weight(4, 2 * width, width) }
end, function(p, x)
  local rows = x:reshape { -1, width }
  local n = rows:size(0)
  local best, chosen = nn.linear(p.router, rows):softmax(-1):max(-1)
  local is_chosen = torch.one_hot(chosen, 4):float()
  local place = ((is_chosen:cumsum(0) - 1) * is_chosen):sum(-1)  -- in the queue of the expert
  local slots = torch.one_hot(place:clamp { max = n / 2 - 1 }:long(), n / 2):float()
  local dispatch = is_chosen:unsqueeze(-1) * slots:unsqueeze(1)
    * place:lt(n / 2):float():view { -1, 1, 1 }
  local y = torch.einsum("nd,nec->ecd", rows, dispatch)
  y = torch.bmm(torch.gelu(torch.bmm(y, p.up)), p.down)
  return torch.einsum("ecd,nec->nd", y, dispatch * best:view { -1, 1, 1 }):view_as(x)
end, { { "router.weight", "replicate" }, { "up", 0 }, { "down", 0 } })

-- Kolmogorov-Arnold layers (arXiv 2404.19756): each input through several fixed functions.
list.add_fed("sums of functions of each input", function()
  return { up = weight(2 * width, width, 4), down = weight(width, 2 * width, 4) }
end, function(p, x)
  local centers = torch.linspace(-1, 1, 4)
  local function layer(w, y)
    local basis = (y:unsqueeze(-1) - centers):square():neg():exp()
    return torch.einsum("btik,oik->bto", basis, w)
  end
  return layer(p.down, layer(p.up, x))
end, { { "up", 0 }, { "down", 1 } })

-- A set's elements see their mean (arXiv 1703.06114).
list.add_fed("deep sets", function()
  return { each = linear(4 * width, width), mean = linear(4 * width, width),
    down = linear(width, 4 * width) }
end, function(p, x)
  local y = nn.linear(p.each, x) + nn.linear(p.mean, x:mean(1, true))
  return nn.linear(p.down, torch.gelu(y))
end, { { "each.weight", 0 }, { "mean.weight", 0 }, { "down.weight", 1 } })

-- Features modulated by what is known of the whole sequence (arXiv 2212.09748).
list.add("modulated by the sequence", function()
  return { modulation = linear(6 * width, width), q = linear(width, width),
    k = linear(width, width), v = linear(width, width), o = linear(width, width),
    ff = of.feed_forward(), norm_2 = norm() }
end, function(p, x)
  local m = nn.linear(p.modulation, torch.silu(x:mean(1, true))):chunk(6, -1)
  local function modulated(shift, scale)
    return torch.layer_norm(x, { width }) * (1 + scale) + shift
  end
  local y = modulated(m[1], m[2])
  x = x + m[3] * nn.linear(p.o,
    attend(heads(nn.linear(p.q, y)), heads(nn.linear(p.k, y)), heads(nn.linear(p.v, y))))
  y = modulated(m[4], m[5])
  return x + m[6] * nn.linear(p.ff.down, torch.gelu(nn.linear(p.ff.up, y)))
end, { { "modulation.weight", 0 }, { "q.weight", 0 }, { "k.weight", 0 },
  { "v.weight", 0 }, { "o.weight", 1 }, unpack(of.pair) })

-- Few latents read the sequence, think, and are read by it (arXiv 2107.14795).
list.add("latents read the sequence", function()
  local p = { latents = weight(8, width), norm = norm(), norm_2 = norm(), ff = of.feed_forward() }
  for _, name in ipairs { "read", "write" } do
    p[name] = { q = linear(width, width), kv = linear(2 * width, width), o = linear(width, width) }
  end
  return p
end, function(p, x)
  local function cross(q, from, to)
    local k, v = unpack(nn.linear(q.kv, from):chunk(2, -1))
    local y = nn.attention(heads(nn.linear(q.q, to)), heads(k), heads(v))
    return nn.linear(q.o, merged(y))
  end
  local y = nn.rms_norm(p.norm, x)
  local latents = p.latents:expand { x:size(0), -1, -1 }
  latents = of.fed(p, latents + cross(p.read, y, latents))
  return x + cross(p.write, latents, y)
end, { { "q.weight", 0 }, { "kv.weight", { dim = 0, block = width } }, { "o.weight", 1 },
  unpack(of.pair) })

-- The most important half of the positions is computed (arXiv 2404.02258).
list.add("a choice of positions", function()
  return { router = linear(1, width), norm_2 = norm(), ff = of.feed_forward() }
end, function(p, x)
  local scores = nn.linear(p.router, x):squeeze(-1)
  local best, index = scores:topk(length / 2, 1)
  index = index:unsqueeze(-1):expand { -1, -1, width }
  local chosen = x:gather(1, index)
  local more = (of.fed(p, chosen) - chosen) * best:sigmoid():unsqueeze(-1)
  return x:scatter_add(1, index, more)
end, { { "router.weight", "replicate" }, unpack(of.pair) })

-- The weights of a layer are made from a learned vector (arXiv 1609.09106).
list.add_fed("a network that makes weights", function()
  return { vector = weight(16), up = weight(4 * width * width / 8, 16),
    down = weight(4 * width * width / 8, 16) }
end, function(p, x)
  local function made(w, n_out, n_in)
    return torch.mv(w, p.vector):view { n_out / 8, n_in }:repeat_interleave(8, 0)
  end
  return torch.linear(torch.gelu(torch.linear(x, made(p.up, 4 * width, width))),
    made(p.down, width, 4 * width))
end, { { "up", 0 }, { "down", "replicate" } })

-- Messages along edges, added up at the nodes.
list.add_fed("messages along edges", function()
  return { message = linear(2 * width, width), self = linear(width, width),
    out = linear(width, 2 * width) }
end, function(p, x)
  local from = torch.arange(length):roll(1)
  local messages = torch.gelu(nn.linear(p.message, x)):index_select(1, from)
  local sums = torch.zeros_like(messages):index_add(1, torch.arange(length), messages)
  return nn.linear(p.self, x) + nn.linear(p.out, sums)
end, { { "message.weight", 0 }, { "out.weight", 1 }, { "self.weight", 1 } })

-- Capsules agree by routing in rounds (arXiv 1710.09829).
list.add_fed("capsules", function()
  return { votes = weight(8, 8, 8, 8), out = linear(width, width) }  -- [from, to, in, out]
end, function(p, x)
  local capsules = x:view { x:size(0), x:size(1), 8, 8 }
  local votes = torch.einsum("btfi,foij->btfoj", capsules, p.votes)
  local logits = torch.zeros { x:size(0), x:size(1), 8, 8 }
  local result
  for _ = 1, 2 do
    result = (logits:softmax(-1):unsqueeze(-1) * votes):sum(2)
    result = result * (result:square():sum(-1, true) + 1e-6):rsqrt()
    logits = logits + (votes * result:unsqueeze(2)):sum(-1)
  end
  return nn.linear(p.out, result:flatten(2))
end, { { "votes", 1 }, { "out.weight", 1 } })

return list
