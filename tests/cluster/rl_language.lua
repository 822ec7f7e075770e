-- Reinforcement learning of a language model on every layout: the samples, the losses, the metrics
-- and the parameters are those of one process.
local policies = require "calling_policy"
local redco = require "redco"
local testing = require "testing"

local torch, tree = redco.torch, redco.tree
local source = assert(os.getenv "REDCO_SOURCE")
local model = redco.models.from_pretrained(source .. "/tests/cases/llama", { dtype = "float64" })
model.generation_config = {}

local generator = torch.Generator(3)
local examples = {}
for i = 1, 6 do
  local prompt = torch.randint(3, 200, { 3 + i % 3 }, { generator = generator })
  examples[i] = { prompt = prompt:tolist() }
end

local function low(tokens)
  local n = 0
  for _, token in ipairs(tokens) do n = n + (token < 300 and 1 or 0) end
  return n / #tokens
end

local names = { "loss", "grad_norm", "reward", "reward_std", "entropy", "logprob_difference",
  "clip_ratio/region_mean", "kl", "completions/mean_length", "completions/max_length",
  "loss/policy_avg", "loss/value_avg", "val/clipfrac_avg", "objective/kl" }

local function critic(params, hidden) return redco.nn.linear(params.value, hidden):squeeze(-1) end

