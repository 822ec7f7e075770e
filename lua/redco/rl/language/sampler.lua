--- Samples for reinforcement learning with language models: groups of completions of each prompt,
--- with rewards and advantages.
local advantages_of = require "redco.rl.language.advantages"
local arguments = require "redco.arguments"
local check_choice = require "redco.check_choice"
local check_decoder = require "redco.generation.check_decoder"
local check_integer = require "redco.check_integer"
local new_calls = require "redco.rl.language.calls"
local checks = require "redco.preference.checks"
local credit = require "redco.rl.language.credit"
local fail = require "redco.fail"
local generation_options = require "redco.generation.options"
local loss_of = require "redco.rl.language.loss"
local native = require "redco.native"
local registry = require "redco.registry"
local rewards = require "redco.rl.language.rewards"
local rollout = require "redco.rl.language.rollout"
local samples = require "redco.rl.language.samples"
local tools = require "redco.rl.language.tools"
local torch = require "redco.torch"
local warn = require "redco.warn"

local where = "rl.language.sampler"

local methods = registry.define("LanguageSampler", [[
LanguageSampler {state: table, collate_fn: function}
Lets a policy write completions of prompts, and judges them.
  state: the samples of the current epoch. A Trainer needs it as its custom_state
  collate_fn: a Trainer needs it as its collate_fn]], {})

local meta = { __name = "LanguageSampler" }

function meta.__index(_, key)
  return methods[key] or fail("a LanguageSampler has no '%s'", key)
end

methods.rollout = registry.define("LanguageSampler:rollout", [[
rollout(self, trainer: Trainer, epoch_idx) -> list
Samples completions with the trainer's current parameters, judges and scores them, and returns what
`Trainer:fit` needs as train_examples: num_prompts * num_generations samples, num_iterations times.
If `state` is that of a checkpoint of the same epoch, its samples are used again. On several
processes all must call it.]], function(self, trainer, epoch_idx)
  check_integer("LanguageSampler:rollout", "epoch_idx", epoch_idx, 0)
  local state = self.state
  if trainer.state.custom_state ~= state then
    fail("LanguageSampler:rollout: the Trainer needs custom_state = sampler.state: with it, "
      .. "checkpoints have the samples, and a resumed run continues within a rollout")
  end
  if state.epoch_idx ~= epoch_idx then
    local list = torch.no_grad(samples.of_epoch, self, trainer.params, epoch_idx)
    state.tensors = rollout.tensors(list, self.mask_truncated_completions)
    if self.scores then credit.score(self, trainer, state.tensors) end
    credit.add_advantages(self, state.tensors)
    if state.tensors.advantages:abs():max():item() < 1e-6 then
      warn("%s: the samples of a rollout teach nothing: those of each prompt have the same reward",
        where)
    end
    state.epoch_idx = epoch_idx
    if self.on_rollout then self.on_rollout(list, epoch_idx) end
  end
  local numbers, n = {}, self.num_prompts * self.num_generations
  for i = 1, n * self.num_iterations do numbers[i] = (i - 1) % n + 1 end
  return numbers
end)

-- Refuses settings of the loss before the first rollout, which may take long.
local function check_loss(self, settings)
  local zeros = torch.zeros { 1, 1 }
  local all = { logps = zeros, labels = zeros, advantages = zeros:view { 1 },
    max_completion_length = 1, ref_logps = zeros }
  if self.scores then all.old_logps, all.sampler_logps = zeros, zeros end
  for name, value in pairs(settings) do all[name] = value end
  loss_of(all)
end

local loss_options = arguments("LanguageSampler:loss_fn",
  { loss_type = "grpo", beta = 0, entropy = true },
  { "reference", "delta", "epsilon", "epsilon_high", "importance_sampling_cap", "vf_coef",
    "cliprange_value" })

