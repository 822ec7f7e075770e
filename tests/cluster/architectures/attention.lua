-- Attentions whose projections are taken apart, normed, turned or shared in several ways.
local of = require "architectures.language_model"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local width, n_heads, length, head_dim = of.width, of.n_heads, of.length, of.head_dim
local weight, linear, biased, norm = of.weight, of.linear, of.biased, of.norm
local heads, merged, attend = of.heads, of.merged, of.attend
local list = of.list()

-- Queries, keys and values of one projection, taken apart in several ways.
for _, case in ipairs {
  { "fused, narrowed", { dim = 0, block = width }, 1, function(y)
    return heads(y:narrow(-1, 0, width)), heads(y:narrow(-1, width, width)),
      heads(y:narrow(-1, 2 * width, width))
  end },
  { "fused, heads innermost", { dim = 0, block = n_heads }, 1, function(y)
    local z = y:view { y:size(0), y:size(1), head_dim, 3, n_heads }:permute { 3, 0, 4, 1, 2 }
    return z[0], z[1], z[2]
  end },
  { "fused in each head", 0, 1, function(y)
    return unpack(y:view { y:size(0), y:size(1), n_heads, 3 * head_dim }:transpose(1, 2)
      :chunk(3, -1))
  end },
  { "fused, in chunks", { dim = 0, block = width }, 1, function(y)
    local q, k, v = unpack(y:chunk(3, -1))
    return heads(q), heads(k), heads(v)
  end },
  { "fused, indexed", { dim = 0, block = width }, 1, function(y)
    local function part(i) return heads(y[{ "...", { i * width, (i + 1) * width } }]) end
    return part(0), part(1), part(2)
  end },
  { "fused as a dimension", { dim = 0, block = width }, 1, function(y)
    local z = y:view { y:size(0), y:size(1), 3, n_heads, head_dim }:permute { 2, 0, 3, 1, 4 }
    return z[0], z[1], z[2]
  end },
  { "fused, heads last of all", { dim = 0, block = n_heads }, 1, function(y)
    local z = y:view { y:size(0), y:size(1), 3, head_dim, n_heads }:permute { 2, 0, 4, 1, 3 }
    return z[0], z[1], z[2]
  end },
  { "fused as PyTorch's MultiheadAttention does", { dim = 0, block = width }, 1, function(y)
    local z = y:unflatten(-1, { 3, width }):unsqueeze(0):transpose(0, -2):squeeze(-2):contiguous()
    return heads(z[0]), heads(z[1]), heads(z[2])
  end },
} do
  local name, outputs, inputs, split = unpack(case)
  list.add_attention(name, function()
    return { qkv = biased(3 * width, width), o = biased(width, width) }
  end, function(p, x) return nn.linear(p.o, attend(split(nn.linear(p.qkv, x)))) end,
    { { "qkv.*", outputs }, { "o.weight", inputs } })
end

list.add_attention("einsum over heads", function()
  return { q = weight(width, n_heads, head_dim), k = weight(width, n_heads, head_dim),
    v = weight(width, n_heads, head_dim), o = weight(n_heads, head_dim, width) }
end, function(p, x)
  local function project(w) return torch.einsum("btd,dhe->bhte", x, w) end
  local y = nn.attention(project(p.q), project(p.k), project(p.v), { causal = true })
  return torch.einsum("bhte,hed->btd", y, p.o)
end, { { "q", 1 }, { "k", 1 }, { "v", 1 }, { "o", 0 } })

list.add_attention("weights as [in, out]", function()
  return { q = weight(width, width), k = weight(width, width), v = weight(width, width),
    o = weight(width, width) }
end, function(p, x)
  return torch.matmul(attend(heads(x:matmul(p.q)), heads(x:matmul(p.k)), heads(x:matmul(p.v))),
    p.o)
end, { { "q", 1 }, { "k", 1 }, { "v", 1 }, { "o", 0 } })

