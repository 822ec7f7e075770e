-- Losses of preferences on every layout: the loss, the metrics and the parameters after a step are
-- those of one process with plain tensors, whatever the micro-batches.
local redco = require "redco"
local testing = require "testing"

local lora, preference, torch, tree = redco.lora, redco.preference, redco.torch, redco.tree
local source = assert(os.getenv "REDCO_SOURCE")

local function open(name)
  return redco.models.from_pretrained(source .. "/tests/cases/" .. name, { dtype = "float64" })
end
local llama, gpt2 = open "llama", open "gpt2"  -- gpt2's head is its embedding

local generator = torch.Generator(5)
local function tokens(n) return torch.randint(3, 200, { n }, { generator = generator }):tolist() end

local n_examples = 8
local pairs_of_tokens, single = {}, {}
for i = 1, n_examples do
  pairs_of_tokens[i] = { prompt = tokens(1 + i % 3), chosen = tokens(2 + i % 4),
    rejected = tokens(1 + i % 5), ref_logps = { -20 - i, -25 + i }, margin = i / 8 }
end
for i, example in ipairs(pairs_of_tokens) do
  single[i] = { prompt = example.prompt, completion = example.chosen, desirable = i % 3 ~= 0,
    kl_completion = pairs_of_tokens[i % n_examples + 1].chosen, ref_logps = example.ref_logps }
end

local function copied(params, factor)
  return tree.map(function(p) return p * factor end, params)
end

local function adapters()
  local params = lora.add(llama.params, { target_modules = { "q_proj", "down_proj" }, r = 2,
    generator = torch.Generator(1) })
  for name, tensor in pairs(params) do
    if name:find "lora_B" then
      params[name] = torch.full_like(tensor:detach(), 0.1):requires_grad_()
    end
  end
  return params
end

local function without_gradients(model, params, batch)
  return torch.no_grad(function()
    return (preference.sequence_logprobs(model, params, batch))
  end)
end

-- Cases: parameters, the loss of a batch, and the optimizer where not all parameters are trained.
-- Those with `is_whole` have means of a micro-batch that are no means of examples.
local sgd = redco.optim.sgd { learning_rate = 1e-2 }
local cases = {
  { "dpo with stored log-probabilities", llama.params, function(params, batch)
    return preference.dpo { logps = preference.sequence_logprobs(llama, params, batch),
      ref_logps = batch.ref_logps }
  end },
  { "ipo of a model with a tied head", gpt2.params, function(params, batch)
    local logps, counts = preference.sequence_logprobs(gpt2, params, batch)
    return preference.dpo { logps = logps, counts = counts, ref_logps = batch.ref_logps,
      loss_type = "ipo" }
  end },
  { "dpo with frozen parameters of the reference",
    { policy = llama.params, reference = copied(llama.params, 1.1) }, function(params, batch)
      return preference.dpo { logps = preference.sequence_logprobs(llama, params.policy, batch),
        ref_logps = without_gradients(llama, params.reference, batch) }
    end, optimizer = redco.optim.freeze(sgd, "reference.*") },
  { "dpo with adapters, whose base is the reference", adapters(), function(params, batch)
    return preference.dpo { logps = preference.sequence_logprobs(llama, params, batch),
      ref_logps = without_gradients(llama, lora.base(params), batch) }
  end, optimizer = lora.freeze_base(sgd) },
  { "simpo", gpt2.params, function(params, batch)
    local logps, counts = preference.sequence_logprobs(gpt2, params, batch)
    return preference.cpo { logps = logps, counts = counts, loss_type = "simpo", cpo_alpha = 0,
      beta = 2 }
  end },
  { "orpo", llama.params, function(params, batch)
    local logps, counts = preference.sequence_logprobs(llama, params, batch)
    return preference.orpo { logps = logps, counts = counts }
  end, is_whole = true },
  { "kto", llama.params, function(params, batch)
    local logps = preference.sequence_logprobs(llama, params, batch)
    return preference.kto { logps = logps:select(1, 0), kl_logps = logps:select(1, 1),
      ref_logps = batch.ref_logps:select(1, 0), ref_kl_logps = batch.ref_logps:select(1, 1) - 30,
      desirable = batch.desirable, desirable_weight = 1.2 }
  end, examples = single, is_whole = true },
  { "kto without a divergence", gpt2.params, function(params, batch)
    local logps = preference.sequence_logprobs(gpt2, params, batch)
    return preference.kto { logps = logps:select(1, 0), loss_type = "apo_zero_unpaired",
      ref_logps = batch.ref_logps:select(1, 0), desirable = batch.desirable }
  end, examples = single },
  { "rewards with margins", llama.params, function(params, batch)
    local logps = preference.sequence_logprobs(llama, params, batch)
    local loss, n, metrics = preference.reward { rewards = logps / 10, margin = batch.margin,
      center_rewards_coefficient = 0.1 }
    metrics.min_reward, metrics.max_reward = nil, nil  -- means over micro-batches
    return loss, n, metrics
  end },
  { "distillation", gpt2.params, function(params, batch)
    local inputs = { input_ids = batch.input_ids:select(1, 0) }
    local logits = gpt2(params, inputs)
    return preference.distillation { logits = logits, teacher_logits = logits:roll(1, -1),
      labels = batch.labels:select(1, 0), beta = 0.3 }
  end },
}