methods.loss_fn = registry.define("LanguageSampler:loss_fn", [[
loss_fn(self, {reference: function = nil, entropy: boolean = true, loss_type: string = "grpo",
  beta: number = 0, epsilon: number = 0.2, epsilon_high: number = nil, delta = nil,
  importance_sampling_cap: number = nil, vf_coef: number = 0.1, cliprange_value: number = 0.2}) -> function
Returns the loss_fn of a Trainer: `redco.rl.language.loss` of the sampler's batches, with these
options of it. Dropout is off, as it was when the tokens were drawn.
  reference: reference(params) returns the parameters of the reference model, for beta above 0.
    `redco.lora.base` is the policy without its adapters. By default that of the sampler
  entropy: whether the metric entropy is computed, which reads the head's weights once more]],
function(self, given)
  local o = loss_options(given)
  local reference = o.reference or self.reference
  if o.beta ~= 0 and type(reference) ~= "function" then
    fail("LanguageSampler:loss_fn: reference: beta = %s needs a function of params that returns "
      .. "the parameters of the reference model, got %s", tostring(o.beta),
      native.describe(o.reference))
  end
  local settings = {}
  for name, value in pairs(o) do settings[name] = value end
  settings.reference, settings.entropy = nil, nil
  check_loss(self, settings)
  return function(_, _, params, batch)
    local all = { max_completion_length = self.max_completion_length }
    for name, value in pairs(settings) do all[name] = value end
    all.logps, all.entropies, all.values = credit.forward(self, params, batch, o.entropy)
    if o.beta ~= 0 then
      all.ref_logps = credit.reference_logps(self, reference, params, batch)
    end
    for _, name in ipairs { "labels", "advantages", "old_logps", "old_values", "returns" } do
      all[name] = batch[name]
    end
    if o.importance_sampling_cap then all.sampler_logps = batch.sampler_logps end
    local loss, weight, metrics = loss_of(all)
    for name, values in pairs(batch.metrics) do
      metrics[name] = torch.stack { values:sum(), torch.full_like(values:sum(), values:size(0)) }
    end
    return loss, weight, metrics
  end
end)

methods.evaluate = registry.define("LanguageSampler:evaluate", [[
evaluate(self, params: table, examples: list or Dataset, {temperature: number = 0, seed = 0}) -> {reward, rewards, samples}
Completes the prompts of examples, once each, and judges the completions. Returns the mean reward,
the means of each reward by name, and the samples: tables with example, completion, reward, tokens
and finish_reason. On several processes all must call it.
  examples: as those of the sampler
  temperature: 0 takes the most probable tokens]], function(self, params, examples, given)
  local o = arguments("LanguageSampler:evaluate", { temperature = 0, seed = 0 })(given)
  if (type(examples) ~= "table" and type(examples) ~= "userdata") or #examples == 0 then
    fail("LanguageSampler:evaluate: examples: expected a list with examples, got %s",
      native.describe(examples))
  end
  local items = {}
  for i = 1, #examples do
    local prompt, text = samples.prompt_of(self, examples[i], i)
    items[i] = { example = examples[i], number = i, prompt = prompt, text = text }
  end
  local choice = {}
  for name, value in pairs(self.choice) do choice[name] = value end
  choice.temperature = o.temperature
  local seeds = torch.randint(0, 2 ^ 31, { #items }, { generator = torch.Generator(o.seed) })
  local list = torch.no_grad(samples.complete, self, params, items, 1, choice, seeds:tolist())
  samples.judge(self, list)
  local result = { reward = 0, rewards = {}, samples = list }
  for _, sample in ipairs(list) do
    result.reward = result.reward + sample.reward / #list
    for _, reward in ipairs(self.rewards) do
      local value = sample.numbers["rewards/" .. reward.name .. "/mean"]
      result.rewards[reward.name] = (result.rewards[reward.name] or 0) + value / #list
    end
  end
  return result
end)

local choices = { "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "eos_token_id" }

local options = arguments(where, {
  num_prompts = 8, num_generations = 8, num_iterations = 1, max_completion_length = 256,
  advantages = "grpo", filter_groups = false, max_rounds = 8, mask_truncated_completions = false,
  scores = true, per_device_batch_size = 8, max_rows = 64, reward_seconds = 60,
  num_workers = 0, seed = 0, cache_implementation = "dynamic",
  temperature = 1, kl_coef = 0, kl_estimator = "k1", gamma = 1, lambda = 0.95,
  whiten_rewards = false, max_tool_calling_iterations = 8, tool_errors = "answer",
}, { "model", "tokenizer", "deployer", "examples", "rewards", "reward_weights", "tools", "policy",
  "value", "reference", "state", "max_length", "on_rollout", "top_k", "top_p", "min_p",
  "repetition_penalty", "eos_token_id" })

local function check(o)
  check_decoder(where, o.model)
  if (type(o.examples) ~= "table" and type(o.examples) ~= "userdata") or #o.examples == 0 then
    fail("%s: examples: expected a list or a data set of tables with a prompt, got %s", where,
      type(o.examples) == "table" and "an empty list" or native.describe(o.examples))
  end
  for _, name in ipairs { "num_prompts", "num_generations", "num_iterations", "max_rounds",
    "max_completion_length", "per_device_batch_size", "max_rows" } do
    check_integer(where, name, o[name], 1)
  end
  check_integer(where, "seed", o.seed, 0)
  check_integer(where, "max_tool_calling_iterations", o.max_tool_calling_iterations, 0)
  check_integer(where, "num_workers", o.num_workers, 0, 1024)
  checks.number(where, o, "reward_seconds", 0, math.huge)
  check_choice(where, "tool_errors", o.tool_errors, "answer", "raise")
  if type(o.temperature) ~= "number" or not (o.temperature > 0 and o.temperature < math.huge) then
    fail("%s: temperature: expected a number above 0, got %s", where, tostring(o.temperature))
  end
  checks.number(where, o, "kl_coef", 0, math.huge)
  check_choice(where, "kl_estimator", o.kl_estimator, "k1", "k3")
  if o.kl_coef > 0 and (type(o.reference) ~= "function" or not o.scores) then
    fail("%s: kl_coef = %s needs scores and reference, a function of params that returns the "
      .. "parameters of the reference model", where, o.kl_coef)
  end
  if (o.advantages == "gae") ~= (type(o.value) == "function") or (o.value and not o.scores) then
    fail("%s: value: advantages = \"gae\" needs scores and a critic, a function value(params, "
      .. "hidden_states, inputs), and nothing else does; got %s", where, native.describe(o.value))
  end
  if o.advantages == "gae" then return end
  advantages_of(torch.rand { 2, 2 }, { kind = o.advantages })  -- refuses unknown kinds now
  if o.num_generations == 1 and o.advantages ~= "reinforce_plus_plus" then
    fail("%s: num_generations is 1, but advantages = '%s' compares the samples of a prompt: sample "
      .. "2 or more, or use 'reinforce_plus_plus'", where, tostring(o.advantages))
  end
end

return registry.define("redco.rl.language.sampler", [[
sampler{model, examples: list or Dataset, rewards: table or function, tokenizer = nil, deployer = nil,
  num_prompts: integer = 8, num_generations: integer = 8, max_completion_length: integer = 256,
  num_iterations: integer = 1, reward_weights: table = nil, reward_seconds: number = 60,
  num_workers: integer = 0,
  advantages: string = "grpo", filter_groups: boolean = false, max_rounds: integer = 8,
  mask_truncated_completions: boolean = false, scores: boolean = true, per_device_batch_size = 8,
  temperature: number = 1, top_k = nil, top_p: number = nil, min_p = nil,
  repetition_penalty: number = nil, eos_token_id = nil, max_rows: integer = 64, max_length = nil,
  cache_implementation = "dynamic", value: function = nil, reference: function = nil, kl_coef: number = 0, kl_estimator = "k1",
  gamma: number = 1, lambda: number = 0.95, whiten_rewards: boolean = false,
  tools: table = nil, max_tool_calling_iterations: integer = 8, tool_errors = "answer", seed = 0,
  policy: function = nil, state: table = nil, on_rollout: function = nil} -> LanguageSampler
Creates a sampler for a Trainer of a language model. An epoch of the Trainer is a rollout:
num_prompts prompts, num_generations completions of each, drawn with the parameters at its beginning.
Samples depend on the seed, the epoch and the parameters, not on the layout.
  examples: tables with `prompt`, a text, a list of messages or a list of tokens, and whatever else
    the rewards need. Each pass visits them in another order
  rewards: functions by name. reward(completion, example, sample) returns a number or a boolean.
    `completion` is the text, or without a tokenizer the list of tokens; `sample` has tokens and
    finish_reason. An error in a reward, and a result that is not a finite number, end the run with
    an error that names the reward, its file and line, and the prompt. On several processes one of
    them judges each sample. Random numbers that a reward draws depend on the sample alone
  reward_weights: their factors by name, 1 by default; a sample's reward is the weighted sum
  reward_seconds: the time after which a call of a reward or a tool is an error. A function of C that
    never returns, such as a read from a program, is ended only with num_workers: the sampler raises
    the error three seconds later and leaves the thread until the program ends
  num_workers: the number of threads that call rewards and tools, so that slow ones, which run
    programs for example, overlap. Each has a separate Lua state: the functions are copied to it
    when the sampler is made, as `redco.Trainer` copies collate_fn, and samples at each call; what
    a call changes is not seen here. The results are the same for any number
  tools: functions that answer the calls in completions, by name, as Lua functions or tables with
    call, description and parameters, a JSON schema. Prompts must be lists of messages, and the chat
    template must write a call as a JSON object. call(arguments, example, sample) returns a text, a
    number, a boolean or a table. Answers count for max_completion_length, and are not trained;
    `completion` is then the last turn, and sample.messages has all
  max_tool_calling_iterations: how many turns of a completion are answered
  tool_errors: "answer": the model gets the error of a tool; "raise": it ends the run
  num_iterations: how often each sample is trained
  advantages: a kind of `redco.rl.language.advantages`; or "gae", those of tokens by
    `redco.rl.language.gae`, with `value`, gamma, lambda and whiten_rewards
  value: a critic: value(params, hidden_states [n, length, size], inputs) returns what it expects
    before each label, [n, length]. `params` are the Trainer's, the hidden states those that the
    policy's head reads; `inputs` has input_ids and labels, for a critic with a model
  kl_coef: the factor of the divergence from the reference model that is subtracted from rewards: of
    each token with "gae", else of samples. kl_estimator: of each token; "k1" is logp - ref, "k3"
    exp(ref - logp) - (ref - logp) - 1
  reference: reference(params) returns the parameters of the reference model
  filter_groups: replaces prompts whose completions all have the same reward by further prompts, in
    up to max_rounds rounds of num_prompts (dynamic sampling of DAPO)
  mask_truncated_completions: completions that max_completion_length has cut are not trained
  scores: computes log-probabilities by the trainer's forward pass before the first step, in batches
    of per_device_batch_size, which should be that of `fit`: then the first step's log-probabilities
    are the same numbers. Without it each step compares with itself, which is right if each sample is
    used in one step only
  policy: policy(params) returns the model's parameters among those of the Trainer; by default all
  state: the custom_state of a checkpoint
  on_rollout: on_rollout(samples, epoch_idx) is called with new samples
temperature, top_k, top_p, min_p, repetition_penalty and eos_token_id are as in
`GenerationBatch:add`; max_rows, max_length, cache_implementation and deployer as in
`redco.models.new_batch`.]],
function(given)
  local o = options(given)
  check(o)
  local self = { order_of = -1, state = o.state or { epoch_idx = -1 }, choice = {} }
  for name, value in pairs(o) do
    if name ~= "rewards" and name ~= "state" then self[name] = value end
  end
  for _, name in ipairs { "tokenizer", "deployer", "policy", "on_rollout", "order", "value",
    "reference", "tools" } do
    if self[name] == nil then self[name] = false end
  end
  for _, name in ipairs(choices) do self.choice[name] = o[name] end
  self.state.num_tokens = self.state.num_tokens or 0  -- as trl counts them
  self.rewards = rewards.read(where, o.rewards, o.reward_weights)
  if o.tools then
    self.tools, self.is_end = tools.read(where, o.tools, o.tokenizer), {}
    local eos = o.eos_token_id or generation_options.read(o.model).eos
    for _, token in ipairs(type(eos) == "table" and eos or { eos }) do self.is_end[token] = true end
  end
  self.calls = new_calls { where = where, rewards = self.rewards, deployer = self.deployer,
    tools = self.tools and self.tools.by_name or {}, tool_errors = o.tool_errors,
    seconds = o.reward_seconds, num_workers = o.num_workers }
  local positions = generation_options.n_positions(o.model)
  self.max_length = o.max_length or positions
    or fail("%s: max_length is missing, and the model has no greatest number of positions", where)
  check_integer(where, "max_length", self.max_length, 2, positions)
  if self.max_completion_length >= self.max_length then
    fail("%s: max_completion_length is %d, but a row has at most %d tokens with its prompt", where,
      self.max_completion_length, self.max_length)
  end
  function self.collate_fn(numbers) return rollout.batch(self.state.tensors, numbers) end
  return setmetatable(self, meta)
end)
