--- The files of an evaluation, in the form of lm-evaluation-harness: results_DATE.json, and for
--- each task samples_TASK_DATE.jsonl.
local fail = require "redco.fail"
local native = require "redco.native"

local results = {}

-- JSON has no infinities.
local function finite(value)
  if type(value) == "table" then
    local copy = {}
    for key, each in pairs(value) do copy[key] = finite(each) end
    return copy
  end
  if type(value) ~= "number" or value - value == 0 then return value end
  return value ~= value and "NaN" or value > 0 and "Infinity" or "-Infinity"
end

local function write(path, text)
  local file, message = io.open(path, "w")
  if not file then fail("evaluate: output: %s", message) end
  file:write(text)
  file:close()
end

-- Returns the arguments of requests with names, because programs that read JSON as tables need
-- names.
local function named_arguments(list)
  local named = {}
  for i, arguments in ipairs(list) do
    local each = {}
    for j, argument in ipairs(arguments) do each["arg_" .. j - 1] = argument end
    named["gen_args_" .. i - 1] = each
  end
  return named
end

local function sample_line(sample)
  local line = {}
  for name, value in pairs(sample) do line[name] = value end
  line.arguments = named_arguments(sample.arguments)
  line.target = type(sample.target) == "table" and native.json_encode("target", sample.target)
    or tostring(sample.target)
  line.resps = {}
  for i, response in ipairs(sample.resps) do line.resps[i] = { response } end
  return native.json_encode("a sample", finite(line)) .. "\n"
end

--- Writes the files into a folder, which is made. Returns the path of the results.
function results.write(folder, found, samples)
  if os.execute(("mkdir -p '%s'"):format((folder:gsub("'", "'\\''")))) ~= 0 then
    fail("evaluate: output: cannot make the folder %s", folder)
  end
  local date = os.date "!%Y-%m-%dT%H-%M-%S"
  local path = ("%s/results_%s.json"):format(folder, date)
  write(path, native.json_encode("the results", finite(found), 2) .. "\n")
  for name, list in pairs(samples or {}) do
    local lines = {}
    for i, sample in ipairs(list) do lines[i] = sample_line(sample) end
    write(("%s/samples_%s_%s.jsonl"):format(folder, name, date), table.concat(lines))
  end
  return path
end

local function cell(value)
  if type(value) ~= "number" then return tostring(value) end
  return ("%.4f"):format(value)
end

--- Returns the results as a table of text.
function results.table_of(found)
  local rows = { { "Tasks", "Version", "Filter", "n-shot", "Metric", "Value", "Stderr" } }
  local names = {}
  for name in pairs(found.results) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local keys = {}
    for key in pairs(found.results[name]) do
      if key:find "," and not key:find "_stderr," then keys[#keys + 1] = key end
    end
    table.sort(keys)
    for _, key in ipairs(keys) do
      local metric, filter = key:match "^(.-),(.*)$"
      rows[#rows + 1] = { name, tostring(found.versions[name]), filter,
        tostring(found["n-shot"][name] or ""), metric, cell(found.results[name][key]),
        cell(found.results[name][metric .. "_stderr," .. filter]) }
    end
  end
  local widths = {}
  for _, row in ipairs(rows) do
    for i, text in ipairs(row) do widths[i] = math.max(widths[i] or 0, #text) end
  end
  local lines = {}
  for at, row in ipairs(rows) do
    local cells = {}
    for i, text in ipairs(row) do
      local blanks = (" "):rep(widths[i] - #text)
      cells[i] = i >= 6 and at > 1 and blanks .. text or text .. blanks
    end
    lines[at] = table.concat(cells, "  "):gsub(" +$", "")
  end
  return table.concat(lines, "\n")
end

return results
