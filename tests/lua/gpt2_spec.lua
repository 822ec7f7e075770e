-- The GPT-2 of redco.models against Hugging Face's GPT2LMHeadModel with the same weights.
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_error = testing.test, testing.expect_error
local expect_close, expect_equal = testing.expect_close, testing.expect_equal

local function new(config, generator)
  config.model_type = "gpt2"
  return redco.models.from_config(config, { generator = generator })
end

-- Made by tests/tools/make_nn_cases.py: transformers' model with this configuration.
local stored = torch.load "nn_cases.safetensors"
local function tiny(changes)
  local config = { vocab_size = 19, n_positions = 8, n_embd = 8, n_layer = 2, n_head = 2,
    n_inner = 12,
    embd_pdrop = 0, resid_pdrop = 0, attn_pdrop = 0 }
  for key, value in pairs(changes or {}) do config[key] = value end
  return new(config, torch.Generator(1))
end

local function trained_params()
  local params = {}
  for name, tensor in pairs(stored) do
    local rest = name:match "^gpt2%.p%.(.*)$"
    if rest then params[rest] = tensor:clone():requires_grad_() end
  end
  return params
end

local inputs = { input_ids = stored["gpt2.in.input_ids"], labels = stored["gpt2.in.labels"] }

test("the names and shapes of the parameters are those of the state dict", function()
  local expected, model, n = trained_params(), tiny(), 0
  for name, tensor in pairs(expected) do
    n = n + 1
    assert(model.params[name], "no parameter " .. name)
    expect_equal(table.concat(model.params[name].shape, ","), table.concat(tensor.shape, ","))
    expect_equal(model.params[name].dtype, "float32")
  end
  for name in pairs(model.params) do
    assert(expected[name], name .. " is no parameter of GPT2LMHeadModel")
  end
  expect_equal(n, 2 + 2 * 12 + 2)
end)

test("logits", function()
  local model, params = tiny(), trained_params()
  expect_close(model(params, inputs), stored["gpt2.out.logits"], 1e-5, 1e-5)
  local shorter = { input_ids = inputs.input_ids:narrow(1, 0, 3) }
  expect_close(model(params, shorter), stored["gpt2.out.logits"]:narrow(1, 0, 3), 1e-5, 1e-5)
end)

local function expect_gradients(params, loss)
  loss:backward()
  for name, tensor in pairs(params) do
    local expected = stored["gpt2.g." .. name]
    assert(expected and tensor.grad, "no gradient of " .. name)
    local ok, message = pcall(expect_close, tensor.grad, expected, 1e-4, 1e-6)
    if not ok then error(name .. ": " .. message) end
  end
end

test("the loss and all gradients, by model.loss", function()
  local model, params = tiny(), trained_params()
  local loss, count = model.loss(params, inputs)
  expect_close(loss, stored["gpt2.out.loss"], 1e-5)
  expect_equal(count:item(), inputs.labels:ne(-100):sum():item())
  assert(count:item() < inputs.labels:numel(), "the case has no ignored label")
  expect_gradients(params, loss)
end)

test("the loss and all gradients, by the logits", function()
  local model, params = tiny(), trained_params()
  local loss = redco.nn.cross_entropy(model(params, inputs), inputs.labels)
  expect_close(loss, stored["gpt2.out.loss"], 1e-5)
  expect_gradients(params, loss)
end)

test("hidden_states are what the head sees; loss takes ignore_index and label_smoothing", function()
  local model, params = tiny(), trained_params()
  local hidden = model.hidden_states(params, inputs)
  expect_equal(table.concat(hidden.shape, ","), "2,7,8")
  local logits = hidden:matmul(params["transformer.wte.weight"]:t())
  expect_close(logits, model(params, inputs), 1e-5, 1e-6)
  local options = { ignore_index = inputs.labels[{ 0, 0 }]:item(), label_smoothing = 0.1 }
  local labels = inputs.labels:masked_fill(inputs.labels:eq(-100), 0)
  local loss, count = model.loss(params, { input_ids = inputs.input_ids, labels = labels }, options)
  local expected, expected_count = redco.nn.cross_entropy(logits, labels, options)
  expect_close(loss, expected, 1e-5)
  expect_equal(count:item(), expected_count:item())
  assert(count:item() < labels:numel())
end)

