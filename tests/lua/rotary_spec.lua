-- Rotary positions against transformers' (rope_cases.json, made by tests/tools/make_rope_cases.py).
local redco = require "redco"
local rotary = require "redco.models.layers.rotary"
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
      -- In version 4 the ratio of the two lengths counts before the factor.
      if scaling.original_max_position_embeddings then scaling.factor = nil end
    end
    scaling.rope_theta = config.rope_theta or 10000
    config.original_max_position_embeddings = nil  -- which would count before that of the table
    config.rope_parameters, config.rope_scaling, config.rope_theta = scaling, nil, nil
    expect_case(case, config)
    local _, old = settings_of(case.config)
    local _, new = settings_of(config)
    expect_equal(new.rope_parameters, nil)
    expect_equal(new.rope_theta, old.rope_theta)
    for key, value in pairs(old.rope_scaling or {}) do
      local is_unread = scaling.rope_type == "longrope"
        and (key == "original_max_position_embeddings" or key == "factor")
      if not is_unread then expect_equal(new.rope_scaling[key], value) end
    end
    expect_equal(new.rope_scaling == nil, old.rope_scaling == nil)
  end
end)

test("in version 5 the factor of longrope counts before the ratio of the lengths", function()
  local r = settings_of { hidden_size = 8, num_attention_heads = 2, max_position_embeddings = 32,
    rope_parameters = { rope_type = "longrope", rope_theta = 100, factor = 2,
      original_max_position_embeddings = 16, short_factor = { 1, 1 }, long_factor = { 2, 3 } } }
  local _, factor = rotary.frequencies(r, 4)
  expect_close(torch.tensor(factor), torch.tensor(math.sqrt(1 + math.log(2) / math.log(16))), 1e-6)
  r = settings_of { hidden_size = 8, num_attention_heads = 2, max_position_embeddings = 32,
    original_max_position_embeddings = 8, rope_scaling = { type = "longrope", factor = 2,
      short_factor = { 1, 1 }, long_factor = { 2, 3 } } }
  _, factor = rotary.frequencies(r, 4)
  expect_close(torch.tensor(factor), torch.tensor(math.sqrt(1 + math.log(4) / math.log(8))), 1e-6)
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

-- Every kind, for heads of 8 elements and texts of at most 4 tokens in the training.
local function every_kind()
  local short, long = { 1, 1.1, 1.2, 1.3 }, { 2, 2.1, 2.2, 2.3 }
  local all = {}
  for _, scaling in ipairs { {}, { rope_type = "linear", factor = 2 },
    { rope_type = "dynamic", factor = 2 }, { rope_type = "yarn", factor = 4 },
    { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4,
      original_max_position_embeddings = 4 },
    { rope_type = "longrope", factor = 4, short_factor = short, long_factor = long } } do
    all[#all + 1] = settings_of { head_dim = 8, max_position_embeddings = 4,
      rope_scaling = scaling.rope_type and scaling }
  end
  return all
end

-- The angles of these positions by the frequencies for a text of n_tokens.
local function angles_of(r, positions, n_tokens, dtype)
  local list, factor = rotary.frequencies(r, n_tokens)
  local angles = (positions:float():unsqueeze(-1) * torch.tensor(list, { dtype = "float32" }))
    :unsqueeze(1)
  return (angles:cos() * factor):to(dtype), (angles:sin() * factor):to(dtype)
end

test("what is kept of the frequencies changes no bit, whatever was asked for before", function()
  local mask = torch.tensor { { 0, 1, 1, 1, 1, 1 }, { 1, 1, 0, 0, 0, 0 } }
  local texts = {
    { {}, {}, 3, 3 }, { {}, {}, 4, 4 }, { {}, {}, 5, 5 }, { {}, {}, 9, 9 }, { {}, {}, 3, 3 },
    { {}, { cache = { length = 6 } }, 1, 7 }, { {}, { cache = { length = 2 } }, 1, 3 },
    { { attention_mask = mask }, {}, 6, 5 },
    { { attention_mask = mask:narrow(1, 0, 4) }, {}, 4, 3 },
    { { position_ids = torch.tensor { { 20, 21 } } }, {}, 2, 22 },
  }
  for _, r in ipairs(every_kind()) do
    for _, text in ipairs(texts) do
      local inputs, options, length, n_tokens = unpack(text)
      for _, dtype in ipairs { "float32", "bfloat16", "float64" } do
        local x = torch.ones({ 2, length, 8 }, { dtype = dtype })
        local cos, sin = rotary.angles(r, inputs, options, x)
        local positions = require "redco.models.layers.blocks".position_ids(inputs, options, x)
        local expected_cos, expected_sin = angles_of(r, positions, n_tokens, dtype)
        assert(cos == expected_cos and sin == expected_sin, r.rope_type .. " " .. n_tokens)
      end
    end
  end
end)

test("frequencies are copied to a device once, positions are read where they must be", function()
  local n_copies, n_reads, copy_list, read = 0, 0, torch.tensor, torch.Tensor.item
  local function counted(f)
    n_copies, n_reads = 0, 0
    rawset(torch, "tensor", function(...) n_copies = n_copies + 1 return copy_list(...) end)
    torch.Tensor.item = function(...) n_reads = n_reads + 1 return read(...) end
    local ok, message = pcall(f)
    rawset(torch, "tensor", copy_list)
    torch.Tensor.item = read
    assert(ok, message)
    return n_copies
  end
  local short, long = torch.ones { 1, 3, 8 }, torch.ones { 1, 6, 8 }
  local some = torch.ones { 1, 6 }
  for _, r in ipairs(every_kind()) do
    local by_length = r.rope_type == "dynamic" or r.rope_type == "longrope"
    expect_equal(counted(function() rotary.angles(r, {}, {}, short) end), 1)
    expect_equal(counted(function()
      for _ = 1, 5 do rotary.angles(r, {}, {}, short) end
      rotary.angles(r, { attention_mask = some:narrow(1, 0, 3) }, {}, short:bfloat16())
    end), 0)
    expect_equal(n_reads, 0)
    expect_equal(counted(function()
      for _ = 1, 5 do rotary.angles(r, {}, {}, long) end
    end), by_length and 1 or 0)
    expect_equal(n_reads, 0)
    expect_equal(counted(function() rotary.angles(r, {}, {}, short:to "meta") end), 1)
    counted(function() rotary.angles(r, { attention_mask = some }, {}, long) end)
    expect_equal(n_reads, by_length and 1 or 0)
  end
end)

test("angles that were first made inside vmap or grad are right outside, and vice versa", function()
  for _, r in ipairs(every_kind()) do
    local x = torch.ones { 2, 5, 8 }
    local expected = angles_of(r, torch.arange(5):unsqueeze(0), 5, "float32"):squeeze(0)
    local function cos_of(row)
      return (rotary.angles(r, {}, {}, row:unsqueeze(0))):squeeze(0) * row:sum():mul(0):add(1)
    end
    local function gradient(row)
      return redco.grad(function(p) return (cos_of(p) * p:sum()):sum() end)(row)
    end
    for _ = 1, 2 do
      assert(redco.vmap(cos_of)(x)[1] == expected)
      expect_close(redco.vmap(gradient)(x)[1][0], torch.full({ 8 }, expected:sum():item()), 1e-5)
      assert(cos_of(x[0]) == expected)
    end
  end
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
  local halves = rotary.turn_halves(x:index_select(-1, interleaved), cos, sin)
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
  for _, model_type in ipairs { "llama", "jetmoe", "mixtral", "gte", "nomic_bert" } do
    expect_error(function()
      redco.models.from_config { model_type = model_type, partial_rotary_factor = 0.5 }
    end, "rotary_spec.lua:", model_type .. ": partial_rotary_factor = 0.5", "only 1")
  end
  expect_error(function()
    redco.models.from_config { model_type = "bamba",
      rope_parameters = { partial_rotary_factor = 1, rope_theta = 10 } }
  end, "bamba: partial_rotary_factor = 1", "only 0.5")
  refused({ rope_type = "longrope", short_factor = { 1 }, long_factor = { 1, 1 } },
    "short_factor has 1 numbers", "2")
end)

test("rope_parameters of DBRX count before the key of its attention", function()
  local function logits(own, whole)
    local model = redco.models.from_config({ model_type = "dbrx", vocab_size = 11, d_model = 8,
      n_heads = 2, n_layers = 1, attn_config = { rope_theta = own }, ffn_config = {
        ffn_hidden_size = 4 }, rope_parameters = whole and { rope_theta = whole },
      initializer_range = 1 }, { generator = torch.Generator(1) })
    return model(model.params, { input_ids = torch.tensor { { 1, 2, 3, 4 } } })
  end
  expect_close(logits(10, 100), logits(100))
  assert(not logits(10):equal(logits(100)))
end)

test("the length of the whole configuration counts before that of rope_parameters", function()
  local function logits(whole, own)
    local model = redco.models.from_config({ model_type = "llama", vocab_size = 11,
      hidden_size = 16, intermediate_size = 12, num_hidden_layers = 1, num_attention_heads = 2,
      initializer_range = 0.5, original_max_position_embeddings = whole,
      rope_parameters = { rope_type = "yarn", factor = 4, rope_theta = 100,
        original_max_position_embeddings = own } }, { generator = redco.torch.Generator(1) })
    return model(model.params, { input_ids = redco.torch.tensor { { 3, 4, 5, 6 } } })
  end
  assert(logits(4, 64):equal(logits(nil, 4)))
  assert(not logits(4, 64):equal(logits(nil, 64)))
end)

testing.finish()
