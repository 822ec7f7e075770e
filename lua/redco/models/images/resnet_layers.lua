--- The layers of ResNets (He et al., 2015): stages of convolutions with norms, which halve images.
--- A ResNet is a table of
---   sizes, depths: of the stages; stem: the channels before the first one
---   n_stem: the number of convolutions before the stages, 1 (of 7 x 7 pixels) or 3 (of 3 x 3)
---   pools: whether shortcuts halve images by a mean, not in their convolution, and a stage of the
---     kind "basic" has one in any case
---   kind: "basic" or "bottleneck"
---   activation: a function, of the first convolution and of the outputs of layers; inside them it
---     is ReLU
---   first_halves: whether the first stage halves images too
---   halves_early: whether a bottleneck halves in its first convolution, not in its second
---   dilates: whether the last stage spreads its kernels instead of halving
---   names: { stem = function(k) -> CONVOLUTION, NORM, layer = function(stage, i) -> name,
---     convolution = function(k) -> CONVOLUTION, NORM, shortcut = function(pools) ->
---     CONVOLUTION, NORM }; those of convolution and shortcut stand behind a layer's; stages and
---     layers count from 0, k from 1
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local layers = {}

local reduction = 4  -- of channels inside a bottleneck

-- Initialises a convolution by its fan-out (He et al., 2015).
local function of_fan_out(t, generator)
  local shape = t.shape
  local std = math.sqrt(2 / (shape[1] * shape[3] * shape[4]))
  return nn.init.normal_(t, { std = std, generator = generator })
end

-- Returns the convolutions before the stages: { n_in, n_out, side of the kernel, stride }.
local function stem_of(net, n_channels)
  if net.n_stem ~= 3 then return { { n_channels, net.stem, 7, 2 } } end
  local half = math.floor(net.stem / 2)
  return { { n_channels, half, 3, 2 }, { half, half, 3, 1 }, { half, net.stem, 3, 1 } }
end

-- Returns the stride of a layer's shortcut, or nil without a shortcut, and whether average pooling
-- halves the image before it.
local function shortcut_of(net, n_in, n_out, stride, is_first)
  if not net.pools then return (n_in ~= n_out or stride ~= 1) and stride or nil, false end
  if net.kind == "basic" then
    if not is_first then return nil end
    if n_in ~= n_out then return 1, true end
    return stride, false
  end
  if stride == 2 then return 1, true end
  return n_in ~= n_out and stride or nil, false
end

-- Calls f(layer, n_in, n_out, stride, dilation, is_first) for each layer.
local function each_layer(net, f, after_stage)
  local n_in = net.stem
  for stage, size in ipairs(net.sizes) do
    local stride = (stage > 1 or net.first_halves) and 2 or 1
    local dilation = 1
    if net.dilates and stage == #net.sizes then stride, dilation = 1, 2 end
    for i = 0, net.depths[stage] - 1 do
      f(net.names.layer(stage - 1, i), n_in, size, i == 0 and stride or 1,
        i == 0 and 1 or dilation, i == 0)
      n_in = size
    end
    if after_stage then after_stage() end
  end
end

-- Returns the convolutions of a layer: { n_in, n_out, side of the kernel, stride, dilation }.
local function convolutions_of(net, n_in, n_out, stride, dilation)
  if net.kind == "basic" then
    return { { n_in, n_out, 3, stride, dilation }, { n_out, n_out, 3, 1, dilation } }
  end
  local inner = math.floor(n_out / reduction)
  local first, second = 1, stride
  if net.halves_early then first, second = stride, 1 end
  return { { n_in, inner, 1, first, 1 }, { inner, inner, 3, second, dilation },
    { inner, n_out, 1, 1, 1 } }
end

