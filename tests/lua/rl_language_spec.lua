-- redco.rl.language: losses and advantages by their formulas, the sampler, its rewards, and runs.
local redco = require "redco"
local testing = require "testing"

local language, torch = redco.rl.language, redco.torch
local test = testing.test
local source = assert(os.getenv "REDCO_SOURCE")

local function expect_near(actual, expected, tolerance)
  assert(math.abs(actual - expected) <= (tolerance or 1e-9) * math.max(1, math.abs(expected)),
    ("%.12g is not %.12g"):format(actual, expected))
end

-- A batch of two sequences, of which two and three tokens count.
local double = { dtype = "float64" }
local labels = torch.tensor { { -100, 7, 8, -100 }, { 5, 6, 9, -100 } }
local logps = torch.tensor({ { 0, -1, -2, 0 }, { -0.5, -1.5, -1, 0 } }, double)
local old_logps = torch.tensor({ { 0, -1.5, -1.9, 0 }, { -0.7, -1.4, -1.8, 0 } }, double)
local advantages = torch.tensor({ 1.5, -0.5 }, double)

local function loss_of(more)
  local all = { logps = logps, labels = labels, old_logps = old_logps, advantages = advantages }
  for name, value in pairs(more) do all[name] = value end
  return language.loss(all)
end

local function clipped(log_ratio, advantage, low, high)
  local ratio = math.exp(log_ratio)
  return -math.min(ratio * advantage, math.max(1 - low, math.min(ratio, 1 + high)) * advantage)
end

test("grpo, dapo and dr_grpo average the same terms in their ways", function()
  local a = { clipped(0.5, 1.5, 0.2, 0.2), clipped(-0.1, 1.5, 0.2, 0.2) }
  local b = { clipped(0.2, -0.5, 0.2, 0.2), clipped(-0.1, -0.5, 0.2, 0.2),
    clipped(0.8, -0.5, 0.2, 0.2) }
  local sum_a, sum_b = a[1] + a[2], b[1] + b[2] + b[3]
  local loss, weight, metrics = loss_of {}
  expect_near(loss:item(), (sum_a / 2 + sum_b / 3) / 2)
  testing.expect_equal(weight, 2)
  testing.expect_equal(metrics["clip_ratio/high_mean"]:tolist()[1], 1)
  testing.expect_equal(metrics["clip_ratio/low_mean"]:tolist()[2], 5)
  expect_near(metrics.logprob_difference[0]:item(), 0.5 + 0.1 + 0.2 + 0.1 + 0.8)
  loss, weight = loss_of { loss_type = "dapo" }
  expect_near(loss:item(), (sum_a + sum_b) / 5)
  testing.expect_equal(weight:item(), 5)
  loss, weight = loss_of { loss_type = "dr_grpo", max_completion_length = 7 }
  expect_near(loss:item(), (sum_a + sum_b) / 14)
  testing.expect_equal(weight, 2)
end)

test("sequence ratios, and weights of cispo", function()
  local loss = loss_of { loss_type = "gspo" }
  expect_near(loss:item(), (clipped(0.2, 1.5, 0.2, 0.2) + clipped(0.3, -0.5, 0.2, 0.2)) / 2)
  loss = loss_of { loss_type = "rloo" }
  expect_near(loss:item(), (clipped(0.4, 1.5, 0.2, 0.2) + clipped(0.9, -0.5, 0.2, 0.2)) / 2)
  local sum = 0
  -- Log-ratios and log-probabilities.
  local rows = { { { 0.5, -1 }, { -0.1, -2 } }, { { 0.2, -0.5 }, { -0.1, -1.5 }, { 0.8, -1 } } }
  for i, row in ipairs(rows) do
    for _, term in ipairs(row) do
      sum = sum - math.min(math.exp(term[1]), 1.3) * ({ 1.5, -0.5 })[i] * term[2]
    end
  end
  loss = loss_of { loss_type = "cispo", epsilon_high = 1.3 }
  expect_near(loss:item(), sum / 5)
end)

