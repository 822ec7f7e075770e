-- A small residual network with batch norm: its statistics are those of the global batch, so every
-- layout must see that at once.
local redco = require "redco"
local nn, torch = redco.nn, redco.torch

local n_classes, width = 5, 8

local function make_params(generator)
  local function convolution(n_in, n_out)
    return {
      weight = nn.init.normal_(torch.empty { n_out, n_in, 3, 3 },
        { std = 0.2, generator = generator }),
      norm = {
        weight = torch.ones { n_out }, bias = torch.zeros { n_out },
        running_mean = torch.zeros { n_out }, running_var = torch.ones { n_out },
      },
    }
  end
  return {
    stem = convolution(3, width),
    first = convolution(width, width),
    second = convolution(width, width),
    down = convolution(width, 2 * width),
    head = nn.Linear(2 * width, n_classes, { generator = generator }),
  }
end

local function forward(params, x, is_training)
  local function apply(layer, input, stride)
    local norm = layer.norm
    local y = torch.conv2d(input, layer.weight, nil, { stride, stride }, { 1, 1 })
    return torch.batch_norm(y, norm.weight, norm.bias, norm.running_mean, norm.running_var,
      is_training, 0.1, 1e-5, false)
  end
  local function convolution(...) return nn.block(apply, ...) end
  x = torch.relu(convolution(params.stem, x, 1))
  local y = torch.relu(convolution(params.first, x, 1))
  x = torch.relu(x + convolution(params.second, y, 1))
  x = torch.relu(convolution(params.down, x, 2))
  return nn.linear(params.head, x:mean { 2, 3 })
end

return function(generator, options)
  local examples = {}
  for i = 1, options.n_examples do
    examples[i] = {
      image = torch.randn({ 3, 6, 6 }, { generator = generator, dtype = options.dtype }),
      label = torch.randint(n_classes, {}, { generator = generator }),
    }
  end
  return {
    params = make_params(generator),
    examples = examples,
    accumulate = 1,
    is_frozen = function(name) return name:find("running_", 1, true) ~= nil end,
    collate_fn = function(batch)
      local images, labels = {}, {}
      for i, example in ipairs(batch) do images[i], labels[i] = example.image, example.label end
      return { image = torch.stack(images), label = torch.stack(labels) }
    end,
    loss_fn = function(_, _, params, batch, is_training)
      return nn.cross_entropy(forward(params, batch.image, is_training), batch.label)
    end,
    pred_fn = function(_, params, batch) return forward(params, batch.image, false) end,
  }
end
