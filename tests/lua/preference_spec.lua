-- redco.preference: losses and gradients as trl has them, metrics, log-probabilities of sequences,
-- reference models, batches of pairs, micro-batches, and bad input.
local redco = require "redco"
local regression = require "regression"
local testing = require "testing"

local lora, nn, preference, torch = redco.lora, redco.nn, redco.preference, redco.torch
local test, expect_close, expect_equal = testing.test, testing.expect_close, testing.expect_equal
local expect_error = testing.expect_error

local source = os.getenv "REDCO_SOURCE" or "../.."

local function doubles(values) return torch.tensor(values, { dtype = "float64" }) end

local function with(options, more)
  local all = {}
  for name, value in pairs(options) do all[name] = value end
  for name, value in pairs(more) do all[name] = value end
  return all
end

-- ---- losses ----

local logps = doubles { { -4, -6.5 }, { -3, -2.2 }, { -7.5, -7 } }
local ref_logps = doubles { { -5, -6 }, { -2.5, -3 }, { -8, -6 } }
local counts = torch.tensor { { 3, 5 }, { 2, 2 }, { 6, 4 } }

-- A function, its options, the loss and its gradient by logps, of trl 0.24.
local recorded = {
  { "dpo", {}, 0.6673908,
    { { -0.0154190, 0.0154190 }, { -0.0177485, 0.0177485 }, { -0.0154190, 0.0154190 } } },
  { "dpo", { beta = 0.5, label_smoothing = 0.2 }, 0.6712658,
    { { -0.0201369, 0.0201369 }, { -0.0761684, 0.0761684 }, { -0.0201369, 0.0201369 } } },
  { "dpo", { loss_type = "hinge", beta = 0.4 }, 0.7733333,
    { { -0.1333333, 0.1333333 }, { -0.1333333, 0.1333333 }, { -0.1333333, 0.1333333 } } },
  { "dpo", { loss_type = "ipo" }, 24.8515741,
    { { -1.0148148, 0.6088889 }, { -1.8833333, 1.8833333 }, { -0.5185185, 0.7777778 } } },
  { "dpo", { loss_type = "robust", label_smoothing = 0.1 }, 0.6603074,
    { { -0.0195857, 0.0195857 }, { -0.0219151, 0.0219151 }, { -0.0195857, 0.0195857 } } },
  { "dpo", { loss_type = "sigmoid_norm", beta = 2 }, 0.7687607,
    { { -0.0657663, 0.0394598 }, { -0.2619450, 0.2619450 }, { -0.0376937, 0.0565406 } } },
  { "dpo", { loss_type = "exo_pair" }, 2.6661753,
    { { -0.0559908, 0.0559908 }, { -0.0583926, 0.0583926 }, { -0.0559908, 0.0559908 } } },
  { "dpo", { loss_type = "nca_pair" }, 1.3734585,
    { { -0.0070844, 0.0081250 }, { -0.0089582, 0.0086665 }, { -0.0077085, 0.0079170 } } },
  { "dpo", { loss_type = "sppo_hard" }, 45.4633333,
    { { -2.6666667, 3.0000000 }, { -3.6666667, 3.8666667 }, { -3.0000000, 2.6666667 } } },
  { "dpo", { loss_type = "apo_zero" }, 0.9858445,
    { { -0.0083125, 0.0083281 }, { -0.0083281, 0.0083200 }, { -0.0083281, 0.0083125 } } },
  { "dpo", { loss_type = "apo_down" }, 0.9941913,
    { { 0.0000259, 0.0082866 }, { 0.0000299, 0.0082982 }, { 0.0000415, 0.0082866 } } },
  { "dpo", { rpo_alpha = 0.5 }, 1.3264817,
    { { -0.0608736, 0.0154190 }, { -0.0632030, 0.0177485 }, { -0.0608736, 0.0154190 } } },
  { "cpo", {}, 1.9942972,
    { { -0.1055032, 0.0145941 }, { -0.1082421, 0.0173330 }, { -0.1079923, 0.0170832 } } },
  { "cpo", { loss_type = "hinge", cpo_alpha = 0 }, 0.9600000,
    { { -0.0333333, 0.0333333 }, { -0.0333333, 0.0333333 }, { -0.0333333, 0.0333333 } } },
  { "cpo", { loss_type = "ipo", cpo_alpha = 0.5 }, 25.5739057,
    { { -1.1639731, 0.6711111 }, { -1.8454545, 1.8000000 }, { -0.5454545, 0.7500000 } } },
  { "cpo", { loss_type = "simpo", cpo_alpha = 0, beta = 2, simpo_gamma = 0.9 }, 1.2670618,
    { { -0.1609899, 0.0965939 }, { -0.2818449, 0.2818449 }, { -0.0527801, 0.0791701 } } },
  { "orpo", { beta = 0.3 }, 1.5326131,
    { { -0.1140569, 0.0140593 }, { -0.1317568, 0.0475670 }, { -0.0989385, 0.0104008 } } },
  { "kto", {}, 0.4981188,
    { { -0.0083211, 0 }, { 0.0082272, 0 }, { -0.0083000, 0 } } },
  { "kto", { beta = 0.5, desirable_weight = 1.3, undesirable_weight = 0.6 }, 0.5894754,
    { { -0.0522245, 0 }, { 0.0184232, 0 }, { -0.0490785, 0 } } },
  { "kto", { loss_type = "apo_zero_unpaired" }, 0.4833420,
    { { -0.0083125, 0 }, { 0.0083281, 0 }, { -0.0083281, 0 } } },
}