-- Returns the samples as text, and the metrics and the parameters.
local function run(deployer, loss, n_micro, num_workers)
  local is_ppo = loss.loss_type == "ppo"
  local adapted = redco.lora.add(
    tree.map(function(p) return torch.is_tensor(p) and p:detach():clone() or p end, model.params),
    { target_modules = { "q_proj", "down_proj" }, r = 2, generator = torch.Generator(1) })
  for name, tensor in pairs(adapted) do
    if name:find "lora_B" then
      adapted[name] = torch.full_like(tensor:detach(), 0.02):requires_grad_()
    end
  end
  local texts, metrics = {}, {}
  if is_ppo then
    adapted = { policy = adapted, value = {
      weight = torch.full({ 1, model.config.hidden_size }, 0.01, { dtype = "float64" }),
      bias = torch.zeros({ 1 }, { dtype = "float64" }) } }
  end
  local sampler = redco.rl.language.sampler {
    model = model, examples = examples, rewards = { low = low }, seed = 3, deployer = deployer,
    num_workers = num_workers,
    num_prompts = 4, num_generations = 4, max_completion_length = 6, eos_token_id = { 5, 6 },
    num_iterations = 2, max_rows = 6, per_device_batch_size = 8 / deployer.mesh.dp,
    advantages = is_ppo and "gae" or "grpo", value = is_ppo and critic or nil,
    policy = is_ppo and function(params) return params.policy end or nil,
    kl_coef = is_ppo and 0.1 or 0,
    reference = is_ppo and function(params) return redco.lora.base(params.policy) end or nil,
    on_rollout = function(samples)
      for _, sample in ipairs(samples) do
        texts[#texts + 1] = table.concat(sample.tokens, " ")
      end
    end,
  }
  local trainer
  trainer = redco.Trainer {
    deployer = deployer, params = adapted, compute_dtype = "float64",
    optimizer = redco.optim.freeze(redco.optim.adamw { learning_rate = 5e-3 }, function(name)
      return not (name:find "lora_" or name:find "^value")
    end),
    custom_state = sampler.state, collate_fn = sampler.collate_fn,
    loss_fn = sampler:loss_fn(loss),
  }
  trainer:fit {
    train_examples = function(epoch_idx) return sampler:rollout(trainer, epoch_idx) end,
    per_device_batch_size = 16 / n_micro / deployer.mesh.dp, global_batch_size = 16, n_epochs = 2,
    on_step = function(event)
      local row = {}
      for i, name in ipairs(names) do row[i] = event.metrics[name] or 0 end
      metrics[#metrics + 1] = row
    end,
  }
  local params = { value = is_ppo and trainer.params.value.weight:full():detach() or nil }
  for name, tensor in pairs(is_ppo and trainer.params.policy or trainer.params) do
    if name:find "lora_B" then params[name] = tensor:full():detach() end
  end
  return { texts = table.concat(texts, "\n"), metrics = metrics, params = params }
end

-- Returns the conversations of samples with tools, and their labels, as text. `counts` gets an
-- entry for each call that this process answers without threads.
local function converse(deployer, counts, num_workers)
  local policy, tokenizer = policies.new "float64"
  local texts, list = {}, nil
  local sampler = redco.rl.language.sampler {
    model = policy, tokenizer = tokenizer, deployer = deployer, seed = 3, max_rows = 6,
    num_workers = num_workers,
    examples = { { prompt = { { role = "user", content = "look" } } } },
    tools = { look = function(arguments, _, sample)
      counts[#counts + 1] = 1
      return arguments.n + #sample.tokens + math.random(0, 9)
    end },
    rewards = { messages = function(_, _, sample) return #sample.messages end },
    num_prompts = 4, num_generations = 4, max_completion_length = 60,
    per_device_batch_size = 8 / deployer.mesh.dp, on_rollout = function(samples) list = samples end,
  }
  local trainer = redco.Trainer {
    deployer = deployer, custom_state = sampler.state, collate_fn = sampler.collate_fn,
    params = policy.params, compute_dtype = "float64", loss_fn = sampler:loss_fn {},
    optimizer = redco.optim.adamw { learning_rate = 5e-3 },
  }
  sampler:rollout(trainer, 0)
  for i, sample in ipairs(list) do
    texts[#texts + 1] = tokenizer:decode(sample.tokens) .. sample.reward
      .. table.concat(sampler.state.tensors.labels[i - 1]:tolist(), " ")
  end
  return table.concat(texts, "\n")
end

local function sum_of(list)
  local sum = 0
  for _, value in ipairs(list) do sum = sum + value end
  return sum
end

local cases = {
  { loss_type = "grpo", beta = 0.1, reference = redco.lora.base },
  { loss_type = "dapo", epsilon_high = 0.28, importance_sampling_cap = 2 },
  { loss_type = "gspo", epsilon = 1e-3 },
  { loss_type = "ppo", vf_coef = 1, cliprange_value = 0.05 },
}
local layouts = { { n_model_shards = 1 }, { n_model_shards = 2 }, { n_model_shards = 1, zero = 3 },
  { n_model_shards = 2, zero = 3 }, { n_pipeline_stages = 2 } }

local function name_of(deployer, options)
  return ("%dx%d with zero %d, %d stages"):format(deployer.mesh.dp, deployer.mesh.mp,
    options.zero or 0, options.n_pipeline_stages or 1)
end

do
  local counts = {}
  local expected = redco.Deployer({ seed = 1, verbose = false }):alone(function()
    return converse(redco.Deployer { seed = 1, verbose = false }, counts)
  end)[1]
  for _, options in ipairs(layouts) do
    options.seed, options.verbose = 1, false
    local deployer = redco.Deployer(options)
    testing.test("tools on " .. name_of(deployer, options), function()
      local own = {}
      testing.expect_equal(converse(deployer, {}, 2), expected)
      testing.expect_equal(converse(deployer, own), expected)
      -- Each call is answered by one process.
      local all = deployer:alone(function() return { #own } end)
      for i, one in ipairs(all) do all[i] = one[1] end
      testing.expect_equal(sum_of(all), #counts)
      assert(#own < #counts and #counts > 4)
    end)
  end
end

-- Without REDCO_TEST_FULL=1 each loss is tried on half of the layouts.
for l, loss in ipairs(cases) do
  local first = redco.Deployer { seed = 1, verbose = false }
  local expected = first:alone(function()
    return run(redco.Deployer { seed = 1, verbose = false }, loss, 1)
  end)[1]
  for i, options in ipairs(layouts) do
    if (l + math.floor(i / 2)) % 2 == 0 or testing.is_full then
      options.seed, options.verbose = 1, false
      local deployer = redco.Deployer(options)
      local n_micro = i % 2 + 1
      testing.test(("%s on %s, %d micro-batches"):format(loss.loss_type,
        name_of(deployer, options), n_micro), function()
        local found = run(deployer, loss, n_micro, i % 2)
        testing.expect_equal(found.texts, expected.texts)
        for step, row in ipairs(expected.metrics) do
          for k, value in ipairs(row) do
            local own = found.metrics[step][k]
            assert(math.abs(own - value) <= 1e-6 * math.max(1, math.abs(value)),
              ("step %d: %s is %.12g, not %.12g"):format(step, names[k], own, value))
          end
        end
        for name, tensor in pairs(expected.params) do
          local difference = (found.params[name] - tensor):abs():max():item()
          assert(difference <= 1e-7, ("%s differs by %.2g"):format(name, difference))
        end
      end)
    end
  end
end

testing.finish()
