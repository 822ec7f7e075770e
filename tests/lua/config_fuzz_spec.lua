-- Configurations that are damaged: each makes a model, or an error that names the family and says
-- what is wrong. The damage is drawn from a seed.
local redco = require "redco"
local model_cases = require "model_cases"
local testing = require "testing"

local test, expect_error = testing.test, testing.expect_error
local from_config = redco.models.from_config

-- None of them makes a model that is slow to fill.
local values = { -1, 0, 0.5, 1, 2, 3, 7, 1.5, -2 ^ 31, 2 ^ 31, 2 ^ 53, 1e30, 1e308, math.huge,
  -math.huge, 0 / 0, true, false, "", "48", "gelu", {}, { 1, 2 }, { a = 1 }, { { {} } } }

local state = 1
local function draw(n)
  state = state * 48271 % 2147483647
  return state % n + 1
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

-- Without these, a part has the size of the published model.
local is_kept = { text_config = true, vision_config = true }

-- A copy with one entry changed, at any depth.
local function damaged(config)
  local copy = {}
  for key, value in pairs(config) do copy[key] = value end
  local keys = sorted_keys(copy)
  local key = keys[draw(#keys)]
  local is_filled = type(copy[key]) == "table" and next(copy[key]) ~= nil
  if is_kept[key] or is_filled and draw(4) > 1 then
    copy[key] = damaged(copy[key])
  elseif draw(5) == 1 then
    copy[key] = nil
  else
    copy[key] = values[draw(#values)]
  end
  return copy
end

local function shown(value)
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for _, key in ipairs(sorted_keys(value)) do
    parts[#parts + 1] = tostring(key) .. " = " .. shown(value[key])
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local n_tries = testing.is_full and 300 or 80

for _, name in ipairs(model_cases.names) do
  test("damage to " .. name, function()
    local config = redco.data.json(model_cases.folders[1] .. "/" .. name .. "/config.json")
    local n_refused = 0
    for i = 1, n_tries do
      local given = damaged(config)
      if i % 2 == 0 then given = damaged(given) end
      local ok, message = pcall(from_config, given)
      if not ok then
        n_refused = n_refused + 1
        local is_plain = type(message) == "string" and not message:find "attempt to"
          and not message:find "bad argument"
        local is_named = message:find(config.model_type .. ":", 1, true)
          or message:find("vit:", 1, true) or message:find("gpt2:", 1, true)
          or message:find("_model:", 1, true) or message:find("_encoder:", 1, true)
          or message:find("_decoder:", 1, true) or message:find("model_type", 1, true)
        if not (is_plain and is_named) then
          error(("%s\nof %s"):format(tostring(message), shown(given)))
        end
      end
    end
    assert(n_refused > n_tries / 6 and n_refused < n_tries, n_refused .. " are refused")
  end)
end

test("what makes too much is refused before it is made", function()
  local most = 2 ^ 31 - 1
  expect_error(function() from_config { model_type = "llama", num_hidden_layers = most } end,
    "llama", "tensors")
  expect_error(function() from_config { model_type = "gpt2", vocab_size = most, n_embd = 12 * 1e6 }
  end, "gpt2", "parameters")
  expect_error(function() from_config { model_type = "t5", vocab_size = most } end, "t5", "GB")
  expect_error(function() from_config { model_type = "vit", hidden_size = 12 * 1e6 } end,
    "vit", "parameters")
end)

test("what a number must be is said", function()
  for key, value in pairs { n_head = 0, n_layer = 2.5, n_embd = -12, vocab_size = 2 ^ 31 } do
    expect_error(function() from_config { model_type = "gpt2", [key] = value } end,
      "gpt2", key, "whole number from 1")
  end
  expect_error(function() from_config { model_type = "gpt2", attn_pdrop = 0 / 0 } end,
    "attn_pdrop", "probability")
  expect_error(function() from_config { model_type = "llama", attention_dropout = 2 } end,
    "attention_dropout is 2", "from 0 to 1")
  expect_error(function() from_config { model_type = "t5", is_encoder_decoder = false } end,
    "is_encoder_decoder = false", "only true")
  expect_error(function() from_config { model_type = "gpt2", eos_token_id = 1.5 } end,
    "eos_token_id", "token")
  expect_error(function() from_config { model_type = "opt", pad_token_id = 50272 } end,
    "opt", "pad_token_id", "vocab_size")
  expect_error(function() from_config(5) end, "expected a table")
  expect_error(function() redco.models.from_pretrained() end, "expected a model's folder, got nil")
end)

testing.finish()
