--- Weights of 2 to 8 bits: read, computed with, and under adapters.
local arguments = require "redco.arguments"
local choose = require "redco.lora.choose"
local fail = require "redco.fail"
local layers = require "redco.lora.layers"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"
local tree = require "redco.tree"
local weights = require "redco.quant.weights"

local quant = {}

local function copy_of(params)
  return tree.map(function(leaf) return leaf end, params)
end

local quantize_options = arguments("quant.quantize", {}, { "type", "target_modules" })
quant.quantize = registry.define("redco.quant.quantize", [[
quantize(params, {type: string, target_modules}) -> params
Returns the tree with the weights [out, in] of some linear layers rounded to numbers of a type that
`redco.quant.types` lists: `X.weight` becomes a tensor [out, in / size, bytes] of uint8, and
`X.weight_type` names the type. Layers, models and adapters compute with it as with the weight
before. `target_modules` is a list of the last parts of layers' names, {"q_proj", "v_proj"}, or a Lua
pattern of whole names. The other tensors are those of `params`. Quantized weights cannot be trained:
train adapters on them (`redco.lora.add`).]], function(params, options)
  local o = quantize_options(options)
  local result = copy_of(params)
  for _, layer in ipairs(choose("quant.quantize", result, o.target_modules)) do
    if layer:get "weight_type" then fail("quant.quantize: %s is quantized already", layer.name) end
    if layer:is_conv1d() or layer:is_embedding() or layer:get("weight"):dim() ~= 2 then
      fail("quant.quantize: %s has no weight [out, in] of a linear layer", layer.name)
    end
    layer:set("weight", native.quantize(layer:get "weight", o.type))
    layer:set("weight_type", o.type)
  end
  return result
end)

local dequantize_options = arguments("quant.dequantize", { dtype = "float32" })
quant.dequantize = registry.define("redco.quant.dequantize", [[
dequantize(params, {dtype = "float32"}) -> params
Returns the tree with floating-point weights in place of quantized ones, to train all of them or to
write them with `model.save_pretrained`. The other tensors are those of `params`.]],
function(params, options)
  local o, result = dequantize_options(options), copy_of(params)
  torch.no_grad(function()
    for _, layer in ipairs(layers.of(result)) do
      if layer:get "weight_type" then
        layer:set("weight", weights.dequantized(layer.node, layer.stem, o.dtype))
        layer:set("weight_type", nil)
        layer:set("weight_dtype", nil)
      end
    end
  end)
  return result
end)

quant.types = registry.define("redco.quant.types", [[
types() -> list
Returns the types of quantized numbers, a list of {name, size, bytes, bits, can_quantize}: each block
of `size` neighbours takes `bytes` bytes, which is `bits` for each number. `can_quantize` is false for
types that are only read.]], function()
  local list = {}
  for i, type in ipairs(native.block_types) do
    list[i] = { name = type.name, size = type.size, bytes = type.bytes,
      bits = 8 * type.bytes / type.size, can_quantize = type.can_quantize }
  end
  return list
end)

return registry.define("redco.quant", [[
redco.quant
Quantized weights: numbers of 2 to 8 bits in blocks with common scales. Models read them from GGUF
files, and `redco.models.from_pretrained(dir, {quantize = "q4_0"})` rounds the weights of a folder
while it reads them. They stay packed in memory and on every layout of the processes; products
dequantize a part at a time. Adapters train on top of them (QLoRA).]], quant)