test("without old log-probabilities ratios are 1 and have a gradient", function()
  local given = logps:clone():requires_grad_()
  local loss = language.loss { logps = given, labels = labels, advantages = advantages,
    loss_type = "dapo" }
  loss:backward()
  expect_near(loss:item(), -(2 * 1.5 - 3 * 0.5) / 5)
  testing.expect_close(given.grad, torch.tensor({ { 0, -0.3, -0.3, 0 }, { 0.1, 0.1, 0.1, 0 } },
    double))
end)

test("a batch without a token that counts has a loss of 0 and no gradient", function()
  for _, loss_type in ipairs { "grpo", "dapo", "dr_grpo", "gspo", "rloo", "cispo" } do
    local given = logps:clone():requires_grad_()
    local loss = language.loss { logps = given, labels = torch.full_like(labels, -100),
      advantages = advantages, loss_type = loss_type, max_completion_length = 4 }
    loss:backward()
    testing.expect_equal(loss:item(), 0)
    testing.expect_equal(given.grad:abs():max():item(), 0)
  end
end)

test("advantages", function()
  local rewards = torch.tensor({ { 1, 2, 6 }, { 4, 4, 4 } }, double)
  local function of(kind) return language.advantages(rewards, { kind = kind }) end
  testing.expect_close(of "dr_grpo", { { -2, -1, 3 }, { 0, 0, 0 } })
  local std = math.sqrt(7) + 1e-4
  testing.expect_close(of "grpo", { { -2 / std, -1 / std, 3 / std }, { 0, 0, 0 } })
  testing.expect_close(of "rloo", { { -3, -1.5, 4.5 }, { 0, 0, 0 } })
  testing.expect_close(of "grpo_batch", of "dr_grpo" / (rewards:std():item() + 1e-4))
  testing.expect_close(of "reinforce_plus_plus",
    (rewards - 3.5) / (rewards:std():item() + 1e-4))
  testing.expect_close(of "reinforce_plus_plus_baseline",
    of "dr_grpo" / (of("dr_grpo"):std():item() + 1e-4))
  testing.expect_error(function() language.advantages(rewards:narrow(1, 0, 1)) end,
    "there is 1 of each: sample 2 or more")
  testing.expect_error(function() of "grpp" end, "did you mean 'grpo'?")
end)

test("generalized advantage estimation skips tokens that do not count", function()
  local of_labels = torch.tensor {
    { -100, 7, -100, -100, 8, 9 }, { 5, -100, -100, -100, -100, -100 } }
  local rewards = torch.tensor({ { 9, 1, 9, 9, 0, 2 }, { 3, 9, 9, 9, 9, 9 } }, double)
  local values = torch.tensor({ { 7, 0.5, 7, 7, 0.25, 1 }, { 2, 7, 7, 7, 7, 7 } }, double)
  local function of(more)
    local all = { rewards = rewards, values = values, labels = of_labels, gamma = 0.9,
      lambda = 0.8, whiten = false }
    for name, value in pairs(more or {}) do all[name] = value end
    return language.gae(all)
  end
  local found, returns = of()
  local third = 2 - 1
  local second = 0 + 0.9 * 1 - 0.25 + 0.72 * third
  local first = 1 + 0.9 * 0.25 - 0.5 + 0.72 * second
  testing.expect_close(found, torch.tensor(
    { { 0, first, 0, 0, second, third }, { 1, 0, 0, 0, 0, 0 } }, double))
  testing.expect_close(returns, torch.tensor(
    { { 0, first + 0.5, 0, 0, second + 0.25, third + 1 }, { 3, 0, 0, 0, 0, 0 } }, double))
  local whitened = of { whiten = true }
  local counted = whitened:masked_select(of_labels:ne(-100))
  expect_near(counted:mean():item(), 0)
  expect_near(counted:std():item(), 1, 1e-6)
  local scaled = torch.tensor({ 1, 0, 2, 3 }, double)
  scaled = (scaled - 1.5) / math.sqrt(5 / 3 + 1e-8) + 1.5
  local _, by_one = of { whiten_rewards = true, gamma = 0 }
  testing.expect_close(by_one:masked_select(of_labels:ne(-100)), scaled)
  testing.expect_error(function() of { gamma = 2 } end, "gamma: expected a number from 0 to 1")
  testing.expect_error(function()
    of { whiten = true, labels = torch.full_like(of_labels, -100) }
  end, "fewer than 2 tokens count")
end)