-- Calls a loss with what it needs of these tensors, and any other options.
local function call(name, options, x)
  local given = { logps = x or logps, counts = counts }
  if name == "dpo" then given.ref_logps = ref_logps end
  if name == "kto" then  -- the second column is of other prompts
    given = {
      logps = given.logps:select(1, 0), ref_logps = ref_logps:select(1, 0),
      desirable = torch.tensor { true, false, true },
      kl_logps = given.logps:select(1, 1) + 2, ref_kl_logps = ref_logps:select(1, 1),
    }
  end
  return preference[name](with(given, options))
end

test("losses and their gradients are those of trl", function()
  for _, case in ipairs(recorded) do
    local name, options, expected, gradient = unpack(case)
    local x = logps:clone():requires_grad_()
    local loss, n = call(name, options, x)
    expect_equal(n, 3)
    expect_close(loss, doubles(expected), 0, 1e-7)
    expect_close(torch.autograd.grad(loss, { x })[1], doubles(gradient), 0, 1e-7)
  end
end)

test("metrics of pairs", function()
  local _, _, metrics = call("dpo", { beta = 0.5, rpo_alpha = 1 })
  local expected = {
    ["rewards/chosen"] = 1 / 6, ["rewards/rejected"] = -0.35 / 3, ["rewards/accuracies"] = 2 / 3,
    ["rewards/margins"] = 0.85 / 3, ["logps/chosen"] = -14.5 / 3, ["logps/rejected"] = -15.7 / 3,
    nll_loss = 14.5 / 11,
  }
  for name, value in pairs(metrics) do
    expect_close(value, doubles(expected[name]), 1e-12)
    assert(not value.requires_grad)
    expected[name] = nil
  end
  assert(next(expected) == nil)
  _, _, metrics = call("dpo", { loss_type = "ipo" })
  expect_close(metrics["logps/chosen"], doubles((-4 / 3 - 1.5 - 1.25) / 3), 1e-12)
  _, _, metrics = call("cpo", { cpo_alpha = 0 })
  expect_equal(metrics.nll_loss, 0)
  _, _, metrics = call("orpo", {})
  assert(metrics.log_odds_ratio:item() < 0 and metrics.log_odds_chosen:item() ~= 0)
  _, _, metrics = call("orpo", { nll_loss = torch.tensor(7) })
  expect_equal(metrics.nll_loss:item(), 7)
end)

test("metrics of kto are a sum and a count of each kind", function()
  local _, _, metrics = call("kto", { beta = 0.5 })
  expect_close(metrics["rewards/chosen"], doubles { 0.75, 2 })
  expect_close(metrics["rewards/rejected"], doubles { -0.25, 1 })
  expect_close(metrics["logps/chosen"], doubles { -11.5, 2 })
  expect_close(metrics.kl, doubles((1.5 + 2.8 + 1) / 3), 1e-12)
  _, _, metrics = call("kto", { loss_type = "apo_zero_unpaired" })
  expect_equal(metrics.kl:item(), 0)
end)

