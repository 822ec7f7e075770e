--- Functions of a script that judge completions, and their limit of time.
local fail = require "redco.fail"
local native = require "redco.native"

local rewards = {}

-- Returns a function's place, "train.lua:12".
local function place_of(f)
  local info = debug.getinfo(f, "S")
  return ("%s:%d"):format(info.short_src, info.linedefined)
end

--- Returns a list of {name, f, weight, place} from the options of a sampler.
function rewards.read(where, functions, weights)
  if type(functions) == "function" then functions = { reward = functions } end
  if type(functions) ~= "table" or next(functions) == nil then
    fail("%s: rewards: expected a table {name = function}, got %s", where,
      type(functions) == "table" and "an empty one" or native.describe(functions))
  end
  local list = {}
  for name, f in pairs(functions) do
    if type(f) ~= "function" then
      fail("%s: rewards.%s: expected a function, got %s", where, tostring(name),
        native.describe(f))
    end
    list[#list + 1] = { name = tostring(name), f = f, weight = weights and weights[name] or 1,
      place = place_of(f) }
  end
  for name, weight in pairs(weights or {}) do
    if functions[name] == nil then
      fail("%s: reward_weights.%s: there is no such reward", where, tostring(name))
    end
    if type(weight) ~= "number" or weight - weight ~= 0 then
      fail("%s: reward_weights.%s: expected a number, got %s", where, tostring(name),
        native.describe(weight))
    end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

--- Calls f without compiled code, whose loops the limit of time could not end.
function rewards.uncompiled(f, ...)
  local was_on = jit.status()
  jit.off()
  jit.flush()
  local ok, message = pcall(f, ...)
  if was_on then jit.on() end
  if not ok then error(message, 0) end
end

--- Calls f as pcall does, and ends it with an error after `seconds`. Where another hook counts
--- instructions, it is the limit. Call it inside `rewards.uncompiled`.
function rewards.within(seconds, f, ...)
  if debug.gethook() then return pcall(f, ...) end
  local ends = native.seconds() + seconds
  local function hook()
    if native.seconds() > ends and debug.getinfo(2, "f").func ~= rewards.within then
      debug.sethook(hook, "", 1)  -- so that a loop around pcall ends, too
      error(("it ran longer than reward_seconds, %g s"):format(seconds), 2)
    end
  end
  debug.sethook(hook, "", 1000)
  local ok, value = pcall(f, ...)
  debug.sethook()
  return ok, value
end

--- Returns a text in quotes, or a list of tokens, as messages show it.
function rewards.shortened(text)
  if type(text) == "table" then text = table.concat(text, " ") end
  text = ("%q"):format(tostring(text)):gsub("\\\n", "\\n")
  return #text > 80 and text:sub(1, 77) .. "..." or text
end

--- Raises an error of a reward for a sample.
function rewards.fail(where, reward, sample, message)
  fail("%s: the reward '%s' (%s) of example %d, prompt %s, completion %s: %s", where, reward.name,
    reward.place, sample.number, rewards.shortened(sample.text),
    rewards.shortened(sample.completion), message)
end

--- Returns the number that a reward gives to a completion. `sample` has its example and tokens.
--- Call it inside `rewards.uncompiled`.
function rewards.of(where, reward, sample, seconds)
  local ok, value = rewards.within(seconds, reward.f, sample.completion, sample.example, sample)
  if ok and type(value) == "boolean" then value = value and 1 or 0 end
  if ok and type(value) == "number" and value - value == 0 then return value end
  if ok then
    value = "expected a finite number or a boolean, got "
      .. (type(value) == "number" and tostring(value) or native.describe(value))
  end
  -- Whatever the reward raised.
  if type(value) ~= "string" then value = native.describe(value) end
  rewards.fail(where, reward, sample, value)
end

return rewards
