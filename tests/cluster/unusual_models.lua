-- Models that are not like Megatron's transformer, each with rules of a layout by hand: a list of
-- { name, params(), block(p, x), rules }. A block maps [batch, length, width] to the same. Rules
-- name the parameters of a block.
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local models = {
  n_layers = 2, batch = 4, length = 16, width = 64, n_heads = 4, vocabulary = 128,
}
local width, n_heads, length = models.width, models.n_heads, models.length
local head_dim = width / n_heads
local generator = torch.Generator(5)

local function weight(...) return torch.randn({ ... }, { generator = generator }) * 0.1 end
local function linear(n_out, n_in) return { weight = weight(n_out, n_in) } end
local function norm() return { weight = torch.ones { width } } end

local function heads(x)
  return x:view { x:size(0), x:size(1), -1, head_dim }:transpose(1, 2)
end
local function merged(x)
  return x:transpose(1, 2):reshape { x:size(0), x:size(2), x:size(1) * x:size(3) }
end
local function attend(q, k, v) return merged(nn.attention(q, k, v, { causal = true })) end

-- Rows of blocks with an attention that is the row's, and the usual feed-forward layer.
local function feed_forward()
  return { up = linear(4 * width, width), down = linear(width, 4 * width) }
end
local function fed(p, x)
  return x + nn.linear(p.ff.down, torch.gelu(nn.linear(p.ff.up, nn.rms_norm(p.norm_2, x))))
end
local pair = { { "ff.up.weight", 0 }, { "ff.down.weight", 1 } }

