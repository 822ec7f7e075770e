--- padding_collate: batches of sequences of tokens of different lengths.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local default_collate = require "redco.data.default_collate"
local fail = require "redco.fail"
local native = require "redco.native"
local registry = require "redco.registry"
local torch = require "redco.torch"

-- The padding values of fields; `input_ids` are padded with pad_token_id.
local fillers = { labels = -100, attention_mask = 0, token_type_ids = 0, position_ids = 0,
  segment_ids = 0 }

local function to_row(value, key, i)
  local row = torch.is_tensor(value) and value
    or type(value) == "table" and torch.tensor(value, { dtype = "int64" })
    or fail("padding_collate: example %d: %s is %s, expected a list or a tensor of tokens", i, key,
      native.describe(value))
  if row:dim() ~= 1 then
    fail("padding_collate: example %d: %s has shape [%s], expected one dimension", i, key,
      table.concat(row.shape, ", "))
  end
  return row
end

local function rows_of(examples, key)
  local rows = {}
  for i, example in ipairs(examples) do
    if type(example) ~= "table" or example[key] == nil then
      fail("padding_collate: example %d has no %s", i, key)
    end
    rows[i] = to_row(example[key], key, i)
  end
  return rows
end

local function padded(rows, length, filler)
  local batch = torch.full({ #rows, length }, filler, { dtype = rows[1].dtype })
  for i, row in ipairs(rows) do batch[i - 1]:narrow(0, 0, row:size(0)):copy_(row) end
  return batch
end

local function check_lengths(rows, key, inputs)
  for i, row in ipairs(rows) do
    if row:size(0) ~= inputs[i]:size(0) then
      fail("padding_collate: example %d has %d input_ids and %d %s", i, inputs[i]:size(0),
        row:size(0), key)
    end
  end
end

-- Returns [batch, length]: 1 for a token, 0 for padding.
local function attention_mask(rows, length)
  local ones = {}
  for i, row in ipairs(rows) do ones[i] = torch.ones_like(row) end
  return padded(ones, length, 0)
end

local options = arguments("padding_collate",
  { pad_token_id = 0, pad_to_multiple_of = 1, return_attention_mask = true })

return registry.define("redco.data.padding_collate", [[
padding_collate({pad_token_id: integer = 0, pad_to_multiple_of: integer = 1, return_attention_mask = true}) -> function
Returns a `collate_fn` for examples of different lengths, {input_ids, labels, ...}, lists or tensors
of integers, as `conversations` makes them. It pads them on the right to the longest one, or to the
next multiple of pad_to_multiple_of: `input_ids` with pad_token_id, `labels` with -100,
`attention_mask`, `token_type_ids`, `position_ids` and `segment_ids` with 0. The other fields go
through `default_collate`.

The batch gets an `attention_mask` [batch, length], 1 for a token and 0 for padding, unless the
examples have one, or have segment_ids (rows of `pack`). A decoder without experts computes the same
without it, by LibTorch's faster causal attention: return_attention_mask = false leaves it out.]],
function(given)
  local o = options(given)
  check_integer("padding_collate", "pad_token_id", o.pad_token_id, 0)
  check_integer("padding_collate", "pad_to_multiple_of", o.pad_to_multiple_of, 1)
  return function(examples)
    local inputs, length = rows_of(examples, "input_ids"), 1
    for _, row in ipairs(inputs) do length = math.max(length, row:size(0)) end
    length = math.ceil(length / o.pad_to_multiple_of) * o.pad_to_multiple_of
    local batch, others = { input_ids = padded(inputs, length, o.pad_token_id) }, {}
    for key in pairs(examples[1]) do
      if fillers[key] then
        local rows = rows_of(examples, key)
        check_lengths(rows, key, inputs)
        batch[key] = padded(rows, length, fillers[key])
      elseif key ~= "input_ids" then
        others[#others + 1] = key
      end
    end
    if o.return_attention_mask and not batch.attention_mask and not batch.segment_ids then
      batch.attention_mask = attention_mask(inputs, length)
    end
    for _, key in ipairs(others) do
      local values = {}
      for i, example in ipairs(examples) do values[i] = { [key] = example[key] } end
      batch[key] = default_collate(values)[key]
    end
    return batch
  end
end)
