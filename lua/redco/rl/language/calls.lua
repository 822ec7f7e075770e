--- Calls of a script's functions, the rewards and tools of a sampler: shared among the processes of
--- a run, and among threads of each.
local fail = require "redco.fail"
local native = require "redco.native"
local rewards = require "redco.rl.language.rewards"
local tools = require "redco.rl.language.tools"
local without_position = require "redco.without_position"

local Calls = {}
Calls.__index = Calls

-- The seed of a call. A generator reads 32 bits; the seeds of the calls of a sample differ.
local function seed_of(item)
  return (item.sample.seed + item.place * 2246822519) % 2 ^ 32
end

-- Returns the function of one item: {sample, reward}, a name, or {sample, call}. Its upvalues are
-- named as in the options, because errors of copies show them.
local function new_call(o)
  local where, seconds, is_raised = o.where, o.seconds, o.tool_errors == "raise"
  local of_reward, rewards_of, call_tool = {}, rewards.of, tools.call
  for _, reward in ipairs(o.rewards) do of_reward[reward.name] = reward end
  local function new(rewards, tools)  -- luacheck: ignore 431
    return function(item)
      jit.off()  -- in a thread's state; here it is off
      if item.reward then return rewards_of(where, rewards[item.reward], item.sample, seconds) end
      return call_tool(where, tools, item, seconds, is_raised)
    end
  end
  return new(of_reward, o.tools)
end

-- Returns the results of these items, computed by this process.
local function map(self, items)
  local seeds, results, hung = {}, nil, nil
  for i, item in ipairs(items) do seeds[i] = seed_of(item) end
  local function run() results, hung = self.calls:map(items, seeds, self.o.seconds) end
  if self.o.num_workers == 0 then
    rewards.uncompiled(run)
  else
    local ok, message = pcall(run)
    if not ok then fail("%s", without_position(message)) end
  end
  if not hung then return results end
  local item = items[hung]
  local message = ("it did not return within %g s, reward_seconds: it waits in a function of C, "
    .. "which only the end of the program ends"):format(self.o.seconds)
  for _, reward in ipairs(self.o.rewards) do
    if reward.name == item.reward then
      rewards.fail(self.o.where, reward, item.sample, message)
    end
  end
  tools.fail(self.o.where, item, message)
end

--- Returns the results of all items, each computed by one process: trees. All processes must call
--- it with the same items. An item has sample, place, its number among those of the sample, and
--- either reward, a name, or call, that of a tool.
function Calls:map(items)
  local deployer = self.o.deployer
  if not deployer or deployer.n_processes == 1 then return map(self, items) end
  if #items == 0 then return {} end
  local size = deployer.n_processes
  local parts = deployer:alone(function()
    local own = {}
    for i = deployer.process_id + 1, #items, size do own[#own + 1] = items[i] end
    return map(self, own)
  end)
  local results = {}
  for i = 1, #items do results[i] = parts[(i - 1) % size + 1][math.floor((i - 1) / size) + 1] end
  return results
end

--- `o` has where, rewards, a list of {name, f, place}, tools, functions by name, tool_errors,
--- seconds, num_workers and deployer, or false.
return function(o)
  return setmetatable({ o = o,
    calls = native.new_calls(new_call(o), "num_workers", o.num_workers, o.where) }, Calls)
end
