--- Linear layers behind a sentence encoder: `Dense` of sentence-transformers, each in a folder
--- inside the model's, and ColBERT's, whose weight is among those of the model.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local files = require "redco.models.files"
local native = require "redco.native"
local torch = require "redco.torch"

local dense = {}

-- Activations by the last part of the class name in PyTorch.
local activations = { Identity = function(x) return x end, GELU = torch.gelu, ReLU = torch.relu,
  SiLU = torch.silu, Sigmoid = torch.sigmoid, Tanh = torch.tanh }

--- Returns the layer of the folder `path` in `dir`: { folder, name, n_in, n_out, bias, activate,
--- config }.
function dense.read(dir, path)
  if not tostring(path):find "^[%w_]+$" then
    fail("%s/modules.json: the path of Dense is '%s', expected one as 2_Dense", dir, path)
  end
  local place = dir .. "/" .. path .. "/config.json"
  local config = files.json(dir, path .. "/config.json") or fail("%s is missing", place)
  for _, key in ipairs { "in_features", "out_features" } do
    local n = config[key]
    if type(n) ~= "number" or n < 1 or n % 1 ~= 0 or n > 2 ^ 31 then
      fail("%s: %s is %s, expected a positive whole number", place, key, n)
    end
  end
  local kind = tostring(config.activation_function or "torch.nn.modules.linear.Identity")
  local activate = activations[kind:match "[^.]*$"]
  if not activate then
    fail("%s: activation_function = %s is not supported, only Identity, GELU, ReLU, SiLU, Sigmoid "
      .. "and Tanh", place, kind)
  end
  if config.use_residual then fail("%s: use_residual is not supported", place) end
  return { folder = path, name = path .. ".linear", n_in = config.in_features,
    n_out = config.out_features, bias = config.bias ~= false, activate = activate, config = config }
end

--- Returns the layer of a ColBERT folder, by the shape of its weight.
function dense.of_colbert(weights)
  local shape = weights:shape "linear.weight"
  return { name = "linear", n_in = shape[2], n_out = shape[1], bias = false,
    activate = activations.Identity }
end

local function layers_of(steps)
  local layers, is_added = {}, {}
  for _, step in ipairs(steps) do
    if type(step) == "table" and not is_added[step.name] then
      is_added[step.name], layers[#layers + 1] = true, step
    end
  end
  return layers
end

--- Returns the family with the parameters of these layers.
function dense.family(family, steps)
  local layers = layers_of(steps)
  if #layers == 0 then return family end
  local result = { folders = {} }
  for _, layer in ipairs(layers) do table.insert(result.folders, layer.folder) end

  function result.add_parameters(c, add)
    family.add_parameters(c, add)
    for _, layer in ipairs(layers) do
      add(layer.name .. ".weight", { layer.n_out, layer.n_in }, blocks.normal(layer.n_in ^ -0.5))
      if layer.bias then add(layer.name .. ".bias", { layer.n_out }, blocks.zeros) end
    end
  end

  return setmetatable(result, { __index = family })
end

--- Returns the weights of the model's folder with those of the layers, an object like that of
--- native.open_weights.
function dense.weights(whole, dir, steps)
  local parts, names, sources, owners = {}, {}, {}, {}
  local self = { path = whole.path }
  for _, layer in ipairs(layers_of(steps)) do
    if layer.folder then
      parts[#parts + 1] = { layer.folder .. ".", native.open_weights(dir .. "/" .. layer.folder) }
    end
  end
  if #parts == 0 then return whole end
  for _, part in ipairs { { "", whole }, unpack(parts) } do
    for _, source in ipairs(part[2]:keys()) do
      local name = part[1] .. source
      names[#names + 1], sources[name], owners[name] = name, source, part[2]
    end
  end
  function self.keys() return names end
  function self.shape(_, name) return owners[name]:shape(sources[name]) end
  function self.tensor(_, name) return owners[name]:tensor(sources[name]) end
  return self
end

--- Applies the steps to vectors [..., size].
function dense.apply(steps, params, x, o)
  for _, step in ipairs(steps) do
    if step == "normalize" then
      x = x / x:norm(2, { -1 }, true):clamp(1e-12)
    else
      x = step.activate(blocks.linear(params, step.name, x, o))
    end
  end
  return x
end

return dense
