--- `redco-lua check`: what is wrong with the data of a script's training.
local added = require "redco.check.added"
local attempt = require "redco.check.attempt"
local made = require "redco.check.made"
local native = require "redco.native"
local subjects = require "redco.check.subject"
local redco = require "redco"
local report = require "redco.check.report"
local shown = require "redco.check.shown"

local run = {}

local groups = { "tokens", "ends", "labels", "padding", "chat", "values", "duplicates",
  "prompts", "parameters" }

--- Returns the checks, in the order of the report.
function run.checks()
  local list = {}
  for _, group in ipairs(groups) do
    for _, row in ipairs(require("redco.check.checks." .. group)) do list[#list + 1] = row end
  end
  for _, row in ipairs(added) do list[#list + 1] = row end
  return list
end

local function new_result()
  return { findings = {}, made = {}, skipped = {}, shown = {}, n_errors = 0, n_warnings = 0 }
end

local function add_finding(result, row, count, of, where)
  table.insert(result.findings, { name = row.name, level = row.level, title = row.title,
    advice = row.advice, count = count, of = of, where = where })
  local total = row.level == "error" and "n_errors" or "n_warnings"
  result[total] = result[total] + 1
end

-- Returns why a check cannot be made, or nil.
local function missing(subject, row)
  for _, name in ipairs(row.needs or {}) do
    if subject[name] == nil then return subject:why(name) or "there is no " .. name end
  end
end

local function make(subject, row, result)
  -- Skips a check whose error another error explains.
  if row.is_consequence and result.n_errors > 0 then return end
  local reason = missing(subject, row)
  if reason then
    table.insert(result.skipped, { name = row.name, reason = reason })
    return
  end
  local ok, count, of, where = attempt(row.find, subject)
  if not ok then error(("check %s: %s"):format(row.name, tostring(count)), 0) end
  table.insert(result.made, row.name)
  if count and count > 0 then add_finding(result, row, count, of, where) end
end

local no_examples = { name = "no_examples", level = "error",
  title = "there are no training examples", advice = "is the path of the data right?" }
local examples_fail = { name = "examples_fail", level = "error",
  title = "train_examples raises an error", advice = "the error says where" }
local collate_fails = { name = "collate_fails", level = "error",
  title = "collate_fn raises an error", advice = "the error says where" }
local script_fails = { name = "script_fails", level = "error",
  title = "the script fails before it trains", advice = "run it to see where" }

local function check_all(subject, result, n_examples)
  local batches, count = subject.batches, subject.examples and subject.examples.count or 0
  if subject.examples_error then
    add_finding(result, examples_fail, 1, nil, subject.examples_error)
  elseif count == 0 then
    add_finding(result, no_examples, 1)
  end
  if subject.collate_error then
    add_finding(result, collate_fails, 1, nil, subject.collate_error)
  end
  local checked = 0
  for _, each in ipairs(batches or {}) do checked = checked + #each.examples end
  result.examples = { count = count, checked = checked,
    evaluation = subject.evaluation and subject.evaluation.count or nil }
  for _, row in ipairs(run.checks()) do make(subject, row, result) end
  result.shown = shown.examples(subject, n_examples)
  result.has_marks = shown.has_marks(subject)
end

-- Returns the calling line, "FILE:LINE", in the first function that is not part of the program.
local function calling_line()
  for level = 2, math.huge do
    local info = debug.getinfo(level, "Sl")
    if not info then return end
    local file = info.what ~= "C" and info.source:match "^@(.*)"
    if file then return ("%s:%d"):format(file, info.currentline) end
  end
end

local state  -- of the script that is checked: options, lists of what it makes, result, print

--- From now on, this thread's script is checked where it begins to train. `options`: n_rows, the
--- most examples to look at; n_examples, how many the report shows. What the script prints goes to
--- standard error.
function run.start(options)
  for i = #added, 1, -1 do added[i] = nil end
  state = { options = options, made = made.watch(redco), output = io.output(), print = print }
  io.output(io.stderr)
  rawset(_G, "print", function(...)
    local words = {}
    for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
    io.stderr:write(table.concat(words, "\t"), "\n")
  end)
  native.start_check(function(trainer, given, arguments)
    if state.result then return end
    state.result = new_result()
    state.result.training = { line = calling_line(), n_trainers = #state.made.trainers }
    local subject = subjects.new(trainer, given, arguments, state.made, options.n_rows)
    local ok, message = attempt(check_all, subject, state.result, options.n_examples)
    if not ok then state.failure = tostring(message) end
  end)
end

--- Ends that, and returns what was found. `failure` is the error with which the script ended, or
--- "". Raises an error if it did not begin to train, or a check fails.
function run.result(name, failure)
  if native.is_end_of_check(failure) then failure = "" end
  native.start_check(nil)
  state.made.stop()
  io.output(state.output)
  rawset(_G, "print", state.print)
  local ended = state
  state = nil
  if ended.failure then error(ended.failure, 0) end
  if ended.result then return ended.result end
  if failure == "" then
    error(("check: %s ended without a Trainer:fit, Trainer:train or Trainer:train_step, where a "
      .. "check begins"):format(name), 0)
  end
  local result = new_result()
  add_finding(result, script_fails, 1, nil, failure)
  return result
end

--- Prints what was found. Raises an error if there is an error in it.
function run.finish(name, failure, json)
  local result = run.result(name, failure)
  io.write(json and report.json(name, result) .. "\n" or report.text(name, result))
  io.stdout:flush()  -- the error comes after it
  if result.n_errors > 0 then error(("check: %s: %s"):format(name, report.summary(result)), 0) end
end

return run