test("reward: Bradley-Terry with margins, centred", function()
  local rewards = doubles({ { 1, 0.5 }, { -0.25, 2 } }):requires_grad_()
  local function expected(margin, coefficient)
    local a, b = 0.5 - margin, -2.25 - margin
    return (math.log(1 + math.exp(-a)) + math.log(1 + math.exp(-b))) / 2
      + coefficient * (1.5 ^ 2 + 1.75 ^ 2) / 2
  end
  local loss, n, metrics = preference.reward { rewards = rewards }
  expect_close(loss, doubles(expected(0, 0)), 1e-12)
  expect_equal(n, 2)
  for name, value in pairs { accuracy = 0.5, margin = -0.875, min_reward = -0.25,
    mean_reward = 0.8125, max_reward = 2 } do
    expect_close(metrics[name], doubles(value), 1e-12)
  end
  loss = preference.reward { rewards = rewards, margin = doubles { 1, 1 },
    center_rewards_coefficient = 0.25 }
  expect_close(loss, doubles(expected(1, 0.25)), 1e-12)
end)

-- beta, temperature, the loss and its gradient by the logits, of trl 0.24.
local divergences = {
  { 0.5, 1, 0.1706049,
    { { -0.0347236, -0.0115941, 0.0463177 }, { 0.0645224, -0.0371595, -0.0273629 }, { 0, 0, 0 } } },
  { 0, 1, 0.7074695,
    { { -0.1655950, -0.0736056, 0.2392006 }, { 0.3123336, -0.1676331, -0.1447006 }, { 0, 0, 0 } } },
  { 1, 2, 0.2174815,
    { { -0.0387880, -0.0265473, 0.0653352 }, { 0.0964382, -0.0507033, -0.0457349 }, { 0, 0, 0 } } },
  { 0.3, 1.5, 0.0713463,
    { { -0.0140454, -0.0085373, 0.0225827 }, { 0.0300786, -0.0157562, -0.0143225 }, { 0, 0, 0 } } },
}

test("distillation: the divergence and its gradient are those of trl", function()
  local teacher = doubles({ { 1, 0, 0.5 }, { -1, 0.5, 0.25 }, { 1, 2, 3 } }):requires_grad_()
  for _, case in ipairs(divergences) do
    local beta, temperature, expected, gradient = unpack(case)
    local x = doubles({ { 0.5, -1, 2 }, { 1.5, 0, -0.5 }, { 9, 9, 9 } }):requires_grad_()
    local loss, count = preference.distillation { logits = x, teacher_logits = teacher,
      labels = torch.tensor { 1, 2, -100 }, beta = beta, temperature = temperature }
    expect_close(loss, doubles(expected), 0, 1e-7)
    expect_equal(count:item(), 2)
    loss:backward()
    expect_close(x.grad, doubles(gradient), 0, 1e-7)
    assert(teacher.grad == nil)
  end
  local loss, count = preference.distillation { logits = teacher, teacher_logits = teacher,
    labels = torch.full({ 3 }, -100) }
  expect_equal(loss:item(), 0)
  expect_equal(count:item(), 0)
end)

-- ---- log-probabilities and reference models ----

local model = redco.models.from_pretrained(source .. "/tests/cases/llama", { dtype = "float64" })
local examples = {
  { prompt = { 5, 6, 7 }, chosen = { 8, 9 }, rejected = { 10, 11, 12 } },
  { prompt = { 20 }, chosen = { 21, 22, 23, 24 }, rejected = { 25 } },
  { prompt = torch.tensor { 30, 31 }, chosen = torch.tensor { 32 }, rejected = { 33, 34 } },
  { prompt = { 40, 41, 42, 43 }, chosen = { 44, 45, 46 }, rejected = { 47, 48 } },
}

