-- Models with two inputs, products of features by features, codebooks and spectra.
local of = require "architectures.language_model"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local width, n_heads, length, head_dim = of.width, of.n_heads, of.length, of.head_dim
local weight, linear, biased, norm = of.weight, of.linear, of.biased, of.norm
local heads, merged, attend = of.heads, of.merged, of.attend
local list = of.list()

local qkvo, qkvo_rules = of.qkvo, of.qkvo_rules

-- The delta rule with gates (arXiv 2412.06464), position by position.
list.add_attention("gated delta rule", function()
  local p = qkvo()
  p.beta, p.decay, p.gate = linear(n_heads, width), linear(n_heads, width), linear(width, width)
  p.head_norm = { weight = torch.ones { head_dim } }
  return p
end, function(p, x)
  local q, k, v = heads(nn.linear(p.q, x)), heads(nn.linear(p.k, x)), heads(nn.linear(p.v, x))
  k = k * (k:square():sum(-1, true) + 1e-6):rsqrt()
  local beta = nn.linear(p.beta, x):sigmoid():transpose(1, 2)
  local decay = (-torch.softplus(nn.linear(p.decay, x))):exp():transpose(1, 2)
  local state, ys = torch.zeros { x:size(0), n_heads, head_dim, head_dim }, {}
  for t = 0, length - 1 do
    local key, at = k:select(2, t), v:select(2, t)
    state = state * decay:select(2, t):unsqueeze(-1):unsqueeze(-1)
    local known = (state * key:unsqueeze(-1)):sum(-2)
    local change = (at - known) * beta:select(2, t):unsqueeze(-1)
    state = state + key:unsqueeze(-1) * change:unsqueeze(-2)
    ys[#ys + 1] = (state * q:select(2, t):unsqueeze(-1)):sum(-2)
  end
  local y = nn.rms_norm(p.head_norm, torch.stack(ys, 2))
  return nn.linear(p.o, merged(y) * torch.silu(nn.linear(p.gate, x)))
end, of.joined(qkvo_rules, { { "beta.weight", 0 }, { "decay.weight", 0 }, { "gate.weight", 0 } }))

-- Positions are mixed and shared out softly among slots of experts (arXiv 2308.00951).
list.add_fed("a soft mixture", function()
  return { slots = weight(8, width), up = weight(4, width, 2 * width),
    down = weight(4, 2 * width, width) }
end, function(p, x)
  local logits = x:matmul(p.slots:t())  -- [batch, length, slots]
  local inputs = torch.einsum("bts,btd->bsd", logits:softmax(1), x)
  local y = inputs:view { x:size(0), 4, 2, width }:transpose(0, 1):reshape { 4, -1, width }
  y = torch.bmm(torch.gelu(torch.bmm(y, p.up)), p.down)
  y = y:view { 4, x:size(0), 2, width }:transpose(0, 1):reshape { x:size(0), 8, width }
  return torch.einsum("bts,bsd->btd", logits:softmax(2), y)
end, { { "slots", "replicate" }, { "up", 2 }, { "down", 1 } })

-- The nearest vector of a codebook stands for each position (arXiv 1711.00937).
list.add_fed("a codebook", function()
  return { into = linear(4 * width, width), code = linear(32, 4 * width), book = weight(96, 32),
    up = linear(4 * width, 32), down = linear(width, 4 * width) }
end, function(p, x)
  local z = nn.linear(p.code, torch.gelu(nn.linear(p.into, x)))
  local distance = p.book:square():sum(-1) - 2 * z:matmul(p.book:t())
  local nearest = torch.embedding(p.book, distance:argmin(-1))
  z = z + (nearest - z):detach() + 0.1 * (nearest - z:detach())
  return nn.linear(p.down, torch.gelu(nn.linear(p.up, z)))
end, { { "into.weight", 0 }, { "code.weight", 1 }, { "book", 0 }, { "up.weight", 0 },
  { "down.weight", 1 } })

-- Fourier neural operators (arXiv 2010.08895): the lowest frequencies are mixed.
list.add_fed("spectra", function()
  return { real = weight(8, width, width), imaginary = weight(8, width, width),
    near = linear(width, width) }
end, function(p, x)
  local spectrum = torch.fft_rfft(x, nil, 1):narrow(1, 0, 8):contiguous()
  local w = torch.complex(p.real, p.imaginary)
  local mixed = torch.einsum("bfi,fio->bfo", spectrum, w)
  local back = torch.fft_irfft(torch.cat({ mixed, torch.zeros_like(mixed:narrow(1, 0, 1)) }, 1),
    length, 1)
  return torch.gelu(back + nn.linear(p.near, x))
end, { { "real", 2 }, { "imaginary", 2 }, { "near.weight", 0 } })

-- Scores by an additive layer (arXiv 1409.0473).
list.add_attention("additive attention", function()
  return { q = linear(width, width), k = linear(width, width), v = linear(width, width),
    score = linear(1, width), o = linear(width, width) }
end, function(p, x)
  local q, k = nn.linear(p.q, x):unsqueeze(2), nn.linear(p.k, x):unsqueeze(1)
  local scores = nn.linear(p.score, torch.tanh(q + k)):squeeze(-1)
  scores = scores + torch.full({ length, length }, -1e9):triu(1)
  return nn.linear(p.o, scores:softmax(-1):matmul(nn.linear(p.v, x)))
end, { { "q.weight", 0 }, { "k.weight", 0 }, { "score.weight", 1 }, { "v.weight", 0 },
  { "o.weight", 1 } })

-- Images and texts meet in products of all pairs (arXiv 2103.00020).
list[#list + 1] = { name = "two towers", params = function()
  local function tower()
    local p = qkvo()
    p.norm_1, p.norm_2, p.ff = norm(), norm(), of.feed_forward()
    return p
  end
  return { embedding = weight(of.vocabulary, width), patch = biased(width, 48), text = tower(),
    image = tower(), to_text = linear(32, width), to_image = linear(32, width) }
end, loss = function(p, batch)
  local function through(tower, x)
    local y = nn.rms_norm(tower.norm_1, x)
    y = attend(heads(nn.linear(tower.q, y)), heads(nn.linear(tower.k, y)),
      heads(nn.linear(tower.v, y)))
    return of.fed(tower, x + nn.linear(tower.o, y)):mean(1)
  end
  local patches = torch.im2col(batch.images, { 4, 4 }, { 1, 1 }, { 0, 0 }, { 4, 4 })
  local image = nn.linear(p.to_image, through(p.image, nn.linear(p.patch,
    patches:transpose(1, 2))))
  local text = nn.linear(p.to_text, through(p.text, torch.embedding(p.embedding, batch.ids)))
  local labels = torch.arange(of.batch)
  local scores = image:matmul(text:t())
  return nn.cross_entropy(scores, labels) + nn.cross_entropy(scores:t(), labels)
end, rules = function()
  return of.joined({ { "embedding", 0 }, { "patch.*", "replicate" }, { "to_text.weight",
    "replicate" }, { "to_image.weight", "replicate" } }, qkvo_rules, of.pair)
end }

return list
