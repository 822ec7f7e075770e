--- redco.evaluate: the scores of a language model on tasks that are files.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local fail = require "redco.fail"
local groups = require "redco.evaluate.groups"
local native = require "redco.native"
local new_language_model = require "redco.evaluate.language_model"
local new_task = require "redco.evaluate.task".new
local registry = require "redco.registry"
local results = require "redco.evaluate.results"
local scores = require "redco.evaluate.scores"

local options = arguments("evaluate",
  { seed = 1234, batch_size = 8, apply_chat_template = false, bootstrap_iters = 100000,
    log_samples = false },
  { "deployer", "model", "params", "tokenizer", "tasks", "num_fewshot", "limit", "max_length",
    "output", "model_name", "params_sharding_rules" })

local function check(o)
  for name, kind in pairs { deployer = "Deployer", tokenizer = "Tokenizer" } do
    if type(o[name]) ~= "userdata" then
      fail("evaluate: %s: expected a %s, got %s", name, kind, native.describe(o[name]))
    end
  end
  if type(o.tasks) ~= "table" or #o.tasks == 0 then
    fail("evaluate: tasks: expected a list of paths or tables, got %s",
      type(o.tasks) == "table" and "an empty one" or native.describe(o.tasks))
  end
  check_integer("evaluate", "batch_size", o.batch_size, 1)
  check_integer("evaluate", "seed", o.seed, 0, 2 ^ 32 - 1)
  check_integer("evaluate", "bootstrap_iters", o.bootstrap_iters, 0)
  if o.num_fewshot then check_integer("evaluate", "num_fewshot", o.num_fewshot, 0) end
  if o.max_length then check_integer("evaluate", "max_length", o.max_length, 1) end
  if o.limit and (type(o.limit) ~= "number" or o.limit <= 0 or o.limit >= 1 and o.limit % 1 ~= 0)
  then
    fail("evaluate: limit: expected a number of documents, or a share below 1, got %s",
      native.describe(o.limit))
  end
  if o.apply_chat_template and not o.tokenizer.chat_template then
    fail "evaluate: apply_chat_template: the tokenizer has no chat_template"
  end
end

-- Returns the tasks, and the groups of them. A task may be in several groups.
local function read_tasks(o)
  local tasks, seen, by_path = {}, {}, {}
  local function check_name(name)
    if seen[name] then fail("evaluate: tasks: two have the name '%s'", name) end
    seen[name] = true
  end
  local found = groups.read(o.tasks, function(row, path)
    if path and by_path[path] then return by_path[path] end
    local task = new_task(row, path, o)
    check_name(task.task)
    tasks[#tasks + 1] = task
    if path then by_path[path] = task.task end
    return task.task
  end)
  for _, group in ipairs(found) do check_name(group.name) end
  return tasks, found
end

local function new_results(o)
  return { results = {}, configs = {}, versions = {}, ["n-shot"] = {}, ["n-samples"] = {},
    higher_is_better = {}, date = os.time(), config = {
      model = "redco-lua", model_args = o.model_name, batch_size = o.batch_size, limit = o.limit,
      bootstrap_iters = o.bootstrap_iters, fewshot_seed = o.seed, max_length = o.max_length,
      apply_chat_template = o.apply_chat_template,
    }, model_name = o.model_name, redco_version = native.version }
end

local function add_task(found, task, result)
  local name = task.task
  found.results[name], found.configs[name] = result, task.config
  found.versions[name] = task.metadata and task.metadata.version or 0
  found["n-shot"][name] = task.num_fewshot
  found["n-samples"][name] = { original = #task.documents.list, effective = result.sample_len }
  found.higher_is_better[name] = {}
  for _, metric in ipairs(task.metrics) do
    found.higher_is_better[name][metric.name] = metric.higher_is_better
  end
end

local function add_groups(found, all)
  local of_groups = {}
  for _, group in ipairs(all) do
    of_groups[group.name] = groups.score(group, found.results)
    found.versions[group.name] = group.version
    found.group_subtasks = found.group_subtasks or {}
    found.group_subtasks[group.name] = group.members
  end
  for name, result in pairs(of_groups) do
    found.groups = of_groups
    found.results[name] = result
  end
end

return registry.define("redco.evaluate", [[
evaluate({deployer: Deployer, model, params: table = model.params, tokenizer: Tokenizer,
  tasks: list, num_fewshot: integer = nil, limit: number = nil, batch_size: integer = 8,
  apply_chat_template = false, seed: integer = 1234, max_length: integer = nil,
  bootstrap_iters: integer = 100000, params_sharding_rules = nil, output: string = nil,
  log_samples = false, model_name: string = nil}) -> table, table
Returns the scores of a language model on tasks, and their samples: perplexity, multiple choice by log-likelihood, and
exact match of generated texts, with standard errors. A task, or a group of tasks, is a file .toml or
.lua, or a table; its fields, prompts and scores are those of lm-evaluation-harness. `results` has the harness's form:
results.results[task]["acc,none"], ["acc_stderr,none"]. `samples[task]` is a list of documents with
prompts, answers and scores.
  num_fewshot: the number of examples in each prompt, in place of the tasks'
  limit: only the first documents of each task: their number, or their share if it is below 1
  batch_size: per process. Batches have prompts of similar lengths
  apply_chat_template: prompts are conversations, of which examples are turns
  seed: of the examples' choice, as the harness's
  max_length: how many tokens the model reads, by default as its configuration says. Longer prompts
    lose their beginnings
  bootstrap_iters: samples for standard errors that have no formula; 0 computes no standard errors
  params_sharding_rules: as in `redco.Trainer`
  output: a folder for results_DATE.json, and with log_samples for samples_TASK_DATE.jsonl]],
function(given)
  local o = options(given)
  check(o)
  local tasks, all_groups = read_tasks(o)
  local lm = new_language_model(o)
  local chat = o.apply_chat_template and function(messages)
    return o.tokenizer:apply_chat_template(messages,
      { add_generation_prompt = true, tokenize = false })
  end or nil
  local found, samples = new_results(o), {}
  for _, task in ipairs(tasks) do
    local result, list = scores(task, lm,
      { seed = o.seed, limit = o.limit, chat = chat, bootstrap_iters = o.bootstrap_iters })
    add_task(found, task, result)
    samples[task.task] = list
  end
  add_groups(found, all_groups)
  if o.output and o.deployer.process_id == 0 then
    results.write(o.output, found, o.log_samples and samples or nil)
  end
  return found, samples
end)
