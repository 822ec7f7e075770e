--- Batches of preferences from tokens.
local arguments = require "redco.arguments"
local check_choice = require "redco.check_choice"
local check_integer = require "redco.check_integer"
local fail = require "redco.fail"
local native = require "redco.native"
local padding_collate = require "redco.data.padding_collate"
local registry = require "redco.registry"
local torch = require "redco.torch"

local where = "preference.collate"
local options = arguments(where, { pad_token_id = 0, truncation_mode = "keep_end" },
  { "max_length", "pad_to_multiple_of" })


-- Returns a field of example i as a list of tokens.
local function tokens_of(example, name, i)
  local value = example[name]
  if torch.is_tensor(value) then value = value:tolist() end
  if type(value) ~= "table" then
    fail("%s: example %d: %s: expected a list of tokens, got %s%s", where, i, name,
      native.describe(value), type(value) == "string" and "; encode texts with a tokenizer" or "")
  end
  if #value == 0 and name ~= "prompt" then
    fail("%s: example %d: %s has no tokens", where, i, name)
  end
  for _, token in ipairs(value) do
    if type(token) ~= "number" or token < 0 or token % 1 ~= 0 then
      fail("%s: example %d: %s: expected tokens, integers from 0, got %s", where, i, name,
        tostring(token))
    end
  end
  return value
end

-- Returns the tokens of a prompt and a completion, at most max_length, and where the completion
-- begins, counted from 0.
local function joined(prompt, completion, o, i, name)
  local n = #prompt + #completion
  local excess = o.max_length and math.max(0, n - o.max_length) or 0
  local first = o.truncation_mode == "keep_end" and excess or 0
  local row = {}
  for at = first + 1, first + n - excess do
    row[#row + 1] = at <= #prompt and prompt[at] or completion[at - #prompt]
  end
  local begins = math.max(0, #prompt - first)
  -- No position predicts the first token.
  if #row <= math.max(begins, 1) then
    fail("%s: example %d: no token of %s is left to be predicted: prompt and completion have %d "
      .. "and %d tokens%s", where, i, name, #prompt, #completion,
      o.max_length and (", max_length is %d"):format(o.max_length) or "")
  end
  return row, begins
end

-- Returns the tokens, with the next token as label if the completion contains it, else -100.
local function with_labels(row, begins)
  local labels = {}
  for at = 1, #row do labels[at] = at >= begins and row[at + 1] or -100 end
  return { input_ids = row, labels = labels }
end

-- Adds the numbers that all examples have: the reference's log-probabilities, margins.
local function add_numbers(batch, examples, name, n_each)
  if examples[1][name] == nil then return end
  local lists = {}
  for i, example in ipairs(examples) do
    local value = example[name]
    if torch.is_tensor(value) then value = value:tolist() end
    local list = type(value) == "table" and value or { value }
    for at = 1, n_each or 1 do
      if type(list[at]) ~= "number" or list[at] - list[at] ~= 0 or #list ~= (n_each or 1) then
        fail("%s: example %d: %s: expected %s, got %s", where, i, name,
          n_each and n_each .. " finite numbers" or "a finite number",
          native.describe(list[at] == nil and value or list[at]))
      end
    end
    lists[i] = n_each and list or list[1]
  end
  batch[name] = torch.tensor(lists, { dtype = "float32" })
end

-- Returns the names of the two completions of example i.
local function kind_of(example, i)
  if type(example) ~= "table" then
    fail("%s: example %d: expected a table, got %s", where, i, native.describe(example))
  end
  if example.chosen ~= nil then return { "chosen", "rejected" } end
  if example.completion ~= nil then return { "completion", "kl_completion" } end
  fail("%s: example %d has neither chosen and rejected nor completion", where, i)
end

return registry.define("redco.preference.collate", [[
collate(examples, {max_length = nil, truncation_mode = "keep_end", pad_token_id = 0, pad_to_multiple_of = nil}) -> batch
Makes a batch of preferences, as part of a collate_fn. An example has lists or tensors of tokens:
{prompt, chosen, rejected}, or for `redco.preference.kto` {prompt, completion, kl_completion,
desirable}, in which kl_completion is the completion of another prompt. The tokens of a chat are those
of the tokenizer's chat template, those that end a completion included.

The batch has input_ids, attention_mask and labels [examples, 2, length], for
`redco.preference.sequence_logprobs`. Labels are the next tokens, and -100 in prompts and padding.
Also, if the examples have them: ref_logps [examples, 2], margin [examples], and desirable [examples].
An example without kl_completion gives [examples, 1, length].
  max_length: of prompt and completion. truncation_mode = "keep_end" drops the first tokens,
    "keep_start" the last ones. An example of which no token remains to be predicted raises an error
  pad_to_multiple_of: rounds the length up]],
function(examples, given)
  local o = options(given)
  if type(examples) ~= "table" or #examples == 0 then
    fail("%s: expected a list of examples, got %s", where,
      type(examples) == "table" and "an empty one" or native.describe(examples))
  end
  if o.max_length then check_integer(where, "max_length", o.max_length, 2) end
  if o.pad_to_multiple_of then
    check_integer(where, "pad_to_multiple_of", o.pad_to_multiple_of, 1)
  end
  check_choice(where, "truncation_mode", o.truncation_mode, "keep_end", "keep_start")
  local names = kind_of(examples[1], 1)
  if names[1] == "completion" and examples[1].kl_completion == nil then names[2] = nil end
  local rows = {}
  for i, example in ipairs(examples) do
    if kind_of(example, i)[1] ~= names[1] then
      fail("%s: example %d has %s, but example 1 has %s", where, i, kind_of(example, i)[1],
        names[1])
    end
    local prompt = tokens_of(example, "prompt", i)
    for _, name in ipairs(names) do
      rows[#rows + 1] = with_labels(joined(prompt, tokens_of(example, name, i), o, i, name))
    end
  end
  local batch = padding_collate {
    pad_token_id = o.pad_token_id, pad_to_multiple_of = o.pad_to_multiple_of,
  } (rows)
  for name, tensor in pairs(batch) do
    batch[name] = tensor:reshape { #examples, #names, tensor:size(1) }
  end
  add_numbers(batch, examples, "ref_logps", #names)
  add_numbers(batch, examples, "margin")
  if examples[1].desirable ~= nil then
    local desirable = {}
    for i, example in ipairs(examples) do
      if type(example.desirable) ~= "boolean" then
        fail("%s: example %d: desirable: expected a boolean, got %s", where, i,
          native.describe(example.desirable))
      end
      desirable[i] = example.desirable
    end
    batch.desirable = torch.tensor(desirable)
  end
  return batch
end)
