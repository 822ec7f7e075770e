--- The importance of the inputs of linear layers: their mean squares over texts, as llama-imatrix
--- of llama.cpp gathers them, and its files.
local fail = require "redco.fail"
local names = require "redco.models.gguf.names"
local native = require "redco.native"
local torch = require "redco.torch"
local weights = require "redco.quant.weights"
local write = require "redco.models.gguf.write"

local importance = {}

-- Returns the batches of texts, one of `length` tokens each.
local function batches_of(texts, tokenizer, length)
  local batches = {}
  for i, text in ipairs(texts) do
    if type(text) == "table" then
      batches[#batches + 1] = text
    elseif type(text) == "string" and tokenizer then
      local ids = tokenizer:encode(text)
      for first = 1, #ids, length do
        local part = { unpack(ids, first, math.min(first + length - 1, #ids)) }
        batches[#batches + 1] = { input_ids = torch.tensor { part } }
      end
    else
      fail("quant.importance: text %d is %s, expected a table of inputs%s", i,
        native.describe(text), tokenizer and " or a text" or ", or a text with tokenizer")
    end
  end
  if #batches == 0 then fail "quant.importance: there are no texts" end
  return batches
end

--- Returns the mean squares of the inputs of each layer: {[name] = tensor [in]}.
function importance.of(model, texts, o)
  local sums, counts = {}, {}
  local function observe(name, x)
    local rows = x:detach():float():flatten(0, -2)
    local sum = rows:pow(2):sum(0)
    sums[name] = sums[name] and sums[name] + sum or sum
    counts[name] = (counts[name] or 0) + rows:size(0)
  end
  local params = o.params or model.params
  torch.no_grad(function()
    for _, batch in ipairs(batches_of(texts, o.tokenizer, o.max_length)) do
      weights.observe(observe, model, params, batch)
    end
  end)
  local result = {}
  for name, sum in pairs(sums) do result[name] = (sum / counts[name]):full() end
  return result
end

-- Returns the row of a model's architecture.
local function row_of(model)
  local base = {}
  for name, value in pairs(model.params) do
    if not name:find "lora_" then base[name] = value end
  end
  return (select(2, names.row_of(model, base)))
end

--- Writes a file that llama-quantize reads.
function importance.save(path, model, table_of)
  local row, tensors, values = row_of(model), {}, {}
  local function add(name, tensor)
    tensors[#tensors + 1], values[#values + 1] = { name, "f32", tensor.shape }, tensor
  end
  local layers = {}
  for layer in pairs(table_of) do layers[#layers + 1] = layer end
  table.sort(layers)
  for _, layer in ipairs(layers) do
    local name, expert = names.of(row, layer .. ".weight")
    if name and not expert then
      add(name .. ".in_sum2", table_of[layer]:float():view { 1, -1 })
      add(name .. ".counts", torch.ones { 1, 1 })
    end
  end
  write(path, { { "general.type", "string", "imatrix" },
    { "imatrix.datasets", "string[]", { "redco" } }, { "imatrix.chunk_count", "u32", 1 },
    { "imatrix.chunk_size", "u32", 1 } }, tensors, function(writer)
    for _, tensor in ipairs(values) do writer:add(tensor) end
  end)
end

--- Reads a file of llama-imatrix.
function importance.load(path, model)
  local file, row, result, by_name = native.open_gguf(path), row_of(model), {}, {}
  if file.metadata["general.type"] ~= "imatrix" then
    fail("%s: general.type is %s, expected imatrix", path,
      tostring(file.metadata["general.type"]))
  end
  for parameter in pairs(model.params) do
    local name, expert = names.of(row, parameter)
    if name and not expert then by_name[name] = (parameter:gsub("%.weight$", "")) end
  end
  local has = {}
  for _, name in ipairs(file:keys()) do has[name] = true end
  for name in pairs(has) do
    local weight = name:match "^(.*)%.in_sum2$"
    local layer = weight and by_name[weight]
    if layer then
      if not has[weight .. ".counts"] then fail("%s: %s.counts is missing", path, weight) end
      local count = file:tensor(weight .. ".counts"):flatten():sum():item()
      if count > 0 then result[layer] = file:tensor(name):flatten() / count end
    end
  end
  if next(result) == nil then fail("%s: there is no layer of the model in the file", path) end
  return result
end

return importance