local function add(name, params, block, rules)
  models[#models + 1] = { name = name, params = params, block = block, rules = rules }
end

local function add_attention(name, params, attention, rules)
  local all = {}
  for _, rule in ipairs(rules) do all[#all + 1] = rule end
  for _, rule in ipairs(pair) do all[#all + 1] = rule end
  add(name, function()
    local p = params()
    p.norm_1, p.norm_2, p.ff = norm(), norm(), feed_forward()
    return p
  end, function(p, x) return fed(p, x + attention(p, nn.rms_norm(p.norm_1, x))) end, all)
end

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
} do
  local name, outputs, inputs, split = unpack(case)
  add_attention(name, function()
    return { qkv = linear(3 * width, width), o = linear(width, width) }
  end, function(p, x) return nn.linear(p.o, attend(split(nn.linear(p.qkv, x)))) end,
    { { "qkv.weight", outputs }, { "o.weight", inputs } })
end

add_attention("einsum over heads", function()
  return { q = weight(width, n_heads, head_dim), k = weight(width, n_heads, head_dim),
    v = weight(width, n_heads, head_dim), o = weight(n_heads, head_dim, width) }
end, function(p, x)
  local function project(w) return torch.einsum("btd,dhe->bhte", x, w) end
  local y = nn.attention(project(p.q), project(p.k), project(p.v), { causal = true })
  return torch.einsum("bhte,hed->btd", y, p.o)
end, { { "q", 1 }, { "k", 1 }, { "v", 1 }, { "o", 0 } })

add_attention("weights as [in, out]", function()
  return { q = weight(width, width), k = weight(width, width), v = weight(width, width),
    o = weight(width, width) }
end, function(p, x)
  return torch.matmul(attend(heads(x:matmul(p.q)), heads(x:matmul(p.k)), heads(x:matmul(p.v))),
    p.o)
end, { { "q", 1 }, { "k", 1 }, { "v", 1 }, { "o", 0 } })

-- DeepSeek's: queries, and keys and values, go through latents with a norm.
add_attention("latents", function()
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
  return { q = linear(width, width), k = linear(width, width), v = linear(width, width),
    o = linear(width, width), q_norm = norm(), k_norm = norm() }
end
local qkvo_rules = { { "q.weight", 0 }, { "k.weight", 0 }, { "v.weight", 0 }, { "o.weight", 1 } }

-- OLMo 2's: norms of all heads together.
add_attention("queries and keys with norms", qkvo, function(p, x)
  local q, k = nn.rms_norm(p.q_norm, nn.linear(p.q, x)), nn.rms_norm(p.k_norm, nn.linear(p.k, x))
  return nn.linear(p.o, attend(heads(q), heads(k), heads(nn.linear(p.v, x))))
end, { { "q_norm.weight", 0 }, { "k_norm.weight", 0 }, unpack(qkvo_rules) })

-- As in gated delta networks: a norm of each head's output, then the projection.
add_attention("a norm of each head", function()
  local p = qkvo()
  p.head_norm = { weight = torch.ones { head_dim } }
  return p
end, function(p, x)
  local y = nn.attention(heads(nn.linear(p.q, x)), heads(nn.linear(p.k, x)),
    heads(nn.linear(p.v, x)), { causal = true })
  return nn.linear(p.o, merged(nn.rms_norm(p.head_norm, y)))
end, qkvo_rules)

-- Rotary positions as in the first LLaMA's own code.
add_attention("complex rotary positions", qkvo, function(p, x)
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
add_attention("retention", function()
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

-- The feed-forward layer alone, in other forms.
local function add_fed(name, params, feed, rules)
  add(name, function()
    local p = params()
    p.norm = norm()
    return p
  end, function(p, x) return x + feed(p, nn.rms_norm(p.norm, x)) end, rules)
end

add_fed("a gate of every second feature", function()
  return { both = linear(8 * width, width), down = linear(width, 4 * width) }
end, function(p, x)
  local y = nn.linear(p.both, x)
  local n = y:size(-1)
  return nn.linear(p.down, torch.silu(y[{ "...", { 0, n, 2 } }]) * y[{ "...", { 1, n, 2 } }])
end, { { "both.weight", { dim = 0, grain = 2 } }, { "down.weight", 1 } })

-- RWKV's channel mixing: what is mixed of this position and the one before.
add_fed("shifted positions", function()
  return { mix = weight(2, width), up = linear(4 * width, width), down = linear(width, 4 * width),
    gate = linear(width, width) }
end, function(p, x)
  local before = torch.constant_pad_nd(x, { 0, 0, 1, -1 })
  local function mixed(i) return x * p.mix[i] + before * (1 - p.mix[i]) end
  local y = nn.linear(p.down, torch.relu(nn.linear(p.up, mixed(0))):square())
  return torch.sigmoid(nn.linear(p.gate, mixed(1))) * y
end, { { "mix", "replicate" }, { "up.weight", 0 }, { "down.weight", 1 },
  { "gate.weight", "replicate" } })

add_fed("weight norm", function()
  return { up = weight(4 * width, width), up_scale = torch.ones { 4 * width, 1 },
    down = weight(width, 4 * width), down_scale = torch.ones { width, 1 } }
end, function(p, x)
  local function normed(v, scale) return v / v:square():sum(1, true):sqrt() * scale end
  local y = torch.gelu(torch.linear(x, normed(p.up, p.up_scale)))
  return torch.linear(y, normed(p.down, p.down_scale))
end, { { "up", 0 }, { "up_scale", 0 }, { "down", 1 } })

add_fed("a dense mixture by batches of products", function()
  return { router = linear(4, width), up = weight(4, width, 2 * width),
    down = weight(4, 2 * width, width) }
end, function(p, x)
  local shares = nn.linear(p.router, x):softmax(-1)  -- [batch, length, experts]
  local rows = x:reshape { 1, -1, width }:expand { 4, -1, -1 }
  local y = torch.bmm(torch.gelu(torch.bmm(rows, p.up)), p.down)
  return (y * shares:reshape { -1, 4 }:transpose(0, 1):unsqueeze(-1)):sum(0):view_as(x)
end, { { "router.weight", "replicate" }, { "up", 0 }, { "down", 0 } })

-- Kolmogorov-Arnold layers (arXiv 2404.19756): each input through several fixed functions.
add_fed("sums of functions of each input", function()
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
add_fed("deep sets", function()
  return { each = linear(4 * width, width), mean = linear(4 * width, width),
    down = linear(width, 4 * width) }
end, function(p, x)
  local y = nn.linear(p.each, x) + nn.linear(p.mean, x:mean(1, true))
  return nn.linear(p.down, torch.gelu(y))
end, { { "each.weight", 0 }, { "mean.weight", 0 }, { "down.weight", 1 } })

-- Features modulated by what is known of the whole sequence (arXiv 2212.09748).
add("modulated by the sequence", function()
  return { modulation = linear(6 * width, width), q = linear(width, width),
    k = linear(width, width), v = linear(width, width), o = linear(width, width),
    ff = feed_forward(), norm_2 = norm() }
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
  { "v.weight", 0 }, { "o.weight", 1 }, unpack(pair) })

-- Few latents read the sequence, think, and are read by it (arXiv 2107.14795).
add("latents read the sequence", function()
  local p = { latents = weight(8, width), norm = norm(), norm_2 = norm(), ff = feed_forward() }
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
  latents = fed(p, latents + cross(p.read, y, latents))
  return x + cross(p.write, latents, y)
end, { { "q.weight", 0 }, { "kv.weight", { dim = 0, block = width } }, { "o.weight", 1 },
  unpack(pair) })

-- The most important half of the positions is computed (arXiv 2404.02258).
add("a choice of positions", function()
  return { router = linear(1, width), norm_2 = norm(), ff = feed_forward() }
end, function(p, x)
  local scores = nn.linear(p.router, x):squeeze(-1)
  local best, index = scores:topk(length / 2, 1)
  index = index:unsqueeze(-1):expand { -1, -1, width }
  local chosen = x:gather(1, index)
  local more = (fed(p, chosen) - chosen) * best:sigmoid():unsqueeze(-1)
  return x:scatter_add(1, index, more)
end, { { "router.weight", "replicate" }, unpack(pair) })

-- The weights of a layer are made from a learned vector (arXiv 1609.09106).
add_fed("a network that makes weights", function()
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
add_fed("messages along edges", function()
  return { message = linear(2 * width, width), self = linear(width, width),
    out = linear(width, 2 * width) }
end, function(p, x)
  local from = torch.arange(length):roll(1)
  local messages = torch.gelu(nn.linear(p.message, x)):index_select(1, from)
  local sums = torch.zeros_like(messages):index_add(1, torch.arange(length), messages)
  return nn.linear(p.self, x) + nn.linear(p.out, sums)
end, { { "message.weight", 0 }, { "out.weight", 1 }, { "self.weight", 1 } })

-- Capsules agree by routing in rounds (arXiv 1710.09829).
add_fed("capsules", function()
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

return models
