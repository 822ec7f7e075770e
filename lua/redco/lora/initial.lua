--- First values of adapters, by peft's `init_lora_weights`. PiSSA (arXiv 2404.02948), OLoRA (arXiv
--- 2406.01775) and LoftQ (arXiv 2310.08659) move a part of the weight into the adapter: the base
--- becomes what is left, W - scaling B A, and the layer has the plain value lora_init with the name
--- of the method, for LoftQ also lora_loftq_iter. A folder has adapters alone, so the base is made
--- again when it is opened.
local adapter = require "redco.lora.adapter"
local fail = require "redco.fail"
local native = require "redco.native"
local nn_init = require "redco.nn.initializers"
local torch = require "redco.torch"
local weights = require "redco.quant.weights"

local initial = {}

-- Returns A [r, in], B [out, r] with B A nearest to a matrix [out, in].
local function nearest(weight, r)
  local u, s, vh = torch.linalg_svd(weight, false)
  local root = s:narrow(0, 0, r):sqrt()
  return root:unsqueeze(1) * vh:narrow(0, 0, r), u:narrow(1, 0, r) * root
end

-- Functions of a weight [out, in] in float32, the rank, the scaling and loftq_iter that return A, B
-- and what is left of the weight.
local methods = {
  pissa = function(weight, r, scaling)
    local a, b = nearest(weight, r)
    a, b = a / math.sqrt(scaling), b / math.sqrt(scaling)
    return a, b, weight - scaling * b:matmul(a)
  end,
  olora = function(weight, r, scaling)
    local q, rest = torch.linalg_qr(weight)
    local a, b = rest:narrow(0, 0, r):contiguous(), q:narrow(1, 0, r):contiguous()
    return a, b, weight - scaling * b:matmul(a)
  end,
  loftq = function(weight, r, _, n_iterations)
    local a, b, packed
    for i = 1, n_iterations do
      packed = native.quantize(i == 1 and weight or weight - b:matmul(a), "nf4")
      a, b = nearest(weight - native.dequantize(packed, "nf4"), r)
    end
    return a, b, packed
  end,
}

-- Methods that do not change the base: functions of A, the rank and a generator.
local plain = {
  ["true"] = function(a, _, generator)
    nn_init.kaiming_uniform_(a, { a = math.sqrt(5), generator = generator })
  end,
  gaussian = function(a, r, generator)
    nn_init.normal_(a, { std = 1 / r, generator = generator })
  end,
}

--- Returns whether peft's method of this name changes the base, and is known here.
function initial.changes_base(name) return methods[name] ~= nil end

--- Raises an error, which begins with `where`, for a method or a loftq_config that is not known.
function initial.check(where, name, loftq)
  if not methods[name] and not plain[tostring(name)] then
    fail("%s: init_lora_weights = %s is not one of true, \"gaussian\", \"pissa\", \"olora\" and "
      .. "\"loftq\"", where, tostring(name))
  end
  if loftq == nil then return end
  if name ~= "loftq" then fail("%s: loftq_config is for init_lora_weights = \"loftq\"", where) end
  for key, value in pairs(loftq) do
    local is_known = key == "loftq_bits" and value == 4
      or key == "loftq_iter" and type(value) == "number" and value >= 1 and value % 1 == 0
    if not is_known then
      fail("%s: loftq_config: %s = %s is not supported, only loftq_bits = 4 and a positive integer "
        .. "as loftq_iter", where, key, tostring(value))
    end
  end
end

-- Moves a part of the layer's weight into A and B.
local function split(where, layer, name, loftq_iter, r, scaling)
  local type, is_transposed = layer:get "weight_type", layer:get "lora_fan_in_fan_out"
  local n_in, n_out = layer:sizes(is_transposed)
  if r > math.min(n_in, n_out) then
    fail("%s: %s is [%d, %d], too small for init_lora_weights = \"%s\" with rank %d", where,
      layer.name, n_out, n_in, name, r)
  end
  if name == "loftq" and (type or is_transposed) then
    fail("%s: %s is %s; init_lora_weights = \"loftq\" quantizes floats [out, in] itself", where,
      layer.name, type and "quantized" or "[in, out]")
  end
  local weight = weights.dequantized(layer.node, layer.stem)
  local wide = weight.dtype == "float64" and weight or weight:float()
  if is_transposed then wide = wide:t() end
  local a, b, rest = methods[name](wide, r, scaling, loftq_iter)
  if is_transposed then rest = rest:t():contiguous() end
  if type then
    rest = native.quantize(rest, type)
    layer:set("weight_input_scale", nil)
  elseif name == "loftq" then
    layer:set("weight_type", "nf4")
  else
    rest = rest:to(weight.dtype)
  end
  layer:set("weight", rest)
  layer:set("lora_init", name)
  if name == "loftq" then layer:set("lora_loftq_iter", loftq_iter) end
  return a, b
end

--- Gives the layer's A and B, which exist, their first values. `o` are options of lora.add.
function initial.fill(where, layer, a, b, scaling, o)
  local name = o.init_lora_weights
  torch.no_grad(function()
    if methods[name] then
      local loftq_iter = (o.loftq_config or {}).loftq_iter or 1
      local first, second = split(where, layer, name, loftq_iter, o.r, scaling)
      a:copy_(first)
      b:copy_(second)
    else
      plain[tostring(name)](a, o.r, o.generator)
      nn_init.zeros_(b)
    end
  end)
end

--- Makes the base again for a layer whose adapter comes from a folder.
function initial.restore(where, layer, name, loftq, r, scaling)
  local loftq_iter = (loftq or {}).loftq_iter or 1
  if name == "loftq" and layer:get "weight_type" == "nf4" and loftq_iter == 1 then return end
  torch.no_grad(split, where, layer, name, loftq_iter, r, scaling)
end

--- Gives a layer that has A and B the magnitudes of DoRA, so that it computes the same.
function initial.add_magnitude(layer, a, b, is_transposed)
  local norms = torch.no_grad(function()
    return adapter.norms(adapter.sum(layer.node, layer.stem, a, b, is_transposed), is_transposed)
  end)
  layer:set("lora_magnitude_vector", torch.no_grad(function()
    return native.parameter(norms.shape, { dtype = a.dtype }):copy_(norms)
  end))
end

return initial
