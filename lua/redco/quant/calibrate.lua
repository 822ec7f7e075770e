--- Quantizes a model by the texts that it reads. Each text runs in a coroutine, which stops in each
--- block of the model: all texts pass a block before its weights are rounded, and again after it.
local arguments = require "redco.arguments"
local fail = require "redco.fail"
local layers = require "redco.lora.layers"
local packed = require "redco.models.packed"
local recompute = require "redco.nn.recompute"
local registry = require "redco.registry"
local rounding = require "redco.quant.rounding"
local torch = require "redco.torch"
local tree = require "redco.tree"
local weights = require "redco.quant.weights"

local read_options = arguments("quant.calibrate",
  { method = "gptq", type = "int4", group_size = 128, max_length = 512, damping = 0.01 },
  { "tokenizer", "validation_texts" })

local function check(model, texts, o)
  local function refuse(name, expected)
    fail("quant.calibrate: %s: expected %s, got %s", name, expected, tostring(o[name]))
  end
  if o.method ~= "gptq" and o.method ~= "awq" then refuse("method", "\"gptq\" or \"awq\"") end
  if o.type ~= "int4" then refuse("type", "\"int4\"") end
  if type(o.group_size) ~= "number" or o.group_size < 64 or o.group_size % 64 ~= 0 then
    refuse("group_size", "a multiple of 64")
  end
  if type(o.damping) ~= "number" or o.damping <= 0 then refuse("damping", "a positive number") end
  if type(model) ~= "table" or not model.loss or not model.is_decoder then
    fail "quant.calibrate: expected a language model that predicts the next token"
  end
  if type(texts) ~= "table" or #texts == 0 then
    fail "quant.calibrate: expected a list of texts, or of lists of tokens"
  end
  for _, leaf in ipairs(tree.leaves(model.params)) do
    if torch.is_tensor(leaf) and leaf:is_sharded() then
      fail "quant.calibrate: the parameters are split over processes; run it in one process"
    end
  end
end

-- Returns the tokens of texts as rows [1, T].
local function rows_of(texts, o)
  local rows = {}
  for _, text in ipairs(texts) do
    if type(text) == "string" and not o.tokenizer then
      fail "quant.calibrate: texts need the tokenizer: { tokenizer = tokenizer }"
    end
    local ids = type(text) == "string" and o.tokenizer:encode(text) or text
    if #ids > 1 then
      rows[#rows + 1] = torch.tensor({ { unpack(ids, 1, math.min(#ids, o.max_length)) } },
        { dtype = "int64" })
    end
  end
  if #rows == 0 then fail "quant.calibrate: no text has two tokens" end
  return rows
end

local function loss_of(model, params, row)
  return model.loss(params, { input_ids = row, labels = row }, { shift = true })
end

local function perplexity_of(model, params, rows)
  local sum, count = 0, 0
  for _, row in ipairs(rows) do
    sum = sum + loss_of(model, params, row):item() * (row:size(1) - 1)
    count = count + row:size(1) - 1
  end
  return math.exp(sum / count)
end

-- Statistics of the inputs of layers, {[weight] = {hessian, magnitude, n}}; layers that read the
-- same tensor share it.
local function new_statistics(layer_of)
  local all, last_x, last = {}, nil, nil
  local function add(x, weight)
    local rows = x:reshape { -1, x:size(-1) }:float()
    local own = all[weight]
    if not own then
      own = { hessian = 0, magnitude = 0, n = 0 }
      all[weight] = own
    end
    own.hessian = own.hessian + rows:t():matmul(rows)
    own.magnitude = own.magnitude + rows:abs():sum { 0 }
    own.n = own.n + rows:size(0)
    return own
  end
  return all, function(_, x, weight)
    if not layer_of[weight] then return end
    if rawequal(x, last_x) then
      all[weight] = last
    else
      last_x, last = x, add(x, weight)
    end
  end
end

-- Runs the texts block by block: `observe` sees the inputs of layers, `round` is called when all
-- texts have passed a block.
local function pass(model, params, rows, observe, round)
  local is_inside = false
  local function finish(...)
    is_inside = false
    return ...
  end
  recompute.call = function(f, ...)
    if is_inside then return f(...) end
    is_inside = true
    weights.observe(observe, f, ...)
    is_inside = false
    coroutine.yield()
    is_inside = true
    return finish(f(...))
  end
  local runs = {}
  for i, row in ipairs(rows) do
    runs[i] = coroutine.create(function() loss_of(model, params, row) end)
  end
  while coroutine.status(runs[1]) ~= "dead" do
    for _, run in ipairs(runs) do
      local is_done, message = coroutine.resume(run)
      if not is_done then error(message, 0) end
    end
    round()
  end
end

local function quantized(model, rows, o)
  local params, layer_of = tree.map(function(leaf) return leaf end, model.params), {}
  for _, layer in ipairs(layers.of(params)) do
    local weight = layer:get "weight"
    if weight:dim() == 2 and weight:is_floating_point() and not layer:is_conv1d()
      and weight:size(1) % o.group_size == 0 and packed.may_be(layer.name .. ".weight") then
      layer_of[weight] = layer
    end
  end
  local all, observe = new_statistics(layer_of)
  local found = {}
  local function round()
    for weight, own in pairs(all) do
      local layer = layer_of[weight]
      local blocks, scale, off, off_nearest = rounding.round("quant.calibrate: " .. layer.name,
        weight:float():contiguous(), own.hessian, own.magnitude / own.n, o)
      layer:set("weight", blocks)
      layer:set("weight_type", o.type)
      layer:set("weight_input_scale", scale)
      found[layer.name] = { error = off, rounding_error = off_nearest }
      all[weight], layer_of[weight] = nil, nil
    end
  end
  local is_done, message = pcall(pass, model, params, rows, observe, round)
  recompute.call = nil
  if not is_done then error(message, 0) end
  if not next(found) then
    fail("quant.calibrate: no weight of the model has a multiple of %d inputs", o.group_size)
  end
  return params, found
end

return registry.define("redco.quant.calibrate", [[
calibrate(model, texts: list, {method = "gptq", type = "int4", group_size = 128, max_length = 512, damping = 0.01, tokenizer = nil,
  validation_texts: list = nil}) -> params, report
Returns the parameters of a language model with the weights of its layers rounded to numbers of 4
bits so that the layers' outputs for the texts change little. A few hundred texts like those of the
use suffice: texts with their `tokenizer`, or lists of tokens, of which max_length are read. `method`
is "gptq" (arXiv 2210.17323), which corrects the weights that are not rounded yet, with a Hessian
whose diagonal is raised by `damping` of its mean; or "awq" (arXiv 2306.00978), which scales the
inputs of each layer, by `X.weight_input_scale`. `group_size` inputs share a scale, a multiple of 64.
The model is rounded block by block, and other tensors are those of the model.

The report is {perplexity_before, perplexity_after, layers = {[name] = {error, rounding_error}}}:
perplexities of `validation_texts`, by default of the texts, and the error of each layer's outputs as
a part of their squares, beside that of rounding to the nearest.]], function(model, texts, options)
  local o = read_options(options)
  check(model, texts, o)
  return torch.no_grad(function()
    local rows = rows_of(texts, o)
    local validation = o.validation_texts and rows_of(o.validation_texts, o) or rows
    local before = perplexity_of(model, model.params, validation)
    local params, found = quantized(model, rows, o)
    return params, { perplexity_before = before, layers = found,
      perplexity_after = perplexity_of(model, params, validation) }
  end)
end)