test("a critic's error is a term of each token, clipped around the old values", function()
  local values = torch.tensor({ { 9, 1, 2, 9 }, { 0.5, 0.1, -1, 9 } }, double):requires_grad_()
  local old_values = torch.tensor({ { 9, 0.9, 1, 9 }, { 0.5, 0, -0.5, 9 } }, double)
  local returns = torch.tensor({ { 0, 2, 1.5, 0 }, { 0.5, 1, 0, 0 } }, double)
  local of_tokens = torch.tensor({ { 9, 1, -2, 9 }, { 0.5, 1, -1, 9 } }, double)
  local loss, weight, metrics = loss_of { loss_type = "ppo", advantages = of_tokens,
    values = values, old_values = old_values, returns = returns, vf_coef = 0.5 }
  local policy = clipped(0.5, 1, 0.2, 0.2) + clipped(-0.1, -2, 0.2, 0.2)
    + clipped(0.2, 0.5, 0.2, 0.2) + clipped(-0.1, 1, 0.2, 0.2) + clipped(0.8, -1, 0.2, 0.2)
  -- The second value counts as 1.2, and the last one as -0.7: their errors are smaller then.
  local critic = 0.5 * (1 + 0.25 + 0 + 0.81 + 1)
  expect_near(loss:item(), (policy + 0.5 * critic) / 5)
  testing.expect_equal(weight:item(), 5)
  expect_near(metrics["loss/value_avg"][0]:item(), critic)
  expect_near(metrics["loss/policy_avg"][0]:item(), policy)
  testing.expect_equal(metrics["val/clipfrac_avg"]:tolist()[2], 5)
  loss:backward()
  testing.expect_close(values.grad, torch.tensor(
    { { 0, -0.1, 0.05, 0 }, { 0, -0.09, -0.1, 0 } }, double))
end)

test("minima and maxima are over sequences that have tokens", function()
  local _, _, metrics = loss_of {}
  testing.expect_close(metrics["clip_ratio/high_max"], torch.tensor({ 0.5, 1 }, double))
  testing.expect_close(metrics["clip_ratio/low_min"], torch.tensor({ 0, 1 }, double))
  local one = labels:clone()
  one[0] = -100
  _, _, metrics = loss_of { labels = one, advantages = torch.tensor({ 1.5, 0.5 }, double) }
  expect_near(metrics["clip_ratio/high_max"][0]:item(), 2 / 3)
  _, _, metrics = loss_of { labels = torch.full_like(labels, -100) }
  testing.expect_close(metrics["clip_ratio/low_min"], torch.tensor({ 0, 0 }, double))
  _, _, metrics = loss_of { importance_sampling_cap = 1.5,
    sampler_logps = torch.tensor({ { 9, -1.5, -1.4, 9 }, { -0.7, -2.4, -1.8, 9 } }, double) }
  expect_near(metrics["sampling/importance_sampling_ratio/min"][0]:item(), math.exp(-0.5))
  expect_near(metrics["sampling/importance_sampling_ratio/max"][0]:item(), 1.5)
end)

