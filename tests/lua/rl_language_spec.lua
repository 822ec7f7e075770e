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

test("what a loss refuses", function()
  local function refuse(text, more) testing.expect_error(function() loss_of(more) end, text) end
  refuse("did you mean 'dapo'?", { loss_type = "dapoo" })
  refuse("beta = 0.1 needs the log-probabilities of a reference model", { beta = 0.1 })
  refuse("old_logps: expected the shape of logps", { old_logps = old_logps:narrow(1, 0, 2) })
  refuse("advantages: expected [2]", { advantages = torch.zeros { 3 } })
  refuse("max_completion_length", { loss_type = "dr_grpo" })
  refuse("importance_sampling_cap needs sampler_logps", { importance_sampling_cap = 2 })
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
  local sampler = sampler_of { num_prompts = 4, num_iterations = 2, temperature = 0.7 }
  local steps = fit(sampler, trainer_of(sampler), 3)
  testing.expect_equal(#steps, 12)
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
      "the reward 'mine' of example ", ...)
  end
  refuse(function() error "no such answer" end, "rl_language_spec.lua", "no such answer")
  refuse(function() end, "expected a finite number or a boolean, got nil")
  refuse(function() return 0 / 0 end, "expected a finite number or a boolean, got ", "nan")
  refuse(function() return math.huge end, "got inf")
  refuse(function() return "1" end, "got \"1\"")
  local function count_to(n)
    local i = 0
    while i < n do i = i + 1 end
  end
  for _ = 1, 200 do count_to(1000) end  -- its loop is compiled now
  refuse(function() count_to(math.huge) end,
    "it ran longer than reward_seconds, 0.2 s of processor time")
  refuse(function() local s = 0 for i = 1, 1e300 do s = s + i end return s end, "reward_seconds")
  assert(jit.status() and not debug.gethook())
end)

test("what a sampler refuses", function()
  local function refuse(text, more) testing.expect_error(function() sampler_of(more) end, text) end
  refuse("num_generations is 1, but advantages = 'grpo'", { num_generations = 1 })
  refuse("rewards: expected a table {name = function}, got an empty one", { rewards = {} })
  refuse("rewards.a: expected a function, got number 1", { rewards = { a = 1 } })
  refuse("reward_weights.lo: there is no such reward", { reward_weights = { lo = 1 } })
  refuse("examples: expected a list or a data set", { examples = {} })
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
  testing.expect_error(function() sampler_of():loss_fn { beta = 0.1 } end,
    "needs a function of params that returns the parameters of the reference model")
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
end)

testing.finish()
