-- Rotary positions against transformers' (rope_cases.json, made by tests/tools/make_rope_cases.py).
local redco = require "redco"
local rotary = require "redco.models.rotary"
local testing = require "testing"

local torch = redco.torch
local test, expect_close = testing.test, testing.expect_close
local expect_equal, expect_error = testing.expect_equal, testing.expect_error

local function copy(t)
  local result = {}
  for key, value in pairs(t) do result[key] = value end
  return result
end

-- As a family does it.
local function settings_of(config)
  local c = copy(config)
  c.rope_theta = c.rope_theta or 10000
  rotary.complete(c)
  return rotary.settings("llama", c, c.head_dim or c.hidden_size / c.num_attention_heads), c
end

local function expect_case(case, config)
  local list, factor = rotary.frequencies(settings_of(config), case.length)
  expect_close(torch.tensor(list, { dtype = "float32" }), case.inverse_frequencies, 1e-6, 0)
  expect_close(torch.tensor(factor), torch.tensor(case.attention_factor), 1e-6)
end

local cases = redco.data.json "rope_cases.json"

test("frequencies without scaling are those of transformers to the last bit", function()
  local n = 0
  for _, case in ipairs(cases) do
    if not case.config.rope_scaling then
      local list = rotary.frequencies(settings_of(case.config))
      expect_close(torch.tensor(list, { dtype = "float32" }), case.inverse_frequencies, 0, 0)
      n = n + 1
    end
  end
  assert(n > 0)
end)

test("frequencies and attention factors of every kind", function()
  local kinds = {}
  for _, case in ipairs(cases) do
    expect_case(case, case.config)
    local scaling = case.config.rope_scaling
    kinds[scaling and scaling.rope_type or "default"] = true
  end
  for _, kind in ipairs { "default", "linear", "dynamic", "llama3", "yarn", "longrope" } do
    assert(kinds[kind], "no case of " .. kind)
  end
end)

test("the configurations of transformers 5 mean the same, and are saved as version 4's", function()
  for _, case in ipairs(cases) do
    local config = copy(case.config)
    -- Version 5 has everything in one table.
    local scaling = copy(config.rope_scaling or { rope_type = "default" })
    scaling.rope_type, scaling.type = scaling.type or scaling.rope_type, nil
    if scaling.rope_type == "longrope" then
      scaling.original_max_position_embeddings = config.original_max_position_embeddings
      config.original_max_position_embeddings = nil
    end
    scaling.rope_theta = config.rope_theta or 10000
    config.rope_parameters, config.rope_scaling, config.rope_theta = scaling, nil, nil
    expect_case(case, config)
    local _, old = settings_of(case.config)
    local _, new = settings_of(config)
    expect_equal(new.rope_parameters, nil)
    expect_equal(new.rope_theta, old.rope_theta)
    for key, value in pairs(old.rope_scaling or {}) do
      local is_unread = scaling.rope_type == "longrope"
        and key == "original_max_position_embeddings"
      if not is_unread then expect_equal(new.rope_scaling[key], value) end
    end
    expect_equal(new.rope_scaling == nil, old.rope_scaling == nil)
  end
end)

test("angles are positions times frequencies; kinds by length count tokens", function()
  local config = { hidden_size = 8, num_attention_heads = 2, max_position_embeddings = 4,
    rope_scaling = { rope_type = "dynamic", factor = 2 } }
  local r = settings_of(config)
  local function expect_angles(inputs, options, length, n_tokens, positions)
    local cos, sin = rotary.angles(r, inputs, options, torch.ones { 2, length, 8 })
    local angles = torch.tensor(positions):float():unsqueeze(-1)
      * torch.tensor((rotary.frequencies(r, n_tokens)))
    expect_close(cos, angles:cos():unsqueeze(1), 1e-5, 1e-6)
    expect_close(sin, angles:sin():unsqueeze(1), 1e-5, 1e-6)
  end
  expect_angles({}, {}, 3, 3, { { 0, 1, 2 } })
  expect_angles({}, {}, 6, 6, { { 0, 1, 2, 3, 4, 5 } })
  expect_angles({}, { cache = { length = 5 } }, 1, 6, { { 5 } })
  local padded = torch.tensor { { 0, 0, 0, 1, 1, 1 }, { 1, 1, 1, 1, 1, 0 } }
  expect_angles({ attention_mask = padded }, {}, 6, 5,
    { { 0, 0, 0, 0, 1, 2 }, { 0, 1, 2, 3, 4, 4 } })
  expect_angles({ position_ids = torch.tensor { { 7, 8 } } }, {}, 2, 9, { { 7, 8 } })
end)

test("yarn's attention factor multiplies cos and sin", function()
  local r = settings_of { hidden_size = 8, num_attention_heads = 2, max_position_embeddings = 64,
    rope_scaling = { rope_type = "yarn", factor = 4, attention_factor = 3 } }
  local cos, sin = rotary.angles(r, {}, {}, torch.ones({ 1, 5 }, { dtype = "float64" }))
  expect_equal(cos.dtype, "float64")
  expect_close(cos:pow(2) + sin:pow(2), torch.full_like(cos, 9), 1e-5)
end)

test("neighbours and halves are the same pairs in another order; the rest stays", function()
  local r = settings_of { head_dim = 6, max_position_embeddings = 16 }
  local cos, sin = rotary.angles(r, {}, {}, torch.ones({ 1, 4 }, { dtype = "float64" }))
  local x = torch.randn({ 2, 3, 4, 10 }, { dtype = "float64", generator = torch.Generator(1) })
  local y = rotary.turn_neighbours(x, cos, sin)
  local interleaved = torch.tensor { 0, 2, 4, 1, 3, 5 }
  local halves = rotary.turn_halves(x:index_select(-1, interleaved), rotary.of_halves(cos, sin))
  expect_close(y:index_select(-1, interleaved), halves, 1e-12)
  expect_close(y:narrow(-1, 6, 4), x:narrow(-1, 6, 4), 0, 0)
  -- The first pair of the second token, by hand: one radian.
  local a, b = x[{ 0, 0, 1, 0 }]:item(), x[{ 0, 0, 1, 1 }]:item()
  expect_close(y[{ 0, 0, 1, 0 }], torch.tensor(a * math.cos(1) - b * math.sin(1)), 1e-6)
  expect_close(y[{ 0, 0, 1, 1 }], torch.tensor(b * math.cos(1) + a * math.sin(1)), 1e-6)
end)

test("what is wrong in rope_scaling is said", function()
  local function refused(scaling, ...)
    expect_error(function()
      redco.models.from_config { model_type = "llama", hidden_size = 8, num_attention_heads = 2,
        num_hidden_layers = 1, intermediate_size = 4, vocab_size = 5, rope_scaling = scaling }
    end, "rotary_spec.lua:", "llama: ", ...)
  end
  refused({ rope_type = "bent" }, "rope_type 'bent'", "longrope")
  refused({ rope_type = "linear" }, "linear has no factor")
  expect_error(function()
    redco.models.from_config { model_type = "llama", hidden_size = 8, num_attention_heads = 2,
      num_hidden_layers = 1, intermediate_size = 4, vocab_size = 5, partial_rotary_factor = 0.5 }
  end, "rotary_spec.lua:", "llama: partial_rotary_factor = 0.5", "only 1")
  refused({ rope_type = "longrope", short_factor = { 1 }, long_factor = { 1, 1 } },
    "short_factor has 1 numbers", "2")
end)

testing.finish()