test("what a loss refuses", function()
  local function refuse(text, more) testing.expect_error(function() loss_of(more) end, text) end
  refuse("did you mean 'dapo'?", { loss_type = "dapoo" })
  refuse("beta = 0.1 needs the log-probabilities of a reference model", { beta = 0.1 })
  refuse("old_logps: expected the shape of logps", { old_logps = old_logps:narrow(1, 0, 2) })
  refuse("advantages: expected [2]", { advantages = torch.zeros { 3 } })
  refuse("max_completion_length", { loss_type = "dr_grpo" })
  refuse("importance_sampling_cap needs sampler_logps", { importance_sampling_cap = 2 })
  refuse("values needs old_values and returns", { values = logps })
  refuse("advantages: expected [2]", { advantages = logps, loss_type = "gspo" })
  refuse("vf_coef: expected a number from 0", { vf_coef = -1 })
  refuse("too coarse", { logps = logps:to "bfloat16" })
end)

local llama = redco.models.from_pretrained(source .. "/tests/cases/llama")
llama.generation_config = {}
local deployer = redco.Deployer { seed = 1, verbose = false }

local generator = torch.Generator(3)
local examples = {}
for i = 1, 6 do
  examples[i] = { number = i,
    prompt = torch.randint(3, 200, { 3 + i % 3 }, { generator = generator }):tolist() }
end

local function low(tokens)
  local n = 0
  for _, token in ipairs(tokens) do n = n + (token < 300 and 1 or 0) end
  return n / #tokens
end

local function sampler_of(more)
  local all = { model = llama, examples = examples, rewards = { low = low }, seed = 3,
    num_prompts = 2, num_generations = 4, max_completion_length = 6, eos_token_id = { 5, 6 } }
  for name, value in pairs(more or {}) do all[name] = value end
  return language.sampler(all)
end

local function trainer_of(sampler, loss, more)
  local all = { deployer = deployer,
    params = redco.tree.map(function(p) return p:detach():clone() end, llama.params),
    optimizer = redco.optim.adamw { learning_rate = 2e-3 }, custom_state = sampler.state,
    collate_fn = sampler.collate_fn, loss_fn = sampler:loss_fn(loss or {}) }
  for name, value in pairs(more or {}) do all[name] = value end
  return redco.Trainer(all)
end

