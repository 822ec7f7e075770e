-- Layers with states: convolutions and scans in chunks against the plain recurrence, and the cache
-- of models that have them.
local redco = require "redco"
local testing = require "testing"
local tiny = require "tiny_models"

local chunks = require "redco.models.states.chunks"
local convolve = require "redco.models.states.causal_convolution"
local delta_rule = require "redco.models.states.delta_rule"
local scan = require "redco.models.states.state_space"
local selective_scan = require "redco.models.states.selective_scan"

local torch = redco.torch
local test, expect_close = testing.test, testing.expect_close

local generator = torch.Generator(1)
local function random(...)
  return torch.randn({ ... }, { generator = generator, dtype = "float64" })
end

local function last(t) return t:unsqueeze(-1) end

-- Runs a step for each token. Returns the outputs [B, T, ...] and the state.
local function plain(length, state, step)
  local outputs = {}
  for t = 0, length - 1 do outputs[t + 1], state = step(t, state) end
  return torch.stack(outputs, 1), state
end

local B, G, R, P, N = 2, 2, 3, 4, 5

local function new_scan(length)
  return { x = random(B, length, G, R, P), dt = random(B, length, G, R):exp(),
    a = -random(G, R):exp(), b = random(B, length, G, N), c = random(B, length, G, N),
    state = random(B, G, R, P, N) }
end

local function plain_scan(g, state)
  return plain(g.x:size(1), state, function(t, h)
    local dt, x = g.dt:select(1, t), g.x:select(1, t)
    local function of_heads(y) return y:select(1, t):unsqueeze(2):unsqueeze(3) end
    h = h * last(last((dt * g.a):exp())) + last(x * last(dt)) * of_heads(g.b)
    return (h * of_heads(g.c)):sum { -1 }, h
  end)
end

local function new_delta(length)
  local k = random(B, length, G, N)
  return { q = random(B, length, G, N), k = k / (k * k):sum({ -1 }, true):sqrt(),
    v = random(B, length, G, R, P), decay = -random(B, length, G, R):exp(),
    beta = random(B, length, G, R):sigmoid(), state = random(B, G, R, N, P) }
end

local function plain_delta(g, state)
  return plain(g.q:size(1), state, function(t, h)
    local function of_heads(y) return last(y:select(1, t):unsqueeze(2)) end
    local k = of_heads(g.k)
    h = h * last(last(g.decay:select(1, t):exp()))
    local rest = (g.v:select(1, t) - (h * k):sum { -2 }) * last(g.beta:select(1, t))
    h = h + k * rest:unsqueeze(-2)
    return (h * of_heads(g.q)):sum { -2 }, h
  end)
end

local function new_selective(length)
  return { x = random(B, length, P), dt = random(B, length, P):exp(), a = -random(P, N):exp(),
    b = random(B, length, N), c = random(B, length, N), state = random(B, P, N) }
end

local function plain_selective(g, state)
  return plain(g.x:size(1), state, function(t, h)
    local dt = last(g.dt:select(1, t))
    h = h * (dt * g.a):exp() + dt * last(g.x:select(1, t)) * g.b:select(1, t):unsqueeze(1)
    return (h * g.c:select(1, t):unsqueeze(1)):sum { -1 }, h
  end)
end

local layers = {
  ["Mamba's scan"] = {
    new = new_selective, plain = plain_selective,
    apply = function(g, state) return selective_scan(g.x, g.dt, g.a, g.b, g.c, state) end,
  },
  ["Mamba-2's scan"] = {
    new = new_scan, plain = plain_scan,
    apply = function(g, state) return scan(g.x, g.dt, g.a, g.b, g.c, state) end,
  },
  ["the gated delta rule"] = {
    new = new_delta, plain = plain_delta,
    apply = function(g, state) return delta_rule(g.q, g.k, g.v, g.decay, g.beta, state) end,
  },
}

for name, layer in pairs(layers) do
  for _, length in ipairs { 1, 2, 63, 64, 65, 150 } do
    test(("%s: %d tokens, with and without a state"):format(name, length), function()
      local given = layer.new(length)
      for _, state in ipairs { given.state, false } do
        local y, new = layer.apply(given, state or nil)
        local expected, expected_new = layer.plain(given, state or torch.zeros_like(given.state))
        expect_close(y, expected, 1e-10, 1e-11)
        expect_close(new, expected_new, 1e-10, 1e-11)
      end
    end)
  end

  test(name .. ": gradients", function()
    local given = layer.new(70)
    local directions = { torch.randn_like((layer.apply(given))), torch.randn_like(given.state) }
    local function gradients_of(apply)
      return select(2, redco.value_and_grad(function(g)
        local y, new = apply(g, g.state)
        return (y * directions[1]):sum() + (new * directions[2]):sum()
      end)(given))
    end
    local expected = gradients_of(layer.plain)
    for key, gradient in pairs(gradients_of(layer.apply)) do
      expect_close(gradient, expected[key], 1e-8, 1e-9)
    end
  end)

  test(name .. ": the same by vmap", function()
    local given = layer.new(70)
    local expected = layer.apply(given, given.state)
    local row = redco.vmap(function(g)
      local one = {}
      for key, t in pairs(g) do one[key] = t:unsqueeze(0) end
      one.a = given.a
      return (layer.apply(one, one.state)):squeeze(0)
    end)
    local rows = {}
    for key, t in pairs(given) do
      if key ~= "a" then rows[key] = t end
    end
    expect_close(row(rows), expected, 1e-12, 1e-12)
  end)