-- The same from the logits of one sequence alone.
local function logprob_of(params, prompt, completion)
  local ids = torch.cat { torch.tensor(prompt), torch.tensor(completion) }
  local all = model(params, { input_ids = ids:unsqueeze(0) })[0]:log_softmax(-1)
  local sum = 0
  for i = 1, #completion do
    sum = sum + all[#prompt + i - 2][completion[i]]:item()
  end
  return sum
end

test("sequence_logprobs of pairs, which are padded, equal those of each sequence alone", function()
  local sums, n = preference.sequence_logprobs(model, model.params, preference.collate(examples))
  for i, example in ipairs { examples[1], examples[2] } do
    for at, name in ipairs { "chosen", "rejected" } do
      local expected = logprob_of(model.params, example.prompt, example[name])
      expect_close(sums[i - 1][at - 1], doubles(expected), 1e-9)
      expect_equal(n[i - 1][at - 1]:item(), #example[name])
    end
  end
end)

test("model.logprobs: labels in place and shifted, and the mean is model.loss", function()
  local ids = torch.tensor { { 3, 4, 5, 6, 7 }, { 8, 9, 10, 11, 12 } }
  local inputs = { input_ids = ids, labels = ids:clone() }
  inputs.labels[{ 1, { 0, 3 } }] = -100
  local each, labels = model.logprobs(model.params, inputs, { shift = true })
  local loss, count = model.loss(model.params, inputs, { shift = true })
  expect_close(-each:sum() / count, loss, 1e-12)
  expect_equal(labels:ne(-100):sum():item(), count:item())
  expect_equal(each[labels:eq(-100)]:abs():sum():item(), 0)
  local inner = { input_ids = ids:narrow(1, 0, 4), labels = inputs.labels:narrow(1, 1, 4) }
  expect_close((model.logprobs(model.params, inner)), each:narrow(1, 0, 4), 1e-9)
end)

test("model.logprobs: adapters on the head, encoder-decoders, models without tokens", function()
  local params = lora.add(model.params, { target_modules = { "lm_head" }, r = 2 })
  local ids = torch.tensor { { 3, 4, 5 } }
  local inputs = { input_ids = ids, labels = ids + 1 }
  params["lm_head.lora_B.weight"]:data():narrow(0, 0, 5):fill_(0.3)
  local loss = model.loss(params, inputs)
  expect_close(-model.logprobs(params, inputs):mean(), loss, 1e-9)
  assert((loss - model.loss(model.params, inputs)):abs():item() > 1e-6)
  local t5 = redco.models.from_pretrained(source .. "/tests/cases/t5_relu_tied")
  expect_close(-t5.logprobs(t5.params, inputs):mean(), t5.loss(t5.params, inputs), 1e-5)
  local classifier = redco.models.from_pretrained(source .. "/tests/cases/llama",
    { task = "sequence_classification" })
  expect_error(function() classifier.logprobs(classifier.params, inputs) end,
    "model.logprobs: a Llama", "gives tokens no probabilities")
  expect_error(function() model.logprobs(model.params, { input_ids = inputs.input_ids }) end,
    "inputs.labels is missing")
end)

test("model.logprobs: many logits of a capped head, and of one with an adapter", function()
  local ids = torch.randint(0, 70000, { 2, 130 }, { generator = torch.Generator(2) })
  local inputs = { input_ids = ids, labels = torch.roll(ids, { 1 }, { 1 }) }
  inputs.labels[{ 1, { 0, 90 } }] = -100
  for _, kind in ipairs { "gemma2", "llama" } do
    local large = redco.models.from_config({ model_type = kind, vocab_size = 70000,
      hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
      num_key_value_heads = 1, head_dim = 4, max_position_embeddings = 256,
      initializer_range = 0.5 }, { generator = torch.Generator(1) })
    local params = kind == "gemma2" and large.params
      or lora.add(large.params, { target_modules = { "lm_head" }, r = 2 })
    local leaves = {}
    for name, value in pairs(params) do
      if torch.is_tensor(value) then
        params[name] = value:data():clone():requires_grad_()
        leaves[#leaves + 1] = params[name]
      end
    end
    local each, _, entropies = large.logprobs(params, inputs, { temperature = 0.7, entropy = true })
    local whole = (large(params, inputs) / 0.7):log_softmax(-1)
    local wanted = whole:gather(-1, inputs.labels:clamp(0):unsqueeze(-1)):squeeze(-1)
    wanted = wanted:masked_fill(inputs.labels:eq(-100), 0)
    expect_close(each, wanted, 1e-5, 1e-5)
    expect_close(entropies, -(whole:exp() * whole):sum(-1), 1e-4, 1e-4)
    local found = torch.autograd.grad(each:sum(), leaves)
    local expected = torch.autograd.grad(wanted:sum(), leaves)
    for i, grad in ipairs(found) do
      expect_close(grad, expected[i], 1e-4, 1e-4 * expected[i]:abs():max():item())
    end
  end
end)

test("logprobs and linear_logprobs are the terms of cross_entropy", function()
  local x, weight = torch.randn({ 2, 300, 4 }), torch.randn { 9000, 4 }
  local bias, labels = torch.randn { 9000 }, torch.randint(0, 9000, { 2, 300 })
  labels[{ 0, { 0, 7 } }] = -100
  local function gradients(f, ...)
    local leaves = {}
    for i, tensor in ipairs { ... } do leaves[i] = tensor:clone():requires_grad_() end
    local each = f(unpack(leaves))
    return each, torch.autograd.grad((each * torch.arange(600):view { 2, 300 }):sum(), leaves)
  end
  local fused, of_fused = gradients(function(a, b, c)
    return nn.linear_logprobs(a, b, labels, { bias = c })
  end, x, weight, bias)
  local plain, of_plain = gradients(function(a, b, c)
    return nn.logprobs(torch.linear(a, b, c), labels)
  end, x, weight, bias)
  expect_close(fused, plain, 1e-5, 1e-5)
  for i = 1, 3 do
    expect_close(of_fused[i], of_plain[i], 1e-4, 1e-4 * of_plain[i]:abs():max():item())
  end
  local mean, count = nn.cross_entropy(torch.linear(x, weight, bias), labels)
  expect_close(-fused:sum() / count, mean, 1e-5)
  expect_error(function() nn.linear_logprobs(x, weight, labels:narrow(1, 0, 5)) end,
    "preference_spec.lua:", "linear_logprobs", "labels of shape [2, 300]")
end)

test("lora.base is the model before its adapters were trained", function()
  local params = lora.add(model.params, { target_modules = { "q_proj", "v_proj" }, r = 2 })
  for name, tensor in pairs(params) do
    if name:find "lora_B" then tensor:data():fill_(0.3) end
  end
  local batch = preference.collate(examples)
  local base = preference.sequence_logprobs(model, lora.base(params), batch)
  expect_close(base, (preference.sequence_logprobs(model, model.params, batch)), 0, 0)
  assert((preference.sequence_logprobs(model, params, batch) - base):abs():min():item() > 1e-6)
  expect_error(function() lora.base(model.params) end, "lora.base: there is no adapter in the tree")
  expect_error(function() lora.base(model) end, "model.params")
  expect_error(function()
    lora.base(lora.add(model.params, { target_modules = { "q_proj" },
      modules_to_save = { "lm_head" } }))
  end, "lora.base: lm_head.weight is trained whole")
end)

-- ---- batches ----

test("collate: next tokens of completions are labels, prompts and padding are not", function()
  local batch = preference.collate({ examples[1] }, { pad_token_id = 2, pad_to_multiple_of = 4 })
  local function expect_list(tensor, expected)
    expect_equal(table.concat(tensor:flatten():tolist(), " "), expected)
  end
  expect_list(batch.input_ids, "5 6 7 8 9 2 2 2 5 6 7 10 11 12 2 2")
  expect_list(batch.labels, "-100 -100 8 9 -100 -100 -100 -100 -100 -100 10 11 12 -100 -100 -100")
  expect_list(batch.attention_mask, "1 1 1 1 1 0 0 0 1 1 1 1 1 1 0 0")
  expect_equal(table.concat(batch.input_ids.shape, " "), "1 2 8")
  batch = preference.collate({ examples[1] }, { max_length = 4 })
  expect_list(batch.input_ids, "6 7 8 9 7 10 11 12")
  expect_list(batch.labels, "-100 8 9 -100 10 11 12 -100")
  batch = preference.collate({ examples[1] }, { max_length = 4, truncation_mode = "keep_start" })
  expect_list(batch.input_ids, "5 6 7 8 5 6 7 10")
  expect_list(batch.labels, "-100 -100 8 -100 -100 -100 10 -100")
end)

test("collate: numbers of the examples, and sequences of kto", function()
  local batch = preference.collate {
    with(examples[1], { ref_logps = torch.tensor { -1.5, -2 }, margin = 0.5 }),
    with(examples[2], { ref_logps = { -3, -4 }, margin = 0 }),
  }
  expect_close(batch.ref_logps, torch.tensor { { -1.5, -2 }, { -3, -4 } })
  expect_close(batch.margin, torch.tensor { 0.5, 0 })
  batch = preference.collate {
    { prompt = { 3 }, completion = { 4, 5 }, kl_completion = { 6 }, desirable = true },
    { prompt = { 3 }, completion = { 6 }, kl_completion = { 4, 5 }, desirable = false },
  }
  expect_equal(table.concat(batch.input_ids.shape, " "), "2 2 3")
  expect_equal(batch.desirable.dtype, "bool")
  batch = preference.collate { { prompt = { 3 }, completion = { 4, 5 }, desirable = true } }
  expect_equal(table.concat(batch.input_ids.shape, " "), "1 1 3")
end)

-- ---- training ----

-- Trains one step on all examples in micro-batches of this size; returns its metrics.
local function metrics_of_step(trainer, list, size)
  local metrics
  trainer:fit { train_examples = list, per_device_batch_size = size, n_epochs = 1,
    global_batch_size = math.ceil(#list / size) * size,
    on_step = function(event) metrics = event.metrics end }
  return metrics
end

local function step(loss_of, list, size)
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = model.params,
    collate_fn = function(rows) return preference.collate(rows) end,
    loss_fn = function(_, _, params, batch)
      return loss_of(batch, preference.sequence_logprobs(model, params, batch))
    end,
    optimizer = redco.optim.sgd { learning_rate = 1e-3 }, compute_dtype = "float64",
  }
  local metrics = metrics_of_step(trainer, list, size)
  return trainer.params, metrics
end

local reference = torch.no_grad(function()
  local other = redco.tree.map(function(p) return p * 1.1 end, model.params)
  return (preference.sequence_logprobs(model, other, preference.collate(examples)))
end)

local pairs_with_reference, single = {}, {}
for i, example in ipairs(examples) do
  pairs_with_reference[i] = with(example, { ref_logps = reference[i - 1] })
  single[i] = { prompt = example.prompt, completion = example.chosen, desirable = i ~= 2,
    ref_logps = reference[i - 1][0] }
end

local function expect_same_steps(loss_of, list)
  local params, metrics = step(loss_of, list, 4)
  for size = 1, 2 do
    local others, of_others = step(loss_of, list, size)
    for name, value in pairs(metrics) do
      if name ~= "lr" then expect_close(doubles(of_others[name]), doubles(value), 1e-9) end
    end
    for name, param in pairs(params) do expect_close(others[name], param, 0, 1e-12) end
  end
  return metrics
end

test("a step of dpo does not depend on the micro-batches", function()
  local metrics = expect_same_steps(function(batch, sums)
    return preference.dpo { logps = sums, ref_logps = batch.ref_logps }
  end, pairs_with_reference)
  assert(metrics["rewards/accuracies"])
end)

test("a step of kto does not, nor its means over one kind of sequences", function()
  local metrics = expect_same_steps(function(batch, sums)
    return preference.kto { logps = sums:squeeze(1), ref_logps = batch.ref_logps:squeeze(1),
      desirable = batch.desirable, loss_type = "apo_zero_unpaired" }
  end, single)
  local sums = preference.sequence_logprobs(model, model.params, preference.collate(single))
  expect_close(torch.tensor(metrics["logps/chosen"]),
    (sums:sum() - sums[1][0]):detach():float() / 3, 1e-6)
end)

test("a Predictor computes the reference's log-probabilities ahead", function()
  local predictor = redco.Predictor {
    deployer = redco.Deployer { seed = 1, verbose = false },
    collate_fn = function(rows) return preference.collate(rows) end,
    pred_fn = function(_, params, batch)
      return (preference.sequence_logprobs(model, params, batch))
    end,
  }
  local found = predictor:predict { examples = examples, params = model.params,
    per_device_batch_size = 3 }
  local sums = preference.sequence_logprobs(model, model.params, preference.collate(examples))
  expect_close(torch.stack(found), sums, 1e-9)
  local list = {}
  for i, example in ipairs(examples) do list[i] = with(example, { ref_logps = found[i] }) end
  local batch = preference.collate(list)
  local loss = preference.dpo { logps = sums, ref_logps = batch.ref_logps }
  expect_close(loss, doubles(math.log(2)), 1e-6)
end)

test("the parameters of a reference, a copy or a quantized one, are frozen", function()
  local folder, policy = source .. "/tests/cases/llama", { dtype = "float64" }
  for _, other in ipairs { redco.models.from_pretrained(folder, policy),
    redco.models.from_pretrained(folder, with(policy, { quantize = "nf4" })) } do
    local function loss_of(params, batch)
      local ref = torch.no_grad(function()
        return (preference.sequence_logprobs(other, params.reference, batch))
      end)
      return preference.dpo { logps = preference.sequence_logprobs(model, params.policy, batch),
        ref_logps = ref }
    end
    local params = { policy = model.params, reference = other.params }
    local start = loss_of(params, preference.collate(examples)):item()
    local trainer = redco.Trainer {
      deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
      collate_fn = function(rows) return preference.collate(rows) end,
      loss_fn = function(_, _, p, batch) return loss_of(p, batch) end,
      optimizer = redco.optim.freeze(redco.optim.adamw { learning_rate = 1e-3 }, "reference.*"),
      compute_dtype = "float64",
    }
    local first = metrics_of_step(trainer, examples, 4)
    local second = metrics_of_step(trainer, examples, 4)
    expect_close(torch.tensor(first.loss), torch.tensor(start), 1e-6)
    assert(second.loss < first.loss and second["rewards/margins"] > first["rewards/margins"])
    local is_quantized = params.reference["model.layers.0.mlp.up_proj.weight_type"] ~= nil
    expect_equal(math.abs(start - math.log(2)) > 1e-6, is_quantized)
  end
end)

test("a metric that is a sum and a count adds up over micro-batches", function()
  local trainer = regression.trainer_of {
    loss_fn = function(_, _, params, batch)
      local loss = regression.squared_loss(nil, nil, params, batch)
      local is_large = batch.y:gt(0):float()
      return loss, nil, { large = torch.stack { (batch.y * is_large):sum(), is_large:sum() },
        none = torch.zeros { 2 } }
    end,
  }
  local list = regression.examples_of(8)
  local sum, n = 0, 0
  for _, example in ipairs(list) do
    if example.y > 0 then sum, n = sum + example.y, n + 1 end
  end
  for _, size in ipairs { 8, 3, 1 } do
    local metrics = metrics_of_step(trainer, list, size)
    expect_close(torch.tensor(metrics.large), torch.tensor(sum / n), 1e-5)
    expect_equal(metrics.none, 0)
  end
end)

-- ---- bad input ----

test("wrong arguments of losses are errors that name them", function()
  local function refuses(name, options, ...)
    expect_error(function() call(name, options) end, "preference_spec.lua:", "preference." .. name,
      ...)
  end
  refuses("dpo", { loss_type = "sigmod" }, "loss_type = sigmod", "did you mean 'sigmoid'?")
  refuses("dpo", { loss_type = "simpo" }, "loss_type = simpo is not one of")
  refuses("dpo", { bta = 1 }, "unknown argument 'bta'", "did you mean 'beta'?")
  refuses("dpo", { logps = torch.zeros { 0, 2 } }, "logps", "which has no element")
  refuses("dpo", { logps = torch.zeros { 3, 3 } }, "logps: expected [pairs, 2], got [3, 3]")
  refuses("dpo", { logps = torch.zeros { 3 } }, "logps: expected [pairs, 2], got [3]")
  refuses("dpo", { logps = torch.tensor { { 1, 2 } } }, "floating-point numbers, got int64")
  refuses("dpo", { ref_logps = torch.zeros { 3 } }, "ref_logps", "the shape of logps, [3, 2]",
    "got [3]")
  refuses("dpo", { ref_logps = 3 }, "ref_logps", "got number 3")
  refuses("dpo", { ref_logps = ref_logps:to "bfloat16" }, "ref_logps: bfloat16 is too coarse")
  refuses("dpo", { beta = 0 }, "beta: expected a number above 0, got 0")
  refuses("dpo", { beta = 0 / 0 }, "beta", "nan")
  refuses("dpo", { label_smoothing = 0.6 }, "label_smoothing: expected a number from 0 to 0.5")
  refuses("dpo", { label_smoothing = 0.5, loss_type = "robust" }, "label_smoothing")
  refuses("cpo", { loss_type = "robust" }, "loss_type = robust", "simpo")
  refuses("cpo", { counts = torch.ones { 3 } }, "counts", "the shape of logps")
  refuses("orpo", { nll_loss = 3 }, "nll_loss: expected a tensor of one element")
  refuses("kto", { loss_type = "ktoo" }, "did you mean 'kto'?")
  refuses("kto", { logps = torch.zeros { 3, 2 } }, "logps: expected [n], got [3, 2]")
  refuses("kto", { desirable = torch.tensor { true } }, "desirable", "[3]", "got [1]")
  refuses("kto", { ref_kl_logps = torch.zeros { 2 } }, "ref_kl_logps", "the shape of kl_logps")
  expect_error(function()
    preference.dpo { logps = logps, ref_logps = ref_logps, loss_type = "ipo" }
  end, "counts: loss_type = \"ipo\" needs the numbers of tokens")
  expect_error(function() preference.cpo { logps = logps } end, "counts: cpo_alpha = 1 needs")
  expect_error(function()
    local x = torch.zeros { 3 }
    preference.kto { logps = x, ref_logps = x, desirable = x }
  end, "kl_logps: loss_type = \"kto\" needs")
  expect_error(function() preference.reward { rewards = torch.zeros { 4 } } end,
    "rewards: expected [pairs, 2], got [4]")
  expect_error(function()
    preference.reward { rewards = torch.zeros { 4, 2 }, margin = torch.zeros { 4, 1 } }
  end, "margin", "[4]", "got [4, 1]")
  expect_error(function()
    preference.distillation { logits = torch.zeros { 2, 5 }, teacher_logits = torch.zeros { 2, 6 },
      labels = torch.tensor { 1, 2 } }
  end, "teacher_logits: expected the shape of logits, [2, 5], got [2, 6]")
  expect_error(function()
    preference.distillation { logits = torch.zeros { 3, 5 }, teacher_logits = torch.zeros { 3, 5 },
      labels = torch.tensor { 1, 2 } }
  end, "labels: expected the shape of logits without its classes, [3], got [2]")
  expect_error(function()
    preference.distillation { logits = torch.zeros { 2, 5 }, teacher_logits = torch.zeros { 2, 5 },
      labels = torch.tensor { 1, 2 }, beta = 2 }
  end, "beta: expected a number from 0 to 1, got 2")
end)

test("wrong examples are errors that name them", function()
  local function refuses(list, options, ...)
    expect_error(function() preference.collate(list, options) end, "preference_spec.lua:",
      "preference.collate", ...)
  end
  refuses({}, nil, "expected a list of examples, got an empty one")
  refuses({ examples[1], { prompt = { 1 } } }, nil, "example 2 has neither chosen")
  refuses({ with(examples[1], { chosen = {} }) }, nil, "example 1: chosen has no tokens")
  refuses({ with(examples[1], { prompt = "hello" }) }, nil, "example 1: prompt",
    "encode texts with a tokenizer")
  refuses({ with(examples[1], { rejected = { 4, 0.5 } }) }, nil, "rejected", "got 0.5")
  refuses({ { prompt = {}, chosen = { 4 }, rejected = { 5 } } }, nil,
    "no token of chosen is left to be predicted")
  refuses({ examples[4] }, { max_length = 4, truncation_mode = "keep_start" },
    "no token of chosen is left", "max_length is 4")
  refuses({ examples[1], { prompt = { 3 }, completion = { 4 } } }, nil,
    "example 2 has completion, but example 1 has chosen")
  refuses({ with(examples[1], { ref_logps = { 0 / 0, 1 } }) }, nil, "ref_logps",
    "expected 2 finite numbers")
  refuses({ with(examples[1], { ref_logps = { 1 } }) }, nil, "expected 2 finite numbers")
  refuses({ with(examples[1], { margin = 1 }), examples[2] }, nil, "example 2: margin")
  refuses({ { prompt = { 3 }, completion = { 4 }, desirable = 1 } }, nil, "expected a boolean")
  refuses({ examples[1] }, { truncation_mode = "end" }, "truncation_mode")
  refuses({ examples[1] }, { max_length = 1 }, "max_length: expected an integer of at least 2")
end)

test("wrong batches are errors", function()
  local batch = preference.collate(examples)
  batch.labels[{ 2, 1 }] = -100
  expect_error(function() preference.sequence_logprobs(model, model.params, batch) end,
    "sequence 6 of 8 has no token that counts")
  batch.labels = nil
  expect_error(function() preference.sequence_logprobs(model, model.params, batch) end,
    "input_ids and labels, got one without labels")
  expect_error(function() preference.sequence_logprobs(model.params, model.params, batch) end,
    "expected a language model of redco.models")
end)

testing.finish()