local function fit(sampler, trainer, n_epochs, more)
  local steps = {}
  local all = { per_device_batch_size = 8, n_epochs = n_epochs,
    train_examples = function(epoch_idx) return sampler:rollout(trainer, epoch_idx) end,
    on_step = function(event) steps[#steps + 1] = event.metrics end }
  for name, value in pairs(more or {}) do all[name] = value end
  trainer:fit(all)
  return steps
end

test("the trainer's log-probabilities equal those of its forward pass before the step", function()
  local n_tokens = 0
  local sampler = sampler_of { num_prompts = 4, num_iterations = 2, temperature = 0.7,
    on_rollout = function(list)
      for _, sample in ipairs(list) do n_tokens = n_tokens + #sample.prompt + #sample.tokens end
    end }
  local steps = fit(sampler, trainer_of(sampler), 3)
  testing.expect_equal(#steps, 12)
  testing.expect_equal(steps[12].num_tokens, n_tokens)
  testing.expect_equal(sampler.state.num_tokens, n_tokens)
  for i, metrics in ipairs(steps) do
    if i % 4 == 1 then
      testing.expect_equal(metrics.logprob_difference, 0)
      testing.expect_equal(metrics["clip_ratio/region_mean"], 0)
    else
      assert(metrics.logprob_difference > 1e-4)
    end
    assert(metrics["sampling/sampling_logp_difference/max"] < 1e-4)
    assert(metrics["sampling/sampling_logp_difference/mean"] <= 1e-5)
    expect_near(metrics.reward, metrics["rewards/low/mean"])
    assert(metrics["rewards/low/std"] > 0)
    assert(metrics["completions/max_length"] == 6 and metrics["completions/min_length"] >= 1)
    assert(metrics["completions/min_terminated_length"]
      <= metrics["completions/mean_terminated_length"])
    assert(metrics["completions/mean_terminated_length"]
      <= metrics["completions/max_terminated_length"])
    assert(metrics.entropy > 1 and metrics["completions/mean_length"] <= 6)
  end
end)

test("a reward is learned, with a reference model that holds the policy back", function()
  local function reward_after(beta)
    local params = redco.lora.add(llama.params, { r = 8, generator = torch.Generator(1),
      target_modules = { "q_proj", "v_proj", "down_proj" } })
    local sampler = sampler_of { num_generations = 16, num_prompts = 4 }
    local trainer = trainer_of(sampler, { beta = beta, reference = redco.lora.base },
      { params = params, optimizer = redco.lora.freeze_base(
        redco.optim.adamw { learning_rate = 2e-2 }) })
    local steps = fit(sampler, trainer, 10, { per_device_batch_size = 64 })
    local kl = steps[#steps].kl
    return sampler:evaluate(trainer.params, examples).reward, kl
  end
  local free, no_kl = reward_after(0)
  local held, kl = reward_after(10)
  assert(no_kl == nil and kl > 0 and kl < 1)
  local before = sampler_of():evaluate(llama.params, examples).reward
  assert(free > before + 0.2, ("%g after %g"):format(free, before))
  assert(held < free, ("%g is not below %g"):format(held, free))
end)

-- A sampler and a trainer of a policy with a critic.
local function ppo_of(more, loss, is_head)
  local function copy(factor)
    return redco.tree.map(function(p) return p:detach() * factor end, llama.params)
  end
  local params = { policy = copy(1), value = { weight = torch.full({ 1, 64 }, 0.01) },
    critic = not is_head and copy(1) or nil, reference = copy(1.01) }
  local function value(all, hidden, inputs)
    if not is_head then hidden = llama.hidden_states(all.critic, inputs) end
    return redco.nn.linear(all.value, hidden):squeeze(-1)
  end
  local options = { advantages = "gae", value = value, kl_coef = 0.05, num_generations = 1,
    num_prompts = 16, num_iterations = 2, policy = function(all) return all.policy end,
    reference = function(all) return all.reference end }
  for name, each in pairs(more or {}) do options[name] = each end
  local sampler = sampler_of(options)
  local all = { loss_type = "ppo" }
  for name, each in pairs(loss or {}) do all[name] = each end
  return sampler, trainer_of(sampler, all, { params = params, optimizer = redco.optim.freeze(
    redco.optim.adamw { learning_rate = 3e-3 }, "reference.*") })
end

test("PPO learns a reward; its critic learns the returns", function()
  for _, is_head in ipairs { true, false } do
    local sampler, trainer = ppo_of({ num_prompts = 64 }, { vf_coef = 1 }, is_head)
    local steps = fit(sampler, trainer, 12, { per_device_batch_size = 64 })
    local first, last = steps[1], steps[#steps]
    testing.expect_equal(first.logprob_difference, 0)
    testing.expect_equal(first["val/ratio"], 1)
    testing.expect_equal(first["val/clipfrac_avg"], 0)
    assert(last.reward > first.reward + 0.1, ("%g after %g"):format(last.reward, first.reward))
    assert(last["loss/value_avg"] < 0.7 * first["loss/value_avg"])
    expect_near(first["objective/rlhf_reward"],
      first.reward + first["objective/non_score_reward"], 1e-6)
    expect_near(first["objective/non_score_reward"], -0.05 * first["objective/kl"], 1e-6)
    assert(first["objective/kl"] ~= 0)
  end
end)

test("a critic, a policy or a reference model that returns something else is named", function()
  local function refuse(more, ...)
    local sampler, trainer = ppo_of(more, {}, true)
    testing.expect_error(function() fit(sampler, trainer, 1) end, "rl_language_spec.lua:", ...)
  end
  local function critic(change)
    return { value = function(all, hidden)
      return change(redco.nn.linear(all.value, hidden))
    end }
  end
  refuse(critic(function() end), "value: its result: expected a tensor of the shape of labels",
    "got nil")
  refuse(critic(function(values) return values end), "value: its result: expected the shape of",
    ", 1]")
  local expected = ": expected parameters of the model, got "
  refuse({ policy = function() end }, "policy" .. expected .. "nil")
  refuse({ policy = false }, "policy" .. expected .. "table")
  refuse({ reference = function(all) return all end }, "reference" .. expected .. "table")
end)

test("the divergence is subtracted from rewards of samples, too", function()
  local sampler, trainer = ppo_of({ advantages = "dr_grpo", num_prompts = 2, num_generations = 4,
    value = false, kl_coef = 0.5, kl_estimator = "k3" }, { loss_type = "rloo" }, true)
  sampler:rollout(trainer, 0)
  local tensors = sampler.state.tensors
  local rewards = (tensors.metrics.reward - 0.5 * tensors.metrics["objective/kl"]):view { 2, 4 }
  assert(tensors.metrics["objective/kl"]:min():item() > 0)
  testing.expect_close(tensors.advantages, (rewards - rewards:mean(1, true)):view { -1 }:float())
end)

test("a frozen copy is the reference model", function()
  local function copy(factor)
    return redco.tree.map(function(p) return p:detach() * factor end, llama.params)
  end
  local sampler = sampler_of { policy = function(params) return params.policy end }
  local params = { policy = copy(1), reference = copy(1.01) }
  local trainer = trainer_of(sampler,
    { beta = 0.5, reference = function(all) return all.reference end },
    { params = params, optimizer = redco.optim.freeze(
      redco.optim.adamw { learning_rate = 1e-3 }, "reference.*") })
  local steps = fit(sampler, trainer, 2)
  assert(steps[1].kl > 0)
  testing.expect_equal(steps[1].logprob_difference, 0)
  testing.expect_close(trainer.params.reference["lm_head.weight"],
    params.reference["lm_head.weight"], 0, 0)
end)

test("a run that resumes within a rollout uses its samples again", function()
  local folder = testing.folder() .. "/run"
  local function run(max_steps, is_resumed)
    local own = redco.Deployer { seed = 1, verbose = false, workdir = folder }
    local ckpt, last = unpack(is_resumed and { own:load_last_ckpt() } or {})
    local sampler = sampler_of { num_iterations = 2, state = ckpt and ckpt.custom_state }
    local more = { deployer = own, last_ckpt_info = last }
    if ckpt then more.params, more.opt_state = ckpt.params, ckpt.opt_state end
    local trainer = trainer_of(sampler, {}, more)
    local steps = fit(sampler, trainer, 3, { per_device_batch_size = 4, max_steps = max_steps,
      save_last_ckpt = true })
    return steps
  end
  local whole = run(12)
  os.execute("rm -rf '" .. folder .. "'")
  run(6)
  local rest = run(12, true)
  testing.expect_equal(#rest, 6)
  for i, metrics in ipairs(rest) do testing.expect_equal(metrics.loss, whole[6 + i].loss) end
end)

test("groups without signal are replaced while there are others", function()
  -- Only prompts with an even number have a signal.
  local asked = {}
  local sampler = sampler_of { filter_groups = true, num_prompts = 2,
    rewards = function(tokens, example)
      asked[example.number] = true
      return example.number % 2 == 0 and low(tokens) + #tokens / 7 or 0.5
    end,
    on_rollout = function(samples)
      testing.expect_equal(#samples, 8)
      for _, sample in ipairs(samples) do testing.expect_equal(sample.example.number % 2, 0) end
    end }
  local steps = fit(sampler, trainer_of(sampler), 1)
  testing.expect_equal(steps[1].frac_reward_zero_std, 0)
  local n = 0
  for _ in pairs(asked) do n = n + 1 end
  assert(n > 2, "no further prompts were asked")
  local flat = sampler_of { filter_groups = true, max_rounds = 3,
    rewards = function() return true end }
  steps = fit(flat, trainer_of(flat), 1)
  testing.expect_equal(steps[1].frac_reward_zero_std, 1)
  testing.expect_equal(steps[1].loss, 0)
end)

test("cut completions are masked if asked for; rewards are weighted", function()
  local sampler = sampler_of { mask_truncated_completions = true, eos_token_id = {},
    rewards = { low = low, length = function(tokens) return #tokens end },
    reward_weights = { low = 2, length = -1 } }
  local steps = fit(sampler, trainer_of(sampler), 1)
  testing.expect_equal(steps[1].loss, 0)
  testing.expect_equal(steps[1].grad_norm, 0)
  testing.expect_equal(steps[1]["completions/clipped_ratio"], 1)
  expect_near(steps[1].reward, 2 * steps[1]["rewards/low/mean"] - 6, 1e-6)
end)

test("rewards that fail are errors that name the reward and the prompt", function()
  local function refuse(f, ...)
    local sampler = sampler_of { rewards = { mine = f }, reward_seconds = 0.2 }
    local trainer = trainer_of(sampler)
    testing.expect_error(function() sampler:rollout(trainer, 0) end,
      "the reward 'mine' (rl_language_spec.lua:", ") of example ", ...)
  end
  refuse(function() error "no such answer" end, "rl_language_spec.lua", "no such answer")
  refuse(function() end, "expected a finite number or a boolean, got nil")
  refuse(function() return 0 / 0 end, "expected a finite number or a boolean, got ", "nan")
  refuse(function() return math.huge end, "got inf")
  refuse(function() return "1" end, "got \"1\"")
  refuse(function() error { code = 7 } end, "table {code = 7}")
  local function count_to(n)
    local i = 0
    while i < n do i = i + 1 end
  end
  for _ = 1, 200 do count_to(1000) end  -- its loop is compiled now
  refuse(function() count_to(math.huge) end,
    "it ran longer than reward_seconds, 0.2 s")
  refuse(function() local s = 0 for i = 1, 1e300 do s = s + i end return s end, "reward_seconds")
  refuse(function() while true do pcall(count_to, math.huge) end end, "reward_seconds, 0.2 s")
  local line = debug.getinfo(1, "l").currentline + 1
  refuse(function() return "1" end, ("(rl_language_spec.lua:%d)"):format(line), 'completion "')
  assert(jit.status() and not debug.gethook())
end)

test("what a sampler refuses", function()
  local function refuse(text, more) testing.expect_error(function() sampler_of(more) end, text) end
  refuse("num_generations is 1, but advantages = 'grpo'", { num_generations = 1 })
  refuse("model: expected a model of redco.models, got number 1", { model = 1 })
  for name, what in pairs { bert = "BertForMaskedLM",
    t5_relu_tied = "T5ForConditionalGeneration, which has an encoder" } do
    refuse("model: expected a decoder that writes text, got a " .. what,
      { model = redco.models.from_pretrained(source .. "/tests/cases/" .. name) })
  end
  refuse("rewards: expected a table {name = function}, got an empty one", { rewards = {} })
  refuse("rewards.a: expected a function, got number 1", { rewards = { a = 1 } })
  refuse("num_workers", { num_workers = -1 })
  refuse("reward_seconds", { reward_seconds = "1" })
  refuse("reward_weights.lo: there is no such reward", { reward_weights = { lo = 1 } })
  refuse("examples: expected a list or a data set", { examples = {} })
  refuse('advantages = "gae" needs scores and a critic', { advantages = "gae" })
  refuse("got function", { value = function() end })
  refuse("kl_coef = 0.1 needs scores and reference", { kl_coef = 0.1 })
  refuse("temperature: expected a number above 0", { temperature = 0 })
  refuse("did you mean 'num_prompts'", { num_prompt = 3 })
  refuse("did you mean 'grpo'", { advantages = "gppo" })
  refuse("max_completion_length is 5000", { max_completion_length = 5000 })
  local most = llama.config.max_position_embeddings
  local long = {}
  for i = 1, most do long[i] = 5 end
  local function refuse_prompt(prompt, ...)
    local sampler = sampler_of { examples = { { prompt = prompt } } }
    local trainer = trainer_of(sampler)
    testing.expect_error(function() sampler:rollout(trainer, 0) end, "example 1: ", ...)
  end
  refuse_prompt(long, ("the prompt has %d tokens"):format(most), "max_completion_length, 6")
  refuse_prompt("text", "a text needs the option tokenizer")
  refuse_prompt({}, "got an empty list")
  refuse_prompt(nil, "got nil")
  local texts = sampler_of { examples = { "text" } }
  testing.expect_error(function() texts:rollout(trainer_of(texts), 0) end,
    'example 1: expected a table with a prompt, got "text"')
  local sampler = sampler_of()
  testing.expect_error(function()
    sampler:rollout(trainer_of(sampler_of()), 0)  -- with the state of another one
  end, "the Trainer needs custom_state = sampler.state")
  -- Before the first rollout.
  for message, o in pairs {
    ["needs a function of params that returns the parameters of the reference model"] =
      { beta = 0.1 },
    ["did you mean 'grpo'"] = { loss_type = "gppo" },
    ["epsilon: expected a number from 0"] = { epsilon = -1 },
  } do
    testing.expect_error(function() sampler_of():loss_fn(o) end, message)
  end
  testing.expect_error(function()
    sampler_of({ scores = false }):loss_fn { importance_sampling_cap = 2 }
  end, "importance_sampling_cap needs sampler_logps and old_logps")
end)

test("a warning says that a reward is the same for all", function()
  local native = require "redco.native"
  local show, shown = native.notice, {}
  function native.notice(text) shown[#shown + 1] = text end
  local ok, message = pcall(function()
    for _, f in ipairs { function() return 0.1 end, function(tokens) return tokens[1] end } do
      local sampler = sampler_of { rewards = { mine = f } }
      sampler:rollout(trainer_of(sampler), 0)
    end
  end)
  native.notice = show
  assert(ok, message)
  testing.expect_equal(#shown, 1)
  assert(shown[1]:find("the samples of a rollout teach nothing", 1, true), shown[1])
end)

test("texts and messages with a tokenizer", function()
  local dir = source .. "/tests/cases/gpt2"
  local model, tokenizer = redco.models.from_pretrained(dir), redco.Tokenizer.from_pretrained(dir)
  model.generation_config = {}
  local seen = {}
  local sampler = language.sampler { model = model, tokenizer = tokenizer, num_prompts = 1,
    num_generations = 2, max_completion_length = 4,
    examples = { { prompt = "a red heart", color = "red" } },
    rewards = { mine = function(text, example, sample)
      seen[#seen + 1] = { text, example.color, #sample.tokens }
      return #text
    end } }
  local trainer = trainer_of(sampler, {}, { params = model.params })
  testing.expect_equal(#sampler:rollout(trainer, 0), 2)
  testing.expect_equal(type(seen[1][1]), "string")
  testing.expect_equal(seen[2][2], "red")
  testing.expect_equal(seen[2][3], 4)
  local empty = language.sampler { model = model, tokenizer = tokenizer, num_prompts = 1,
    num_generations = 2, max_completion_length = 4, examples = { { prompt = "" } },
    rewards = { mine = function() return 0 end } }
  local other = trainer_of(empty, {}, { params = model.params })
  testing.expect_error(function() empty:rollout(other, 0) end,
    "sampler: example 1: the prompt has no tokens")
end)

testing.finish()
