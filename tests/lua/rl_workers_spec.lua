-- Rewards and tools of redco.rl.language in worker threads: results, errors, and limits of time.
local policies = require "calling_policy"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local test, expect_equal, expect_error = testing.test, testing.expect_equal, testing.expect_error
local folder = testing.folder()
local model, tokenizer = policies.new()
local deployer = redco.Deployer { seed = 1, verbose = false }

local function sampler_of(more)
  local all = { model = model, tokenizer = tokenizer, deployer = deployer, seed = 3,
    examples = { { prompt = { { role = "user", content = "look" } }, bonus = { 1, 2 } } },
    rewards = function(text) return #text end, num_prompts = 2, num_generations = 2,
    max_completion_length = 12, num_workers = 2 }
  for name, value in pairs(more or {}) do all[name] = value end
  return redco.rl.language.sampler(all)
end

local function rollout(sampler)
  local trainer = redco.Trainer { deployer = deployer, custom_state = sampler.state,
    params = redco.tree.map(function(p) return p:detach():clone() end, model.params),
    optimizer = redco.optim.adamw { learning_rate = 1e-3 }, collate_fn = sampler.collate_fn,
    loss_fn = sampler:loss_fn {} }
  sampler:rollout(trainer, 0)
  return sampler.state.tensors
end

-- Runs a program that ends when `n` of them have run at once.
local function meet(name, n)
  local path = folder .. "/" .. name
  local pipe = io.popen(("touch %s.$$; until [ $(ls %s.* | wc -l) -ge %d ]; do sleep 0.02; done")
    :format(path, path, n))
  pipe:read "*a"
  pipe:close()
end

test("the same rewards with any number of threads, also random ones", function()
  local expected
  for _, n in ipairs { 0, 1, 3 } do
    local tensors = rollout(sampler_of { num_workers = n, reward_weights = { noise = 2 },
      rewards = {
        length = function(text, example) return #text + example.bonus[2] end,
        noise = function() return math.random() + torch.rand({ 1 }):item() end,
        turn = function(_, _, sample) return sample.finish_reason == "stop" end,
      } })
    expected = expected or tensors
    for name, values in pairs(expected.metrics) do
      testing.expect_close(tensors.metrics[name], values, 0, 0)
    end
  end
  assert(expected.metrics["rewards/noise/mean"]:std():item() > 0)
end)

test("rewards that wait for programs overlap", function()
  rollout(sampler_of { reward_seconds = 60, num_workers = 3, rewards = {
    a = function() meet("rewards", 3) return 1 end,
    b = function() meet("rewards", 3) return 1 end } })
end)

test("tools in threads", function()
  local texts
  for _, n in ipairs { 0, 2 } do
    local list
    rollout(sampler_of { num_workers = n, num_generations = 4, max_completion_length = 60,
      tools = { look = function(arguments, example, sample)
        if n > 0 and #sample.messages[#sample.messages].tool_calls > 1 then meet("tools", 2) end
        return { arguments.n, example.bonus, math.random() }
      end },
      on_rollout = function(samples) list = samples end })
    local own, n_calls = {}, 0
    for i, sample in ipairs(list) do
      own[i], n_calls = tokenizer:decode(sample.tokens), n_calls + sample.n_calls
    end
    texts = texts or table.concat(own, "\n")
    expect_equal(table.concat(own, "\n"), texts)
    assert(n_calls > 2)
  end
end)

test("errors have the reward, its line and the sample; the first in order is raised", function()
  local function refuse(f, ...)
    local sampler = sampler_of { rewards = { fine = function() return 1 end, mine = f },
      reward_seconds = 0.2 }
    expect_error(function() rollout(sampler) end, "rl.language.sampler: the reward 'mine' ",
      "(rl_workers_spec.lua:", "of example 1, prompt", ...)
  end
  refuse(function() error "no such answer" end, "rl_workers_spec.lua", "no such answer")
  refuse(function() return nil end, "expected a finite number or a boolean, got nil")
  refuse(function() while true do end end, "it ran longer than reward_seconds, 0.2 s")
  refuse(function() while true do pcall(function() while true do end end) end end,
    "it ran longer than reward_seconds, 0.2 s")
  expect_error(function()
    rollout(sampler_of { num_prompts = 1, rewards = {
      a = function() meet("errors", 2) error "the first" end,
      b = function() meet("errors", 2) error "the second" end } })
  end, "the reward 'a'", "the first")
end)

test("a function of C that does not return ends with an error; the next rollout goes on", function()
  local sampler = sampler_of { reward_seconds = 0.2, rewards = { mine = function()
    local pipe = io.popen("sleep 1000 & echo $! >> " .. folder .. "/pids; wait")
    return #pipe:read "*a"
  end } }
  for _ = 1, 2 do
    expect_error(function() rollout(sampler) end, "the reward 'mine' (rl_workers_spec.lua:",
      "it did not return within 0.2 s, reward_seconds: it waits in a function of C")
  end
  rollout(sampler_of())
  -- A program gets the signals that its thread does not.
  local kill = "pids=$(cat %s/pids); kill $pids; for i in $(seq 200); do "
    .. "kill -0 $pids 2> /dev/null || exit 0; sleep 0.05; done; kill -9 $pids; exit 1"
  expect_equal(os.execute(kill:format(folder)), 0)
end)

test("what cannot be copied is named", function()
  local thread = coroutine.create(print)
  expect_error(function() sampler_of { rewards = { mine = function() return thread end } } end,
    "rl.language.sampler: num_workers: upvalue 'rewards' -> field 'mine' -> field 'f' -> "
      .. "upvalue 'thread' is a coroutine")
  expect_error(function()
    rollout(sampler_of { examples = { { prompt = { { role = "user", content = "look" } },
      other = thread } } })
  end, "rl.language.sampler: the argument: field 'sample' -> field 'example' -> field 'other' is "
    .. "a coroutine")
end)

testing.finish()