-- DeepSeek's: queries, and keys and values, go through latents with a norm.
list.add_attention("latents", function()
  return { q_down = linear(32, width), q_norm = { weight = torch.ones { 32 } },
    q_up = linear(width, 32), kv_down = linear(24, width),
    kv_norm = { weight = torch.ones { 24 } }, k_up = linear(width, 24), v_up = linear(width, 24),
    o = linear(width, width) }
end, function(p, x)
  local q = nn.linear(p.q_up, nn.rms_norm(p.q_norm, nn.linear(p.q_down, x)))
  local latent = nn.rms_norm(p.kv_norm, nn.linear(p.kv_down, x))
  return nn.linear(p.o, attend(heads(q), heads(nn.linear(p.k_up, latent)),
    heads(nn.linear(p.v_up, latent))))
end, { { "q_up.weight", 0 }, { "k_up.weight", 0 }, { "v_up.weight", 0 }, { "o.weight", 1 },
  { "q_down.weight", "replicate" }, { "kv_down.weight", "replicate" } })

local function qkvo()
  local p = of.qkvo()
  p.q_norm, p.k_norm = norm(), norm()
  return p
end
local qkvo_rules = of.qkvo_rules

-- OLMo 2's: norms of all heads together.
list.add_attention("queries and keys with norms", qkvo, function(p, x)
  local q, k = nn.rms_norm(p.q_norm, nn.linear(p.q, x)), nn.rms_norm(p.k_norm, nn.linear(p.k, x))
  return nn.linear(p.o, attend(heads(q), heads(k), heads(nn.linear(p.v, x))))
end, { { "q_norm.weight", 0 }, { "k_norm.weight", 0 }, unpack(qkvo_rules) })

-- As in gated delta networks: a norm of each head's output, then the projection.
list.add_attention("a norm of each head", function()
  local p = qkvo()
  p.head_norm = { weight = torch.ones { head_dim } }
  return p
end, function(p, x)
  local y = nn.attention(heads(nn.linear(p.q, x)), heads(nn.linear(p.k, x)),
    heads(nn.linear(p.v, x)), { causal = true })
  return nn.linear(p.o, merged(nn.rms_norm(p.head_norm, y)))
end, qkvo_rules)

-- Rotary positions as in the first LLaMA's own code.
list.add_attention("complex rotary positions", qkvo, function(p, x)
  local angles = torch.arange(length):unsqueeze(1) * torch.arange(head_dim / 2):mul(-0.5):exp()
  local turns = torch.polar(torch.ones_like(angles), angles)
  local function turned(y)
    local pairs = torch.view_as_complex(y:unflatten(-1, { -1, 2 }))
    return torch.view_as_real(pairs * turns):flatten(-2)
  end
  local q, k = turned(heads(nn.linear(p.q, x))), turned(heads(nn.linear(p.k, x)))
  return nn.linear(p.o, attend(q, k, heads(nn.linear(p.v, x))))
end, qkvo_rules)

-- Each head's state decays: RetNet's parallel form (arXiv 2307.08621).
list.add_attention("retention", function()
  return { q = linear(width, width), k = linear(width, width), v = linear(width, width),
    gate = linear(width, width), o = linear(width, width) }
end, function(p, x)
  local decay = torch.arange(1, n_heads + 1):neg():exp2():neg():add(1):log():view { -1, 1, 1 }
  local distance = torch.arange(length):unsqueeze(1) - torch.arange(length):unsqueeze(0)
  local mask = (decay * distance:clamp { min = 0 }):exp():tril()
  local q, k = heads(nn.linear(p.q, x)), heads(nn.linear(p.k, x))
  local y = (q:matmul(k:transpose(-1, -2)) * mask):matmul(heads(nn.linear(p.v, x)))
  y = y * (y:square():mean(-1, true) + 1e-6):rsqrt()
  return nn.linear(p.o, torch.silu(nn.linear(p.gate, x)) * merged(y))
end, { { "q.weight", 0 }, { "k.weight", 0 }, { "v.weight", 0 }, { "gate.weight", 0 },
  { "o.weight", 1 } })


return list