--- Raises an error unless the configuration of a ResNet fits.
function layers.check(c)
  if c.layer_type ~= "basic" and c.layer_type ~= "bottleneck" then
    fail("%s: layer_type is '%s', expected 'basic' or 'bottleneck'", c.model_type, c.layer_type)
  end
  if #c.depths ~= #c.hidden_sizes then
    fail("%s: depths has %d numbers, hidden_sizes %d", c.model_type, #c.depths, #c.hidden_sizes)
  end
  for _, size in ipairs(c.hidden_sizes) do
    if c.layer_type == "bottleneck" and size < reduction then
      fail("%s: hidden_sizes has %d, expected at least %d", c.model_type, size, reduction)
    end
  end
end

--- Declares the parameters. add_norm(add, name, size) declares those of a norm.
function layers.add_parameters(net, n_channels, add, add_norm)
  local function convolution(name, norm, n_in, n_out, side)
    add(name .. ".weight", { n_out, n_in, side, side }, of_fan_out)
    add_norm(add, norm, n_out)
  end
  local names = net.names
  for k, sizes in ipairs(stem_of(net, n_channels)) do
    local name, norm = names.stem(k)
    convolution(name, norm, sizes[1], sizes[2], sizes[3])
  end
  each_layer(net, function(layer, n_in, n_out, stride, _, is_first)
    local has_shortcut, pools = shortcut_of(net, n_in, n_out, stride, is_first)
    if has_shortcut then
      local name, norm = names.shortcut(pools)
      convolution(layer .. name, layer .. norm, n_in, n_out, 1)
    end
    for k, sizes in ipairs(convolutions_of(net, n_in, n_out, stride, 1)) do
      local name, norm = names.convolution(k)
      convolution(layer .. name, layer .. norm, sizes[1], sizes[2], sizes[3])
    end
  end)
end

--- Returns a function(params, pixels, o, kept) -> x [B, channels, H, W]. norm(params, name, x, o)
--- normalises. Appends the input of the first stage and the output of each to the list `kept`.
function layers.new(net, norm)
  local names = net.names
  return function(params, pixels, o, kept)
    local function convolved(name, norm_name, x, options)
      return norm(params, norm_name, torch.conv2d(x, params[name .. ".weight"], nil, options), o)
    end

    local function apply_layer(layer, n_in, n_out, stride, dilation, is_first, x)
      local short, y = x, x
      local short_stride, pools = shortcut_of(net, n_in, n_out, stride, is_first)
      if short_stride then
        if pools then short = torch.avg_pool2d(short, { 2, 2 }, { 2, 2 }, { 0, 0 }, true) end
        local name, norm_name = names.shortcut(pools)
        short = convolved(layer .. name, layer .. norm_name, short, { stride = short_stride })
      end
      local all = convolutions_of(net, n_in, n_out, stride, dilation)
      for k, sizes in ipairs(all) do
        local name, norm_name = names.convolution(k)
        y = convolved(layer .. name, layer .. norm_name, y, { stride = sizes[4],
          dilation = sizes[5], padding = math.floor(sizes[3] / 2) * sizes[5] })
        if k < #all then y = torch.relu(y) end
      end
      return net.activation(y + short)
    end

    local x = pixels:to(params[names.stem(1) .. ".weight"].dtype)
    for k, sizes in ipairs(stem_of(net, pixels:size(1))) do
      local name, norm_name = names.stem(k)
      x = net.activation(convolved(name, norm_name, x,
        { stride = sizes[4], padding = math.floor(sizes[3] / 2) }))
    end
    x = torch.max_pool2d(x, { 3, 3 }, { 2, 2 }, { 1, 1 })
    local function keep() if kept then kept[#kept + 1] = x end end
    keep()
    each_layer(net, function(...)
      local given = { ... }
      given[#given + 1] = x
      x = nn.block(apply_layer, unpack(given))
    end, keep)
    return x
  end
end

--- Returns the ResNet of a configuration of Hugging Face's, with its names.
function layers.of_config(c, activation)
  return {
    sizes = c.hidden_sizes, depths = c.depths, stem = c.embedding_size, kind = c.layer_type,
    activation = activation, first_halves = c.downsample_in_first_stage,
    halves_early = c.downsample_in_bottleneck,
    names = {
      stem = function()
        return "embedder.embedder.convolution", "embedder.embedder.normalization"
      end,
      layer = function(stage, i) return ("encoder.stages.%d.layers.%d."):format(stage, i) end,
      shortcut = function() return "shortcut.convolution", "shortcut.normalization" end,
      convolution = function(k)
        return ("layer.%d.convolution"):format(k - 1), ("layer.%d.normalization"):format(k - 1)
      end,
    },
  }
end

return layers
