--- Samples of a policy: completions of prompts, with their rewards. Functions of a LanguageSampler.
local credit = require "redco.rl.language.credit"
local fail = require "redco.fail"
local native = require "redco.native"
local new_batch = require "redco.generation.batch"
local tools = require "redco.rl.language.tools"
local torch = require "redco.torch"

local where = "rl.language.sampler"
local samples = {}

--- Returns the tokens of example i's prompt and a text of it for messages.
function samples.prompt_of(self, example, i)
  if type(example) ~= "table" then
    fail("%s: example %d: expected a table with a prompt, got %s", where, i,
      native.describe(example))
  end
  local prompt = example.prompt
  if torch.is_tensor(prompt) then prompt = prompt:tolist() end
  local tokens, text = prompt, nil
  if type(prompt) == "string" and self.tokenizer then
    tokens, text = self.tokenizer:encode(prompt), prompt
  elseif type(prompt) == "table" and type(prompt[1]) == "table" and self.tokenizer then
    tokens = self.tokenizer:apply_chat_template(prompt, { add_generation_prompt = true,
      variables = self.tools and self.tools.variables or nil })
  elseif type(prompt) ~= "table" or type(prompt[1]) ~= "number" then
    fail("%s: example %d: prompt: expected a text, a list of messages or of tokens%s, got %s",
      where, i, self.tokenizer and "" or "; a text needs the option tokenizer",
      type(prompt) == "table" and "an empty list" or native.describe(prompt))
  end
  if self.tools and (type(prompt) ~= "table" or type(prompt[1]) ~= "table") then
    fail("%s: example %d: prompt: tools need a list of messages", where, i)
  end
  if #tokens == 0 then fail("%s: example %d: the prompt has no tokens", where, i) end
  local room = self.max_length - self.max_completion_length
  if #tokens > room then
    fail("%s: example %d: the prompt has %d tokens, but the model's %d positions leave %d before "
      .. "max_completion_length, %d", where, i, #tokens, self.max_length, room,
      self.max_completion_length)
  end
  return tokens, text or (self.tokenizer and self.tokenizer:decode(tokens))
    or table.concat(tokens, " ")
end

-- A generator reads 32 bits of a seed; the seeds of the turns of a sample differ.
local function seed_of(sample)
  return (sample.seed + (sample.n_turns - 1) * 2654435761) % 2 ^ 32
end

