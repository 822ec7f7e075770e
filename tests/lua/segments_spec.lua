-- Attention within the sequences of a row and within windows, without a mask and with one.
local masks = require "redco.models.layers.masks"
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch, nn = redco.torch, redco.nn
local test, expect_close = testing.test, testing.expect_close
local expect_equal, expect_error = testing.expect_equal, testing.expect_error

local generator = torch.Generator(1)
local function random(...)
  return torch.randn({ ... }, { generator = generator, dtype = "float64" })
end

local ids = torch.tensor { { 1, 1, 1, 4, 4, 2, 2, 2, 0, 0 }, { 0, 3, 3, 3, 3, 3, 3, 3, 3, 0 } }

-- Which keys each query of `ids` sees, token by token.
local function seen_by_token(window)
  local all = {}
  for row, list in ipairs(ids:tolist()) do
    all[row] = {}
    for i = 1, #list do
      all[row][i] = {}
      local together = true
      for j = i, 1, -1 do
        together = together and list[j] == list[i]
        all[row][i][j] = together and i - j < window
      end
      for j = i + 1, #list do all[row][i][j] = false end
    end
  end
  return torch.tensor(all):unsqueeze(1)
end

test("attention with segment_ids and a window is that with a mask", function()
  local q, k, v = random(2, 4, 10, 8), random(2, 2, 10, 8), random(2, 2, 10, 8)
  local bias = random(10, 10)
  for _, window in ipairs { 3, 100 } do
    local seen = seen_by_token(window)
    for _, more in ipairs { {}, { softcap = 2 }, { sinks = random(4) }, { scale = 0.3 },
      { mask = bias }, { mask = bias:gt(-1) }, { dropout = 0.5 } } do
      local given = { causal = true, segment_ids = ids, window = window, enable_gqa = true }
      local expected = { mask = seen, enable_gqa = true }
      for name, value in pairs(more) do given[name], expected[name] = value, value end
      if more.mask then
        local both = torch.zeros_like(seen, { dtype = "float64" })
          :masked_fill(seen:logical_not(), -math.huge)
        expected.mask = more.mask.dtype == "bool" and more.mask:logical_and(seen)
          or both + more.mask
      end
      expect_close(nn.attention(q, k, v, given):nan_to_num(),
        nn.attention(q, k, v, expected):nan_to_num(), 1e-10, 1e-10)
    end
  end
  local function dropped(options)
    options.dropout, options.train, options.rng = 0.5, true, redco.Rng(3)
    options.enable_gqa = true
    return nn.attention(q, k, v, options)
  end
  expect_close(dropped { causal = true, segment_ids = ids }, dropped { mask = seen_by_token(100) },
    1e-10, 1e-10)
end)

test("vmap, grad and a second gradient", function()
  local q = random(3, 2, 4, 10, 8)
  local function of(options)
    return function(x) return nn.attention(x, x * 0.5, x:sin(), options):pow(2):sum() end
  end
  local fused, masked = of { causal = true, segment_ids = ids, window = 4 },
    of { mask = seen_by_token(4) }
  expect_close(redco.vmap(redco.grad(fused))(q), redco.vmap(redco.grad(masked))(q), 1e-10, 1e-10)
  local function twice(f)
    return redco.grad(function(x) return redco.grad(f)(x):sin():sum() end)(q[0])
  end
  expect_close(twice(fused), twice(masked), 1e-9, 1e-9)
end)

test("what is wrong with segment_ids and windows", function()
  local q = random(2, 4, 10, 8)
  local function refused(options, ...)
    expect_error(function() nn.attention(q, q, q, options) end, ...)
  end
  refused({ segment_ids = ids }, "segment_ids", "causal = true is missing")
  refused({ window = 3 }, "window", "causal = true is missing")
  for _, window in ipairs { 0, -1, 2.5, "3" } do
    refused({ causal = true, window = window }, "window: expected an integer of at least 1")
  end
  refused({ causal = true, segment_ids = ids:double() }, "expected integers, got Double")
  refused({ causal = true, segment_ids = ids[0] }, "segment_ids: expected [2, 10]", "got [10]")
  refused({ causal = true, softcap = 2, segment_ids = ids[0] }, "expected [2, 10]", "got [10]")
  refused({ causal = true, segment_ids = ids:to "meta" }, "segment_ids are on meta, q is on cpu")
  local apart = ids:clone()
  apart[{ 0, 7 }] = 1
  refused({ causal = true, segment_ids = apart },
    "row 0 has the number 1 in two places, the second from 7")
  expect_error(function()
    nn.attention(q, q:narrow(2, 0, 5), q:narrow(2, 0, 5), { causal = true, window = 2 })
  end, "q and k [batch, heads, length, size] of one length")
  expect_error(function()
    nn.attention(q, q:narrow(1, 0, 2), q:narrow(1, 0, 2), { causal = true, window = 2 })
  end, "q has 4 heads and k has 2", "enable_gqa")
end)