end

test("the gated delta rule: equal keys, which make the largest inverse", function()
  local given = new_delta(128)
  given.k = given.k:narrow(1, 0, 1):expand(given.k.shape)
  given.beta, given.decay = torch.ones_like(given.beta), torch.zeros_like(given.decay)
  local y = layers["the gated delta rule"].apply(
    redco.tree.map(function(t) return t:float() end, given), given.state:float())
  expect_close(y:double(), (plain_delta(given, given.state)), 1e-4, 1e-4)
end)

test("an inverse of any size", function()
  for _, size in ipairs { 1, 2, 3, 7, 16, 33, 64 } do
    local x = random(2, size, size):tril(-1)
    local whole = x + torch.eye(size, { dtype = "float64" })
    expect_close(chunks.inverse(x):matmul(whole) - torch.eye(size, { dtype = "float64" }),
      torch.zeros_like(x), 0, 1e-6 * chunks.inverse(x):abs():max():item())
  end
end)

test("a convolution in parts, by a cache", function()
  local x, weight, bias = random(2, 9, 3), random(3, 1, 4), random(3)
  local whole, cache, parts, at = convolve(x, weight, bias), redco.models.new_cache(), {}, 0
  for _, n in ipairs { 1, 2, 1, 5 } do
    parts[#parts + 1] = convolve(x:narrow(1, at, n), weight, bias, cache, "key")
    at = at + n
  end
  expect_close(torch.cat(parts, 1), whole, 1e-12, 1e-12)
  expect_close(whole:select(1, 0), x:select(1, 0) * weight:select(2, 3):squeeze(1) + bias, 1e-12,
    1e-12)
end)

-- Biases that padding must not bring into a state.
local function with_biases(model)
  torch.no_grad(function()
    for name, leaf in pairs(model.params) do
      if name:find "bias$" then redco.nn.init.normal_(leaf, { generator = generator }) end
    end
  end)
  return model
end

for _, name in ipairs(tiny.with_states) do
  test(name .. ": tokens in parts, by a cache, behind padding", function()
    local model = with_biases(tiny.new(name))
    local ids = torch.randint(3, 32, { 2, 12 }, { generator = generator })
    local mask = torch.ones_like(ids)
    mask:narrow(0, 1, 1):narrow(1, 0, 4):zero_()
    torch.no_grad(function()
      local whole = model(model.params, { input_ids = ids, attention_mask = mask })
      local cache, at = redco.models.new_cache(), 0
      for _, n in ipairs { 5, 1, 1, 3, 2 } do
        local part = model(model.params, { input_ids = ids:narrow(1, at, n),
          attention_mask = mask:narrow(1, 0, at + n) }, { cache = cache })
        local seen = mask:narrow(1, at, n):ne(0)
        expect_close(part[seen], whole:narrow(1, at, n)[seen], 1e-3, 1e-4)
        at = at + n
      end
      local alone = model(model.params, { input_ids = ids:narrow(0, 1, 1):narrow(1, 4, 8) })
      expect_close(whole:narrow(0, 1, 1):narrow(1, 4, 8), alone, 1e-3, 1e-4)
    end)
  end)

  test(name .. ": rows of a batch that come late are the same as alone", function()
    local model = with_biases(tiny.new(name))
    local prompts = {}
    for i = 1, 6 do
      prompts[i] = torch.randint(3, 32, { 2 + i * 5 % 7 }, { generator = generator }):tolist()
    end
    local function run(max_rows)
      local batch = redco.models.new_batch(model, model.params,
        { max_rows = max_rows, max_length = 30 })
      local rows, texts = {}, {}
      for i, prompt in ipairs(prompts) do
        if i > 3 then batch:step() end
        rows[i] = batch:add(prompt, { max_new_tokens = 2 + i * 3 % 8, seed = i })
      end
      batch:run()
      for i, row in ipairs(rows) do texts[i] = table.concat(row.tokens, " ") end
      return table.concat(texts, "; ")
    end
    local alone = run(1)
    testing.expect_equal(run(2), alone)
    testing.expect_equal(run(6), alone)
  end)

  test(name .. ": beams continue the states of their parents", function()
    local model = with_biases(tiny.new(name))
    local ids = torch.randint(3, 32, { 2, 5 }, { generator = generator })
    local best, scores = model.generate(model.params, { input_ids = ids },
      { num_beams = 3, max_new_tokens = 6, eos_token_id = false, length_penalty = 0 })
    local labels = best:clone()
    labels:narrow(1, 0, 5):fill_(-100)
    local each = model.logprobs(model.params, { input_ids = best, labels = labels },
      { shift = true })
    expect_close(each:sum { 1 }, scores, 1e-3, 1e-3)
  end)

  test(name .. ": bfloat16, whole and by a cache", function()
    local model = tiny.new(name)
    local ids = torch.randint(3, 32, { 2, 6 }, { generator = generator })
    torch.no_grad(function()
      local expected = model(model.params, { input_ids = ids })
      local params = redco.tree.map(function(p) return p:to "bfloat16" end, model.params)
      local whole = model(params, { input_ids = ids })
      testing.expect_equal(whole.dtype, "bfloat16")
      local cache = redco.models.new_cache()
      model(params, { input_ids = ids:narrow(1, 0, 4) }, { cache = cache })
      local rest = model(params, { input_ids = ids:narrow(1, 4, 2) }, { cache = cache })
      local scale = expected:abs():max():item()
      -- An expert may be another one, of which few elements show.
      for _, pair in ipairs { { whole, expected }, { rest, whole:narrow(1, 4, 2) } } do
        local apart = (pair[1]:float() - pair[2]:float()):abs()
        assert(apart:median():item() < 0.02 * scale, "far from float32")
      end
    end)
  end)

  test(name .. ": activations computed again have the same gradients", function()
    local model = tiny.new(name)
    local ids = torch.randint(3, 32, { 2, 6 }, { generator = generator })
    local again = redco.models.from_config(model.config, { recompute = "blocks" })
    local function gradients_of(loss_of)
      return select(2, redco.value_and_grad(function(p)
        return (loss_of(p, { input_ids = ids, labels = ids }, { shift = true }))
      end)(model.params))
    end
    local expected = gradients_of(model.loss)
    for key, gradient in pairs(gradients_of(again.loss)) do
      expect_close(gradient, expected[key], 1e-5, 1e-6)
    end
  end)

  test(name .. ": rows of several sequences are refused", function()
    local model = tiny.new(name)
    local ids = torch.zeros({ 1, 4 }, { dtype = "int64" })
    testing.expect_error(function()
      model(model.params, { input_ids = ids, segment_ids = ids })
    end, "segment_ids is not supported")
  end)
end

test("qwen3_5_moe_text: a folder with the experts of a layer in two weights", function()
  local model, folder = tiny.new "qwen3_5_moe_text", testing.folder()
  model.save_pretrained(folder)
  local params, stacks = {}, {}
  for name, leaf in pairs(model.params) do
    local layer, i, part = name:match "^(.*experts)%.(%d)%.(%a+)_proj%.weight$"
    if layer then
      stacks[layer] = stacks[layer] or { gate = {}, up = {}, down = {} }
      stacks[layer][part][i + 1] = leaf
    else
      params[name] = leaf
    end
  end
  for layer, parts in pairs(stacks) do
    params[layer .. ".gate_up_proj"] =
      torch.cat({ torch.stack(parts.gate), torch.stack(parts.up) }, 1)
    params[layer .. ".down_proj"] = torch.stack(parts.down)
  end
  torch.save(params, folder .. "/model.safetensors")
  local ids = torch.randint(3, 32, { 2, 6 }, { generator = generator })
  local expected = model(model.params, { input_ids = ids })
  local stacked = redco.models.from_pretrained(folder)
  expect_close(stacked(stacked.params, { input_ids = ids }), expected, 1e-5, 1e-6)
  stacked.save_pretrained(folder)
  local again = redco.models.from_pretrained(folder)
  expect_close(again(again.params, { input_ids = ids }), expected, 1e-5, 1e-6)
end)

test("mamba2: a configuration with an infinite number, as Python writes it", function()
  local model, folder = tiny.new "mamba2", testing.folder()
  model.save_pretrained(folder)
  local function config() return testing.read(folder .. "/config.json") end
  for _, limit in ipairs { "[0.0, Infinity]", '[0.0, {"__float__": "Infinity"}]' } do
    testing.write(folder .. "/config.json", (config():gsub("^{",
      '{"time_step_limit": ' .. limit .. ', "note": "a \\"quote\\", Infinity",', 1)))
    local read = redco.models.from_pretrained(folder)
    read.save_pretrained(folder)
    assert(config():find "0.0,%s+Infinity%s+]" and config():find('", Infinity"', 1, true))
    model.save_pretrained(folder)
  end
end)

testing.finish()
