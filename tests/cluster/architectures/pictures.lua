-- Models of pictures.
local of = require "architectures.language_model"
local redco = require "redco"
local torch, nn = redco.torch, redco.nn

local width, n_heads, head_dim = of.width, of.n_heads, of.head_dim
local weight, biased, norm = of.weight, of.biased, of.norm
local list = {}

-- Vision transformers whose patches are taken out in two ways.
for name, patches_of in pairs {
  ["a vision transformer"] = function(images)
    return images:unfold(2, 4, 4):unfold(3, 4, 4):permute { 0, 2, 3, 1, 4, 5 }
      :reshape { images:size(0), 16, 48 }
  end,
  ["a vision transformer by columns"] = function(images)
    return torch.im2col(images, { 4, 4 }, { 1, 1 }, { 0, 0 }, { 4, 4 }):transpose(1, 2)
  end,
} do
  list[#list + 1] = { name = name, params = function()
    local p = { patch = biased(width, 48), class = weight(1, 1, width),
      positions = weight(17, width), norm = norm(), head = biased(of.n_classes, width),
      blocks = {} }
    for i = 1, of.n_layers do
      p.blocks[i] = { qkv = biased(3 * width, width), o = biased(width, width), norm_1 = norm(),
        norm_2 = norm(), ff = of.feed_forward() }
    end
    return p
  end, loss = function(p, batch)
    local patches = nn.linear(p.patch, patches_of(batch.images))
    local x = torch.cat({ p.class:expand { patches:size(0), -1, -1 }, patches }, 1) + p.positions
    for _, block in ipairs(p.blocks) do
      local z = nn.linear(block.qkv, nn.rms_norm(block.norm_1, x))
        :reshape { x:size(0), 17, 3, n_heads, head_dim }:permute { 2, 0, 3, 1, 4 }
      x = of.fed(block, x + nn.linear(block.o, of.merged(nn.attention(z[0], z[1], z[2]))))
    end
    return nn.cross_entropy(nn.linear(p.head, nn.rms_norm(p.norm, x):select(1, 0)), batch.labels)
  end, rules = function()
    return of.joined({ { "patch.*", "replicate" }, { "class", "replicate" },
      { "positions", "replicate" }, { "head.*", "replicate" },
      { "qkv.*", { dim = 0, block = width } }, { "o.weight", 1 } }, of.pair)
  end }
end
table.sort(list, function(a, b) return a.name < b.name end)

-- ConvNeXt's blocks (arXiv 2201.03545).
local channels = 32
list[#list + 1] = { name = "channels between convolutions of each", params = function()
  local p = { stem = { weight = weight(channels, 3, 4, 4), bias = torch.zeros { channels } },
    head = biased(of.n_classes, channels), blocks = {} }
  for i = 1, of.n_layers do
    p.blocks[i] = { conv = weight(channels, 1, 3, 3), up = biased(4 * channels, channels),
      down = biased(channels, 4 * channels), norm = norm(channels),
      scale = torch.full({ channels }, 0.1) }
  end
  return p
end, loss = function(p, batch)
  local x = torch.conv2d(batch.images, p.stem.weight, p.stem.bias, { 4, 4 })
  for _, block in ipairs(p.blocks) do
    local y = torch.conv2d(x, block.conv, nil, { 1, 1 }, { 1, 1 }, { 1, 1 }, channels)
    y = nn.linear(block.up, nn.rms_norm(block.norm, y:permute { 0, 2, 3, 1 }))
    y = block.scale * nn.linear(block.down, torch.gelu(y))
    x = x + y:permute { 0, 3, 1, 2 }
  end
  return nn.cross_entropy(nn.linear(p.head, x:mean { 2, 3 }), batch.labels)
end, rules = function()
  return { { "stem.*", "replicate" }, { "conv", "replicate" }, { "up.*", 0 },
    { "down.weight", 1 }, { "scale", "replicate" }, { "head.*", "replicate" } }
end }

-- A network in two resolutions with a connection across (arXiv 1505.04597).
local function convolved(p, x, stride)
  local y = torch.conv2d(x, p.weight, nil, { stride, stride }, { 1, 1 })
  return torch.relu(torch.batch_norm(y, p.scale, p.shift, nil, nil, true, 0.1, 1e-5, false))
end
local function convolution(n_out, n_in)
  return { weight = weight(n_out, n_in, 3, 3), scale = torch.ones { n_out },
    shift = torch.zeros { n_out } }
end
list[#list + 1] = { name = "two resolutions", params = function()
  return { first = convolution(16, 3), down = convolution(32, 16), middle = convolution(32, 32),
    middle_2 = convolution(32, 32), up = weight(32, 16, 2, 2), merge = convolution(16, 32),
    last = weight(3, 16, 1, 1) }
end, loss = function(p, batch)
  local fine = convolved(p.first, batch.images, 1)
  local coarse = convolved(p.down, fine, 2)
  coarse = coarse + convolved(p.middle_2, convolved(p.middle, coarse, 1), 1)
  local x = torch.cat({ torch.conv_transpose2d(coarse, p.up, nil, { 2, 2 }), fine }, 1)
  return (torch.conv2d(convolved(p.merge, x, 1), p.last) - batch.images):square():mean()
end, rules = function()
  return { { "first.*", 0 }, { "down.weight", 1 }, { "down.scale", "replicate" },
    { "down.shift", "replicate" }, { "middle.*", 0 }, { "middle_2.weight", 1 },
    { "middle_2.scale", "replicate" }, { "middle_2.shift", "replicate" }, { "up", 1 },
    { "merge.weight", { dim = 1, block = 16 } }, { "merge.scale", "replicate" },
    { "merge.shift", "replicate" }, { "last", "replicate" } }
end }

-- DenseNet's (arXiv 1608.06993): a layer reads what all before it have made.
list[#list + 1] = { name = "layers that read all before", params = function()
  local p = { stem = weight(32, 3, 3, 3), head = biased(of.n_classes, 32 + 4 * 16), layers = {} }
  for i = 1, 4 do
    local n = 32 + (i - 1) * 16
    p.layers[i] = { scale = torch.ones { n }, shift = torch.zeros { n },
      narrow = weight(64, n, 1, 1), wide = weight(16, 64, 3, 3) }
  end
  return p
end, loss = function(p, batch)
  local x = torch.conv2d(batch.images, p.stem, nil, { 2, 2 }, { 1, 1 })
  for _, layer in ipairs(p.layers) do
    local y = torch.relu(torch.batch_norm(x, layer.scale, layer.shift, nil, nil, true, 0.1, 1e-5,
      false))
    y = torch.relu(torch.conv2d(y, layer.narrow))
    x = torch.cat({ x, torch.conv2d(y, layer.wide, nil, { 1, 1 }, { 1, 1 }) }, 1)
  end
  return nn.cross_entropy(nn.linear(p.head, x:mean { 2, 3 }), batch.labels)
end, rules = function()
  return { { "stem", "replicate" }, { "scale", "replicate" }, { "shift", "replicate" },
    { "narrow", 0 }, { "wide", 1 }, { "head.*", "replicate" } }
end }

return list
