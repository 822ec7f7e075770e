-- Layers with a state that goes from position to position.
local of = require "architectures.language_model"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local width, length = of.width, of.length
local weight, linear, biased = of.weight, of.linear, of.biased
local list = of.list()

-- Mamba's (arXiv 2312.00752), position by position.
local inner, state, rank = 2 * width, 8, 4
list.add_fed("selective states", function()
  return { into = linear(2 * inner, width), conv = weight(inner, 1, 4),
    choice = linear(rank + 2 * state, inner), step = biased(inner, rank),
    decay = torch.full({ inner, state }, 0.5), skip = torch.ones { inner },
    out = linear(width, inner) }
end, function(p, x)
  local u, gate = unpack(nn.linear(p.into, x):chunk(2, -1))
  u = torch.conv1d(u:transpose(1, 2), p.conv, nil, { 1 }, { 3 }, { 1 }, inner)
  u = torch.silu(u:narrow(2, 0, length):transpose(1, 2))
  local step, b, c = unpack(nn.linear(p.choice, u):split_with_sizes({ rank, state, state }, -1))
  step = torch.softplus(nn.linear(p.step, step)):unsqueeze(-1)
  local kept, added = (step * -p.decay:exp()):exp(), step * b:unsqueeze(2) * u:unsqueeze(-1)
  local h, ys = torch.zeros_like(added:select(1, 0)), {}
  for t = 0, length - 1 do
    h = kept:select(1, t) * h + added:select(1, t)
    ys[#ys + 1] = (h * c:select(1, t):unsqueeze(1)):sum(-1)
  end
  return nn.linear(p.out, (torch.stack(ys, 1) + u * p.skip) * torch.silu(gate))
end, { { "into.weight", { dim = 0, block = inner } }, { "conv", 0 }, { "choice.weight", 1 },
  { "step.*", 0 }, { "decay", 0 }, { "skip", 0 }, { "out.weight", 1 } })

-- RWKV's time mixing (arXiv 2305.13048).
list.add_fed("weighted means of the past", function()
  return { mix = weight(3, width), r = linear(width, width), k = linear(width, width),
    v = linear(width, width), o = linear(width, width), decay = weight(width) }
end, function(p, x)
  local before = torch.constant_pad_nd(x, { 0, 0, 1, -1 })
  local function mixed(i) return x * p.mix[i] + before * (1 - p.mix[i]) end
  local r, v = nn.linear(p.r, mixed(0)):sigmoid(), nn.linear(p.v, mixed(2))
  local k = nn.linear(p.k, mixed(1)):clamp { max = 2 }:exp()
  local decay, above, below, ys = (-p.decay:exp()):exp(), 0, 0, {}
  for t = 0, length - 1 do
    above = above * decay + k:select(1, t) * v:select(1, t)
    below = below * decay + k:select(1, t)
    ys[#ys + 1] = above / below
  end
  return nn.linear(p.o, r * torch.stack(ys, 1))
end, { { "mix", "replicate" }, { "r.weight", 0 }, { "k.weight", 0 }, { "v.weight", 0 },
  { "decay", 0 }, { "o.weight", 1 } })

list.add_fed("gated recurrent units", function()
  return { cell = nn.GRUCell(width, width, { generator = torch.Generator(3) }) }
end, function(p, x)
  local h, hs = torch.zeros { x:size(0), width }, {}
  for t = 0, length - 1 do
    h = nn.gru_cell(p.cell, x:select(1, t), h)
    hs[#hs + 1] = h
  end
  return torch.stack(hs, 1)
end, { { "cell.*", { dim = 0, block = width } } })

return list