-- Adds a row for the next turn of a sample.
local function begin_turn(self, batch, sample, options)
  sample.n_turns = sample.n_turns + 1
  local given = { max_new_tokens = self.max_completion_length - #sample.tokens,
    logprobs = "sampled", seed = seed_of(sample), first = sample.n_turns > 1 }
  for name, value in pairs(options) do given[name] = value end
  local tokens = {}
  for i, token in ipairs(sample.prompt) do tokens[i] = token end
  for _, token in ipairs(sample.tokens) do tokens[#tokens + 1] = token end
  return batch:add(tokens, given)
end

-- Adds the tokens of a turn that has ended. Returns whether it calls tools that may answer.
local function end_turn(self, sample, row)
  for i, token in ipairs(row.tokens) do
    table.insert(sample.tokens, token)
    table.insert(sample.logprobs, row.logprobs[i])
  end
  sample.finish_reason = row.finish_reason
  sample.completion = self.tokenizer
    and self.tokenizer:decode(row.tokens, { skip_special_tokens = true }) or row.tokens
  if not self.tools then return false end
  local message = tools.message(self, sample.completion)
  table.insert(sample.messages, message)
  if row.finish_reason ~= "stop" or not message.tool_calls then return false end
  if sample.n_turns <= self.max_tool_calling_iterations then return true end
  sample.finish_reason = "tool_calls"
  return false
end

-- Appends the answers of tools to a sample. Returns whether there is room for another turn. If not,
-- drops the answers.
local function add_answers(self, sample)
  local between = tools.tokens_between(self, where, sample.messages)
  if #sample.tokens + #between >= self.max_completion_length then
    while sample.messages[#sample.messages].role == "tool" do table.remove(sample.messages) end
    sample.finish_reason = "length"
    return false
  end
  for _, token in ipairs(between) do
    table.insert(sample.tokens, token)
    table.insert(sample.logprobs, false)
  end
  return true
end

--- Lets the policy complete each prompt `n` times. Returns the samples; those of a prompt are
--- adjacent. A sample has the tokens behind its prompt, and their log-probabilities: false for
--- tokens that tools have written.
function samples.complete(self, params, items, n, options, seeds)
  params = credit.params_of(self, "policy", self.policy, params)
  local batch = new_batch(self.model, params, { max_rows = self.max_rows,
    max_length = self.max_length, kept_rows = self.tools and self.max_rows or 0,
    cache_implementation = self.cache_implementation, deployer = self.deployer or nil })
  local list, of_row = {}, {}
  for _, item in ipairs(items) do
    for _ = 1, n do
      local sample = { example = item.example, number = item.number, text = item.text,
        prompt = item.prompt, seed = seeds[#list + 1], place = #list + 1,
        tokens = {}, logprobs = {}, n_turns = 0, n_calls = 0, n_failures = 0, messages = {} }
      list[#list + 1] = sample
      of_row[begin_turn(self, batch, sample, options)] = sample
    end
  end
  while not batch:is_idle() do
    local callers = {}
    for _, row in ipairs(batch:step()) do
      local sample = of_row[row]
      of_row[row] = nil
      if end_turn(self, sample, row) then callers[#callers + 1] = sample end
    end
    table.sort(callers, function(a, b) return a.place < b.place end)
    if #callers > 0 then tools.answer(self, callers) end
    for _, sample in ipairs(callers) do
      if add_answers(self, sample) then
        of_row[begin_turn(self, batch, sample, options)] = sample
      end
    end
  end
  return list
end

--- Adds to each sample its reward, the weighted sum, and its numbers for the log.
function samples.judge(self, list)
  local items, n = {}, #self.rewards
  for _, sample in ipairs(list) do
    for k, reward in ipairs(self.rewards) do
      items[#items + 1] = { sample = sample, reward = reward.name, place = sample.n_calls + k }
    end
  end
  local values = self.calls:map(items)
  for i, sample in ipairs(list) do
    sample.reward, sample.numbers = 0, {}
    for k, reward in ipairs(self.rewards) do
      local value = values[(i - 1) * n + k]
      sample.numbers["rewards/" .. reward.name .. "/mean"] = value
      sample.reward = sample.reward + reward.weight * value
    end
    local n_own = 0
    for _, logprob in ipairs(sample.logprobs) do n_own = n_own + (logprob and 1 or 0) end
    sample.numbers.reward = sample.reward
    sample.numbers["completions/mean_length"] = n_own
    sample.numbers["completions/clipped_ratio"] = sample.finish_reason == "length" and 1 or 0
    if self.tools then sample.numbers["tools/call_frequency"] = sample.n_calls end
  end
end

-- Returns the mean, the least and the greatest number of a list, and its sample standard deviation;
-- zeros for an empty list.
local function statistics(list)
  local n, sum, least, greatest, squares = #list, 0, math.huge, -math.huge, 0
  if n == 0 then return 0, 0, 0, 0 end
  for _, value in ipairs(list) do
    sum, least, greatest = sum + value, math.min(least, value), math.max(greatest, value)
  end
  for _, value in ipairs(list) do squares = squares + (value - sum / n) ^ 2 end
  return sum / n, least, greatest, n > 1 and math.sqrt(squares / (n - 1)) or 0
end

-- Adds to each sample the numbers of all samples of the rollout, which a log shows once.
local function add_statistics(self, list)
  local lengths, terminated, common = {}, {}, {}
  for i, sample in ipairs(list) do
    lengths[i] = sample.numbers["completions/mean_length"]
    if sample.finish_reason ~= "length" then terminated[#terminated + 1] = lengths[i] end
  end
  common.num_tokens = self.state.num_tokens
  local name, _ = "completions/", nil
  _, common[name .. "min_length"], common[name .. "max_length"] = statistics(lengths)
  common[name .. "mean_terminated_length"], common[name .. "min_terminated_length"],
    common[name .. "max_terminated_length"] = statistics(terminated)
  for _, reward in ipairs(self.rewards) do
    local values = {}
    for i, sample in ipairs(list) do
      values[i] = sample.numbers["rewards/" .. reward.name .. "/mean"]
    end
    common["rewards/" .. reward.name .. "/std"] = select(4, statistics(values))
  end
  if self.tools then
    local n_calls, n_failures = 0, 0
    for _, sample in ipairs(list) do
      n_calls, n_failures = n_calls + sample.n_calls, n_failures + sample.n_failures
    end
    common["tools/failure_frequency"] = n_failures / math.max(1, n_calls)
  end
  for _, sample in ipairs(list) do
    for key, value in pairs(common) do sample.numbers[key] = value end
  end
end

-- Returns the standard deviation of the rewards of a group.
local function deviation(list, first, n)
  local values = {}
  for i = 1, n do values[i] = list[first + i - 1].reward end
  local own = select(4, statistics(values))
  return own > 1e-8 and own or 0  -- equal rewards, but for rounding
end

-- Returns item k of an endless sequence that visits the examples in another order each time.
local function item_at(self, k)
  local size = #self.examples
  local pass = math.floor(k / size)
  if self.order_of ~= pass then
    self.order_of = pass
    self.order = torch.randperm(size,
      { generator = native.Rng(self.seed):fold_in(0):fold_in(pass) }):tolist()
  end
  local number = self.order[k % size + 1] + 1
  local example = self.examples[number]
  local prompt, text = samples.prompt_of(self, example, number)
  return { example = example, number = number, prompt = prompt, text = text }
end

-- Samples and judges `n` prompts from number `first` of the sequence on.
local function groups(self, params, first, n, epoch_idx)
  local items = {}
  for k = 1, n do items[k] = item_at(self, first + k - 1) end
  local seeds = torch.randint(0, 2 ^ 31, { n * self.num_generations }, {
    generator = native.Rng(self.seed):fold_in(epoch_idx + 1):fold_in(first) }):tolist()
  local list = samples.complete(self, params, items, self.num_generations, self.choice, seeds)
  samples.judge(self, list)
  for _, sample in ipairs(list) do
    self.state.num_tokens = self.state.num_tokens + #sample.prompt
      + sample.numbers["completions/mean_length"]
  end
  return list
end

--- Returns the samples of an epoch. With filter_groups those of prompts whose samples all have the
--- same reward are replaced by those of further prompts.
function samples.of_epoch(self, params, epoch_idx)
  local n, size = self.num_generations, self.num_prompts
  local rounds = self.filter_groups and self.max_rounds or 1
  local kept, flat = {}, {}
  for round = 0, rounds - 1 do
    local new = groups(self, params, (epoch_idx * rounds + round) * size, size, epoch_idx)
    for at = 1, #new, n do
      local own = deviation(new, at, n)
      local list = self.filter_groups and own == 0 and flat or kept
      for i = at, at + n - 1 do
        local numbers = new[i].numbers
        numbers.reward_std, numbers.frac_reward_zero_std = own, own == 0 and 1 or 0
        list[#list + 1] = new[i]
      end
    end
    if #kept >= size * n then break end
  end
  local chosen = {}
  for i = 1, size * n do chosen[i] = kept[i] or flat[i - #kept] end
  add_statistics(self, chosen)
  return chosen
end

return samples
