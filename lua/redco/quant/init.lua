--- Weights of 2 to 8 bits: read, computed with, and under adapters.
local arguments = require "redco.arguments"
local choose = require "redco.lora.choose"
local fail = require "redco.fail"
local importance = require "redco.quant.importance"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"
local tree = require "redco.tree"
local weights = require "redco.quant.weights"

local quant = {}

local function copy_of(params)
  return tree.map(function(leaf) return leaf end, params)
end

local quantize_options = arguments("quant.quantize", {},
  { "type", "target_modules", "importance" })
quant.quantize = registry.define("redco.quant.quantize", [[
quantize(params, {type: string, target_modules, importance: table = nil}) -> params
Returns the tree with the weights [out, in] of some linear layers rounded to numbers of a type that
`redco.quant.types` lists: `X.weight` becomes a tensor [out, in / size, bytes] of uint8, and
`X.weight_type` names the type. Layers, models and adapters compute with it as with the weight
before. `importance`, from `redco.quant.importance`, has the weights of the errors of each layer's
columns. `target_modules` is a list of the last parts of layers' names, {"q_proj", "v_proj"}, or a Lua
pattern of whole names. The other tensors are those of `params`. Quantized weights cannot be trained:
train adapters on them (`redco.lora.add`).]], function(params, options)
  local o = quantize_options(options)
  local result = copy_of(params)
  for _, layer in ipairs(choose.modules("quant.quantize", result, o.target_modules)) do
    if layer:get "weight_type" then fail("quant.quantize: %s is quantized already", layer.name) end
    if layer:is_conv1d() or layer:is_embedding() or layer:get("weight"):dim() ~= 2 then
      fail("quant.quantize: %s has no weight [out, in] of a linear layer", layer.name)
    end
    layer:set("weight", weights.quantized(layer:get "weight", o.type,
      o.importance and o.importance[layer.name]))
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
  torch.no_grad(weights.dequantize, result, o.dtype)
  return result
end)

local importance_options = arguments("quant.importance", { max_length = 512 },
  { "params", "tokenizer" })
quant.importance = registry.define("redco.quant.importance", [[
importance(model, texts: list, {tokenizer = nil, max_length = 512, params = model.params}) -> table
Returns for each linear layer of a model the mean squares of its inputs over texts, {[name of the
layer] = tensor [in]}: errors of a weight in columns with large inputs count more. `quantize` and
`model.save_gguf` take it. `texts` are texts, which need `tokenizer` and are cut into pieces of
`max_length` tokens, or tables of a model's inputs. A hundred texts like those that the model will
read are enough. Layers of experts are left out.]], function(model, texts, options)
  local o = importance_options(options)
  if type(texts) ~= "table" then
    fail("quant.importance: texts: expected a list, got %s", native.describe(texts))
  end
  return importance.of(model, texts, o)
end)

quant.save_importance = registry.define("redco.quant.save_importance", [[
save_importance(path, model, importance: table)
Writes what `importance` returned to a file that llama-quantize of llama.cpp reads, `imatrix.gguf`.
Every process must call it.]], importance.save)

quant.load_importance = registry.define("redco.quant.load_importance", [[
load_importance(path, model) -> table
Reads a file of llama-imatrix of llama.cpp, in the form of GGUF, as what `importance` returns.]],
importance.load)

quant.calibrate = require "redco.quant.calibrate"

quant.types = registry.define("redco.quant.types", [[
types() -> list
Returns the types of quantized numbers, a list of {name, size, bytes, bits}: each block of `size`
neighbours takes `bytes` bytes, which is `bits` for each number.]], function()
  local list = {}
  for i, type in ipairs(native.block_types) do
    list[i] = { name = type.name, size = type.size, bytes = type.bytes,
      bits = 8 * type.bytes / type.size }
  end
  return list
end)

return registry.define("redco.quant", [[
redco.quant
Quantized weights: numbers of 2 to 8 bits in blocks with common scales. Models read them from GGUF
files, and `redco.models.from_pretrained(dir, {quantize = "q4_0"})` rounds the weights of a folder
while it reads them. They stay packed in memory and on every layout of the processes; products
dequantize a part at a time. Adapters train on top of them (QLoRA).]], quant)