test("no token sees what follows it", function()
  local model, params = tiny(), trained_params()
  local changed = inputs.input_ids:clone()
  changed[{ 0, 4 }] = (changed[{ 0, 4 }]:item() + 1) % 19
  local a, b = model(params, inputs)[0], model(params, { input_ids = changed })[0]
  expect_close(a:narrow(0, 0, 4), b:narrow(0, 0, 4), 1e-6, 1e-6)
  assert((a[4] - b[4]):abs():max():item() > 1e-3)
end)

test("new weights: deviations, zeros, ones; the generator decides", function()
  local config = { vocab_size = 300, n_positions = 40, n_embd = 64, n_layer = 2, n_head = 4 }
  local model = new(config, torch.Generator(5))
  local function deviation(name, expected)
    local std = model.params[name]:std():item()
    assert(math.abs(std / expected - 1) < 0.06, ("%s has %g"):format(name, std))
  end
  deviation("transformer.wte.weight", 0.02)
  deviation("transformer.wpe.weight", 0.02)
  deviation("transformer.h.0.attn.c_attn.weight", 0.02)
  deviation("transformer.h.1.mlp.c_fc.weight", 0.02)
  deviation("transformer.h.0.attn.c_proj.weight", 0.02 / 2)  -- sqrt(2 * n_layer) = 2
  deviation("transformer.h.1.mlp.c_proj.weight", 0.02 / 2)
  for name, tensor in pairs(model.params) do
    if name:find "%.bias$" then
      expect_close(tensor, torch.zeros_like(tensor))
    elseif name:find "ln_" then
      expect_close(tensor, torch.ones_like(tensor))
    end
  end
  expect_equal(model.params["transformer.h.0.mlp.c_fc.weight"]:size(1), 4 * 64)
  local again = new(config, torch.Generator(5))
  local other = new(config, torch.Generator(6))
  for name, tensor in pairs(model.params) do
    assert(torch.equal(tensor, again.params[name]), name)
  end
  assert(not torch.equal(model.params["transformer.wte.weight"],
    other.params["transformer.wte.weight"]))
end)

test("the defaults are GPT-2's, and one model's config is not another's", function()
  local model = tiny()
  expect_equal(model.config.layer_norm_epsilon, 1e-5)
  expect_equal(model.config.initializer_range, 0.02)
  model.config.layer_norm_epsilon = 5
  expect_equal(tiny().config.layer_norm_epsilon, 1e-5)
end)

test("dropout: the same rng gives the same, another another, none without train", function()
  for _, where in ipairs { "embd_pdrop", "resid_pdrop", "attn_pdrop" } do
    local model, params = tiny { [where] = 0.5 }, trained_params()
    local function run(seed)
      return model(params, inputs, { train = true, rng = torch.Generator(seed) })
    end
    assert(torch.equal(run(1), run(1)), where)
    assert(not torch.equal(run(1), run(2)), where)
    local rng = torch.Generator(1)
    local first = model(params, inputs, { train = true, rng = rng })
    assert(not torch.equal(first, model(params, inputs, { train = true, rng = rng })), where)
    expect_close(model(params, inputs), stored["gpt2.out.logits"], 1e-5, 1e-5)
    expect_close(model(params, inputs, { rng = rng }), stored["gpt2.out.logits"], 1e-5, 1e-5)
    local loss = model.loss(params, inputs, { train = true, rng = torch.Generator(1) })
    local expected = redco.nn.cross_entropy(run(1), inputs.labels)
    expect_close(loss, expected, 1e-5)
  end
  local model = tiny { embd_pdrop = 0.1 }
  expect_error(function() model(model.params, inputs, { train = true }) end,
    "gpt2_spec.lua:", "rng")
end)

