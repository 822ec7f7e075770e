-- Models that recommend: they read a few categories and numbers of each example.
local of = require "architectures.language_model"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local weight, biased = of.weight, of.biased
local list = {}

local n_fields, n_values, width = 6, 96, 32

-- Each text gives 11 examples, whose fields are consecutive tokens and whose numbers are pixels.
local n_windows = of.length - n_fields + 1
local function fields(batch)
  return batch.ids:narrow(1, 0, of.length):unfold(1, n_fields, 1):flatten(0, 1):remainder(n_values)
end
local function numbers(batch)
  return batch.images:flatten(1):narrow(1, 0, n_windows * 16):reshape { -1, 16 }
end
local function loss(logits, batch)
  return nn.cross_entropy(logits, batch.labels:repeat_interleave(n_windows))
end

local function tables()
  local all = {}
  for i = 1, n_fields do all[i] = weight(n_values, width) end
  return all
end
-- [batch, fields, width]
local function embedded(p, batch)
  local ids, rows = fields(batch), {}
  for i, values in ipairs(p.tables) do rows[i] = torch.embedding(values, ids:select(1, i - 1)) end
  return torch.stack(rows, 1)
end

local function layers(...)
  local all = {}
  local sizes = { ... }
  for i = 2, #sizes do all[i - 1] = biased(sizes[i], sizes[i - 1]) end
  return all
end
local function through(ps, x)
  for i, p in ipairs(ps) do
    x = nn.linear(p, x)
    if i < #ps then x = torch.relu(x) end
  end
  return x
end

-- DLRM (arXiv 1906.00091): products of all pairs of features.
list[#list + 1] = { name = "products of pairs of features", params = function()
  return { tables = tables(), bottom = layers(16, 64, width),
    top = layers(width + (n_fields + 1) ^ 2, 128, of.n_classes) }
end, loss = function(p, batch)
  local dense = through(p.bottom, numbers(batch))
  local features = torch.cat({ dense:unsqueeze(1), embedded(p, batch) }, 1)
  local products = torch.bmm(features, features:transpose(1, 2)):flatten(1)
  return loss(through(p.top, torch.cat({ dense, products }, 1)), batch)
end, rules = function()
  return { { "tables.*", 1 }, { "bottom.*", "replicate" }, { "top.1.*", 0 },
    { "top.2.weight", 1 } }
end }

-- xDeepFM's compressed interactions (arXiv 1803.05170).
list[#list + 1] = { name = "compressed interactions of features", params = function()
  return { tables = tables(), cross = { weight(16, n_fields * n_fields),
    weight(16, 16 * n_fields) }, deep = layers(n_fields * width, 128, 64),
    out = biased(of.n_classes, 32 + 64) }
end, loss = function(p, batch)
  local x = embedded(p, batch)
  local level, sums = x, {}
  for i, w in ipairs(p.cross) do
    local outer = torch.einsum("bhd,bfd->bhfd", level, x):flatten(1, 2)
    level = torch.relu(torch.einsum("oh,bhd->bod", w, outer))
    sums[i] = level:sum(-1)
  end
  local deep = torch.relu(through(p.deep, x:flatten(1)))
  return loss(nn.linear(p.out, torch.cat({ sums[1], sums[2], deep }, 1)), batch)
end, rules = function()
  return { { "tables.*", 1 }, { "cross.*", "replicate" }, { "deep.1.weight", 0 },
    { "deep.1.bias", 0 }, { "deep.2.weight", 1 }, { "deep.2.bias", "replicate" },
    { "out.*", "replicate" } }
end }

-- MMoE: several tasks weigh shared experts.
list[#list + 1] = { name = "experts shared by tasks", params = function()
  local p = { tables = tables(), experts = {}, gates = {}, towers = {} }
  for i = 1, 4 do p.experts[i] = layers(n_fields * width, 128, 32) end
  for i = 1, 2 do
    p.gates[i], p.towers[i] = biased(4, n_fields * width), layers(32, 64, of.n_classes)
  end
  return p
end, loss = function(p, batch)
  local x, made, total = embedded(p, batch):flatten(1), {}, 0
  for i, expert in ipairs(p.experts) do made[i] = torch.relu(through(expert, x)) end
  local experts = torch.stack(made, 1)  -- [batch, experts, features]
  for i, tower in ipairs(p.towers) do
    local shares = nn.linear(p.gates[i], x):softmax(-1):unsqueeze(1)
    total = total + loss(through(tower, torch.bmm(shares, experts):squeeze(1)), batch)
  end
  return total
end, rules = function()
  return { { "tables.*", 0 }, { "experts.*.1.*", 0 }, { "experts.*.2.weight", 1 },
    { "experts.*.2.bias", "replicate" }, { "gates.*", "replicate" }, { "towers.*.1.*", 0 },
    { "towers.*.2.weight", 1 }, { "towers.*.2.bias", "replicate" } }
end }

return list