test("plain attention of models gets no mask, other attention one", function()
  local x = torch.zeros { 2, 10, 4 }
  local inputs = { segment_ids = ids, position_ids = ids }
  local function made(given, more)
    for name, value in pairs(more or {}) do given[name] = value end
    return masks.by_window(given, { train = true }, x, { plain_dropout = 0 })
  end
  local plain = made(inputs)(3)
  assert(plain.causal and not plain.mask and plain.segment_ids == ids)
  expect_equal(plain.window, 3)
  assert(made({})(3).window == 3 and not made({})(3).mask)
  assert(made({})(10).causal and not made({})(10).window)
  assert(made({}, { attention_mask = ids:ne(0):long() })(3).mask)
  assert(made({})(3, 2).mask)
  assert(masks.by_window(inputs, { train = true }, x, { plain_dropout = 0.1 })().mask)
  assert(not masks.by_window(inputs, {}, x, { plain_dropout = 0.1 })().mask)
  assert(masks.by_window(inputs, {}, x, {})().mask)
end)

local llama = { hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 50, pad_token_id = 0,
  max_position_embeddings = 32, head_dim = 8, initializer_range = 0.3 }
local windowed = { "sliding_attention", "full_attention" }
local configs = {
  { "llama" }, { "mistral", { sliding_window = 3 } },
  { "qwen2", { use_sliding_window = true, sliding_window = 3, max_window_layers = 1 } },
  { "gemma2", { sliding_window = 3 } },
  { "gemma3_text", { sliding_window = 3, layer_types = windowed } },
  { "gemma4_text", { sliding_window = 3, layer_types = windowed, global_head_dim = 8,
    num_kv_shared_layers = 0, hidden_size_per_layer_input = 4, vocab_size_per_layer_input = 50 } },
  { "deepseek_v3", { num_key_value_heads = 4, q_lora_rank = 12, kv_lora_rank = 8,
    qk_rope_head_dim = 4, qk_nope_head_dim = 6, v_head_dim = 8, n_routed_experts = 6, n_group = 3,
    topk_group = 2, num_experts_per_tok = 2, moe_intermediate_size = 16,
    first_k_dense_replace = 1 } },
  { "gpt_neo", { hidden_size = 16, num_layers = 2, num_heads = 2, window_size = 3, vocab_size = 50,
    attention_types = { { { "global", "local" }, 1 } }, max_position_embeddings = 32 }, true },
  { "gpt_neox", { hidden_size = 16, num_attention_heads = 2, intermediate_size = 24,
    num_hidden_layers = 2, vocab_size = 50 }, true },
  { "falcon", { hidden_size = 16, num_attention_heads = 2, num_hidden_layers = 2, vocab_size = 50 },
    true },
}

for _, row in ipairs(configs) do
  test("loss and gradients are those with masks: " .. row[1], function()
    local config = { model_type = row[1] }
    for _, part in ipairs { row[3] and {} or llama, row[2] or {} } do
      for key, value in pairs(part) do config[key] = value end
    end
    local model = redco.models.from_config(config, { generator = torch.Generator(1),
      dtype = "float64" })
    local tokens = torch.randint(1, 50, { 2, 10 }, { generator = torch.Generator(2) })
    local places = torch.tensor { { 0, 1, 2, 0, 1, 0, 1, 2, 0, 1 },
      { 0, 0, 1, 2, 3, 4, 5, 6, 7, 0 } }
    local labels = tokens:masked_fill(ids:eq(0), -100)
    for _, more in ipairs { {}, { segment_ids = ids, position_ids = places } } do
      local batch = { input_ids = tokens, labels = labels, segment_ids = more.segment_ids,
        position_ids = more.position_ids }
      local function computed()
        return redco.value_and_grad(function(params)
          return (model.loss(params, batch, { train = true }))
        end)(model.params)
      end
      local loss, gradients = computed()
      local has = native.has_segment_attention
      native.has_segment_attention = function() return false end
      local ok, expected, expected_gradients = pcall(computed)
      native.has_segment_attention = has
      assert(ok, expected)
      expect_close(loss, expected, 1e-10, 1e-10)
      for name, gradient in pairs(expected_gradients) do
        expect_close(gradients[name], gradient, 1e-9, 1e-9)
      end
    end
  end)
end

test("a model says which sequences have one number", function()
  local model = redco.models.from_config({ model_type = "llama", hidden_size = 16,
    intermediate_size = 24, num_hidden_layers = 1, num_attention_heads = 2, vocab_size = 50 })
  local numbers = torch.tensor { { 1, 1, 2, 2, 1 } }
  expect_error(function()
    model(model.params, { input_ids = numbers, segment_ids = numbers, position_ids = numbers })
  end, "row 0 has the number 1 in two places, the second from 4", "its own number")
end)

testing.finish()
