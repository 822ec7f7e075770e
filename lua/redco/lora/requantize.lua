--- Rounds merged weights to the types that they had before.
local layers = require "redco.lora.layers"
local native = require "redco.native"
local warn = require "redco.warn"
local weights = require "redco.quant.weights"

local function norm_of(t) return t:double():pow(2):sum():sqrt():item() end

--- Quantizes the weights of `merged` that are quantized in `params`. Returns what each layer loses:
--- the norm of the rounding's change, relative to that of the adapter's; nil if none is quantized.
--- A line on standard error has the mean and the worst.
return function(params, merged)
  local before, lost, names, sum = {}, {}, {}, 0
  for _, layer in ipairs(layers.with_stacks(params)) do before[layer.name] = layer end
  for _, layer in ipairs(layers.with_stacks(merged)) do
    local old = before[layer.name]
    local type = old and old:get "weight_type"
    if type and not layer:get "weight_type" then
      local weight = layer:get("weight"):float()
      local change = weight - weights.values(old.node, old.key)
      local is_transposed = old:get "weight_is_transposed"
      if is_transposed then weight = weight:transpose(-1, -2):contiguous() end
      local blocks = native.quantize(weight, type)
      local rounding = norm_of(native.dequantize(blocks, type) - weight)
      lost[layer.name] = rounding / math.max(norm_of(change), 1e-30)
      names[#names + 1], sum = layer.name, sum + lost[layer.name]
      layer:set("weight", blocks)
      layer:set("weight_type", type)
      layer:set("weight_dtype", old:get "weight_dtype")
      layer:set("weight_is_transposed", is_transposed)
    end
  end
  if #names == 0 then return nil end
  table.sort(names, function(a, b) return lost[a] > lost[b] end)
  warn("lora.merge: rounding the merged weights again changes them by %.2f times what the adapters "
    .. "changed on average, at most by %.2f times (%s); without quantize they stay floats",
    sum / #names, lost[names[1]], names[1])
  return lost
end
