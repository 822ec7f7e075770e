--- Reads the series of numbers in a metrics.jsonl.
local names_of = require "redco.names_of"
local native = require "redco.native"
local without_position = require "redco.without_position"

local series = {}

--- Costs of steps, drawn only if they are named.
local costs = {}
for _, name in ipairs { "collate_seconds", "collective_seconds", "examples_per_second",
  "gathered_bytes", "memory_bytes", "mfu", "peak_memory_bytes", "reserved_memory_bytes",
  "step_seconds", "tokens_per_second" } do
  costs[name] = true
end

local function numbers(by_name, line, path)
  -- The last line of a killed run may be incomplete.
  local ok, entry = pcall(native.json_decode, path, line)
  if not ok or type(entry) ~= "table" or type(entry.step) ~= "number" then return end
  for name, value in pairs(entry) do
    if type(value) == "number" and name ~= "step" then
      if entry.kind then name = entry.kind .. "_" .. name end
      by_name[name] = by_name[name] or {}
      -- A resumed run repeats steps.
      by_name[name][entry.step] = value
    end
  end
end

--- Returns all series of a work folder by name; names of evaluations begin with `eval_`. Each is
--- {name, steps, values}, in the order of the steps.
function series.read(workdir)
  local path = workdir .. "/metrics.jsonl"
  -- Unlike io.open, it refuses a pipe, which may never end.
  local ok, file = pcall(native.record_file, path, "line")
  if not ok then
    error(("plot: %s: WORKDIR is the work folder of a run, the workdir of its Deployer")
      :format(without_position(file)), 0)
  end
  local by_name = {}
  for i = 1, tonumber(#file) do numbers(by_name, file:record(i), path) end
  local all = {}
  for name, by_step in pairs(by_name) do
    local steps, values = {}, {}
    for step, value in pairs(by_step) do
      steps[#steps + 1], values[#values + 1] = step, value
    end
    all[name] = { name = name, steps = steps, values = values }
  end
  if not next(all) then error(("plot: %s has no metrics yet"):format(path), 0) end
  return all
end

local function sorted_names(all)
  local function rank(name)
    return name == "loss" and 1 or name:find "^eval_" and 2 or 3
  end
  local names = names_of(all)
  table.sort(names, function(a, b)
    if rank(a) ~= rank(b) then return rank(a) < rank(b) end
    return a < b
  end)
  return names
end

--- Returns the list of series to draw: those of the given names, or all but the costs of steps.
function series.chosen(all, names, workdir)
  local chosen = {}
  for _, name in ipairs(names) do
    if not all[name] then
      error(("plot: %s/metrics.jsonl has no metric '%s'; there are: %s"):format(workdir, name,
        table.concat(sorted_names(all), ", ")), 0)
    end
    chosen[#chosen + 1] = all[name]
  end
  if #names > 0 then return chosen end
  for _, name in ipairs(sorted_names(all)) do
    if not costs[name] then chosen[#chosen + 1] = all[name] end
  end
  return chosen
end

--- Groups series into panels: a metric of training and of evaluations share one. Each panel is
--- {name, train, eval}, of which one may be nil.
function series.panels(chosen)
  local panels, by_name = {}, {}
  for _, one in ipairs(chosen) do
    local kind = one.name:match "^eval_" and "eval" or "train"
    local name = one.name:gsub("^eval_", "")
    if not by_name[name] then
      by_name[name] = { name = name }
      panels[#panels + 1] = by_name[name]
    end
    by_name[name][kind] = one
  end
  return panels
end

local fewest_to_smooth, windows = 100, 50

-- Learning rates have no noise.
local function is_rate(one) return one.name:find "^lr$" or one.name:find "^lr_%d+$" end

--- Returns the means of each value and its neighbours, a fiftieth of the run; nil for a short run
--- and for learning rates, which have no noise.
function series.smoothed(one)
  local values, n = one.values, #one.values
  if n < fewest_to_smooth or is_rate(one) then return nil end
  local sums = { [0] = 0 }
  for i, value in ipairs(values) do sums[i] = sums[i - 1] + value end
  local half, means = math.ceil(n / windows / 2), {}
  for i = 1, n do
    local first, last = math.max(1, i - half), math.min(n, i + half)
    means[i] = (sums[last] - sums[first - 1]) / (last - first + 1)
  end
  return means
end

--- Returns the values that an axis has to show: of a long series not rare peaks, and not its first
--- steps if these would take more than half of the axis. Such values leave the frame.
function series.shown(one)
  local values, n = one.values, #one.values
  if n < fewest_to_smooth or is_rate(one) then return values end
  local n_first, rest, whole = math.max(10, math.ceil(n / 20) - 1), {}, {}
  for i = n_first + 1, n do rest[#rest + 1] = values[i] end
  table.sort(rest)
  local rare = math.floor(#rest / 200)
  local low, high = rest[1 + rare], rest[#rest - rare]
  whole.low, whole.high = low, high
  for i = 1, n_first do
    whole.low, whole.high = math.min(whole.low, values[i]), math.max(whole.high, values[i])
  end
  if high == low or whole.high - whole.low <= 2 * (high - low) then
    low, high = whole.low, whole.high
  end
  return { low, high }
end

--- Reduces a series to about `most` points and keeps every peak: of each interval of steps it takes
--- the least and the greatest value.
function series.thinned(steps, values, most)
  if #steps <= most then return steps, values end
  local length = math.ceil(2 * #steps / most)
  local few_steps, few_values = {}, {}
  for first = 1, #steps, length do
    local low, high = first, first
    for i = first, math.min(first + length - 1, #steps) do
      if values[i] < values[low] then low = i end
      if values[i] > values[high] then high = i end
    end
    for _, i in ipairs { math.min(low, high), low ~= high and math.max(low, high) or nil } do
      few_steps[#few_steps + 1], few_values[#few_values + 1] = steps[i], values[i]
    end
  end
  return few_steps, few_values
end

return series