test("a training run has the same dropout again, and another in each step", function()
  local function losses()
    local model = tiny { embd_pdrop = 0.3, resid_pdrop = 0.3, attn_pdrop = 0.3 }
    local seen = {}
    local deployer = redco.Deployer { seed = 3, verbose = false }
    local trainer = redco.Trainer {
      deployer = deployer, params = model.params,
      collate_fn = function() return inputs end,
      loss_fn = function(rng, state, params, batch, is_training)
        local loss, count = model.loss_fn(rng, state, params, batch, is_training)
        seen[#seen + 1] = loss:item()
        return loss, count
      end,
      optimizer = redco.optim.sgd { learning_rate = 0 },
    }
    trainer:fit { train_examples = { 1, 2, 3, 4 }, per_device_batch_size = 1, n_epochs = 1 }
    return seen
  end
  local a, b = losses(), losses()
  expect_equal(#a, 4)
  for i = 1, 4 do
    expect_equal(a[i], b[i])
    for j = 1, i - 1 do assert(a[i] ~= a[j], "two steps have the same dropout") end
  end
end)

test("bfloat16 parameters", function()
  local model, params = tiny(), trained_params()
  params = redco.tree.map(function(p) return p:detach():bfloat16() end, params)
  local logits = model(params, inputs)
  expect_equal(logits.dtype, "bfloat16")
  expect_close(logits, stored["gpt2.out.logits"]:bfloat16(), 0.1, 0.1)
end)

test("what is wrong is said by name and line", function()
  local model = tiny()
  local long = { input_ids = torch.zeros({ 1, 9 }, { dtype = "int64" }),
    labels = torch.zeros({ 1, 9 }, { dtype = "int64" }) }
  expect_error(function() model(model.params, long) end, "gpt2_spec.lua:", "9 tokens",
    "n_positions, 8")
  expect_error(function() model.loss(model.params, long) end, "gpt2_spec.lua:", "9 tokens")
  expect_error(function() new { n_embed = 8 } end, "gpt2_spec.lua:",
    "unknown key 'n_embed'", "did you mean 'n_embd'?")
  expect_error(function() new { n_embd = 10, n_head = 3 } end, "gpt2_spec.lua:",
    "n_embd (10)", "n_head (3)")
  expect_error(function() model(model.params, inputs, { training = true }) end, "gpt2_spec.lua:",
    "unknown argument 'training'", "'train'")
  expect_error(function() model.loss(model.params, inputs, { training = true }) end,
    "gpt2_spec.lua:", "unknown argument 'training'")
  local ids = { input_ids = torch.tensor { { 3, 19 } } }
  expect_error(function() model(model.params, ids) end, "gpt2_spec.lua:")
end)

test("scores are divided by the number of the layer, or not by the size of heads", function()
  local function made(changes)
    local config = { vocab_size = 11, n_positions = 8, n_embd = 8, n_layer = 3, n_head = 2,
      initializer_range = 0.5 }
    for key, value in pairs(changes or {}) do config[key] = value end
    return new(config, torch.Generator(1))
  end
  local batch = { input_ids = torch.tensor { { 3, 4, 5, 6 } } }
  local function expect_factors(changes, factor)
    local given, plain = made(changes), made()
    torch.no_grad(function()
      for i = 0, 2 do
        for _, part in ipairs { "weight", "bias" } do
          local leaf = plain.params[("transformer.h.%d.attn.c_attn.%s"):format(i, part)]
          leaf:narrow(-1, 0, 8):mul_(factor(i))
        end
      end
    end)
    expect_close(given(given.params, batch), plain(plain.params, batch), 1e-5, 1e-5)
  end
  expect_factors({ scale_attn_by_inverse_layer_idx = true }, function(i) return 1 / (i + 1) end)
  expect_factors({ scale_attn_weights = false }, function() return 2 end)
end)

testing.finish()
