--- Groups of tasks: lists of tasks and groups with means of their scores. The names of the fields
--- are those of lm-evaluation-harness.
local fail = require "redco.fail"
local tasks = require "redco.evaluate.task"

local groups = {}

-- The fields of a group, and of an entry of aggregate_metric_list, with the types of their values.
local fields = { group = "string", group_alias = "string", task = "table",
  aggregate_metric_list = "table", metadata = "table" }
local aggregation_fields = { metric = "string", aggregation = "string",
  weight_by_size = "boolean", filter_list = "string table" }

local function check_aggregations(where, list)
  for i, row in ipairs(list or {}) do
    local place = ("%s: aggregate_metric_list: entry %d"):format(where, i)
    if type(row) ~= "table" then fail("%s: expected { metric = ... }", place) end
    tasks.check_fields(place, row, aggregation_fields)
    if not row.metric then fail("%s: metric is missing", place) end
    if row.aggregation and row.aggregation ~= "mean" then
      fail("%s: aggregation: expected \"mean\", got '%s'", place, row.aggregation)
    end
  end
end

local most_levels = 16

--- Reads a list of tasks and groups. Calls add(row, path) for each task, which returns its name.
--- Returns the groups, each after those in it: { name, alias, tasks, members, aggregations, version
--- }. `tasks` has the names of all tasks in a group, `members` those of its entries.
function groups.read(given, add)
  local found = {}
  local function read(entry, level)
    local row, path = tasks.read(entry)
    if row.group == nil then
      local name = add(row, path)
      return { name }, name
    end
    local where = path or "evaluate: group " .. tostring(row.group)
    tasks.check_fields(where, row, fields)
    if level > most_levels then
      fail("%s: groups are nested more than %d deep: does one contain itself?", where, most_levels)
    end
    if not row.task or #row.task == 0 then fail("%s: task: expected a list of tasks", where) end
    check_aggregations(where, row.aggregate_metric_list)
    local group = { name = row.group, alias = row.group_alias or row.group, tasks = {},
      members = {}, aggregations = row.aggregate_metric_list or {},
      version = row.metadata and row.metadata.version or "N/A" }
    local dir = path and path:match "^.*/" or ""
    for i, member in ipairs(row.task) do
      local names, name = read(tasks.absolute(dir, member), level + 1)
      group.members[i] = name
      for _, each in ipairs(names) do table.insert(group.tasks, each) end
    end
    found[#found + 1] = group
    return group.tasks, group.name
  end
  for _, entry in ipairs(given) do read(entry, 1) end
  return found
end

-- Returns the filters for which the tasks have results of the metric.
local function filters_of(aggregation, names, results)
  local given = aggregation.filter_list
  if given then return type(given) == "table" and given or { given } end
  local seen, list = {}, {}
  for _, name in ipairs(names) do
    for key in pairs(results[name]) do
      local metric, filter = key:match "^(.-),(.*)$"
      if metric == aggregation.metric and not seen[filter] then
        seen[filter] = true
        list[#list + 1] = filter
      end
    end
  end
  table.sort(list)
  return list
end

-- Returns the mean of scores, weighted by the sizes of their tasks or not, and its standard error.
local function mean_of(scores, by_size)
  local sum, weights, variance, size, has_error = 0, 0, 0, 0, true
  for _, each in ipairs(scores) do
    local weight = by_size and each.size or 1
    sum, weights, size = sum + each.value * weight, weights + weight, size + each.size
    has_error = has_error and type(each.stderr) == "number"
    if has_error then
      variance = variance + each.stderr ^ 2 * (by_size and (each.size - 1) * each.size or 1)
    end
  end
  local stderr = by_size and math.sqrt(variance / (size - #scores) / size)
    or math.sqrt(variance) / #scores
  return sum / weights, has_error and stderr or "N/A"
end

--- Returns the scores of a group by those of its tasks.
function groups.score(group, results)
  local result = { alias = group.alias, name = group.name }
  if #group.aggregations == 0 then return result end
  result.sample_len = 0
  for _, name in ipairs(group.tasks) do
    result.sample_len = result.sample_len + results[name].sample_len
  end
  for _, aggregation in ipairs(group.aggregations) do
    for _, filter in ipairs(filters_of(aggregation, group.tasks, results)) do
      local key, scores = aggregation.metric .. "," .. filter, {}
      local stderr_key = ("%s_stderr,%s"):format(aggregation.metric, filter)
      for _, name in ipairs(group.tasks) do
        local of_task = results[name]
        if of_task[key] then
          scores[#scores + 1] = { value = of_task[key], stderr = of_task[stderr_key],
            size = of_task.sample_len }
        end
      end
      if #scores > 0 then
        result[key], result[stderr_key] = mean_of(scores, aggregation.weight_by_size ~= false)
      end
    end
  end
  return result
end

return groups