local function collate(rows)
  local batch = preference.collate(rows)
  for _, name in ipairs { "ref_logps", "margin" } do
    batch[name] = batch[name] and batch[name]:double()
  end
  return batch
end

-- The step of one process, by hand.
local function expected_of(case)
  local batch, value, weight, metrics = collate(case.examples or pairs_of_tokens), nil, nil, nil
  local loss, gradients = redco.value_and_grad(function(params)
    value, weight, metrics = case[3](params, batch)
    return value
  end)(case[2])
  assert(weight)
  local found = { loss = loss:item() }
  for name, metric in pairs(metrics or {}) do
    if torch.is_tensor(metric) then
      metric = metric:dim() == 1 and metric[0] / metric[1] or metric
    end
    found[name] = torch.is_tensor(metric) and metric:item() or metric
  end
  local optimizer = case.optimizer or sgd
  local params = tree.map(function(p) return torch.is_tensor(p) and p:detach():clone() or p end,
    case[2])
  optimizer:step(gradients, optimizer:init(params), params)
  return found, params
end

local deployers = {}
for _, options in ipairs { { n_model_shards = 1 }, { n_model_shards = 2 },
  { n_model_shards = 1, zero = 3 }, { n_model_shards = 2, zero = 3 } } do
  options.seed, options.verbose = 1, false
  local deployer = redco.Deployer(options)
  deployers[#deployers + 1] = { deployer, ("on %dx%d with zero %d"):format(deployer.mesh.dp,
    deployer.mesh.mp, options.zero or 0) }
end

for _, case in ipairs(cases) do
  local expected, expected_params = expected_of(case)
  for _, on in ipairs(deployers) do
    local deployer, layout = unpack(on)
    for _, n_micro in ipairs { 1, 2 } do
      if case.is_whole and n_micro > 1 then break end
      testing.test(("%s %s, %d micro-batches"):format(case[1], layout, n_micro), function()
        local trainer = redco.Trainer {
          deployer = deployer, params = copied(case[2], 1), collate_fn = collate,
          loss_fn = function(_, _, params, batch) return case[3](params, batch) end,
          optimizer = case.optimizer or sgd, compute_dtype = "float64",
        }
        local metrics
        trainer:fit {
          train_examples = case.examples or pairs_of_tokens, n_epochs = 1,
          per_device_batch_size = n_examples / n_micro / deployer.mesh.dp,
          global_batch_size = n_examples, on_step = function(event) metrics = event.metrics end,
        }
        for name, value in pairs(expected) do
          local difference = math.abs(metrics[name] - value)
          assert(difference <= 1e-9 * math.max(1, math.abs(value)),
            ("%s is %.12g, not %.12g"):format(name, metrics[name], value))
        end
        local names, params = tree.paths(expected_params), tree.leaves(trainer.params)
        for i, param in ipairs(tree.leaves(expected_params)) do
          if torch.is_tensor(param) then
            local difference = (params[i]:full() - param):abs():max():item()
            assert(difference <= 1e-11, ("%s differs by %.2g"):format(names[i], difference))
          end
        end
      end)
    end
  end
end

testing.finish()
