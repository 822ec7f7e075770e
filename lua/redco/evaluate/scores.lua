--- Runs the requests of a task, and scores what the model returns.
local fail = require "redco.fail"
local native = require "redco.native"
local new_prompts = require "redco.evaluate.prompts"
local python_text = require "redco.evaluate.python_text"

-- The harness's names of max_gen_toks. The first one that a task has counts.
local length_names = { "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens" }

-- Returns the options of a task's generation: until, max_gen_toks, do_sample and others.
local function generation_options(task)
  local given, o = task.generation_kwargs or {}, {}
  for name, value in pairs(given) do o[name] = value end
  o["until"] = given["until"] or { task.fewshot_delimiter }
  if type(o["until"]) == "string" then o["until"] = { o["until"] } end
  if type(o["until"]) ~= "table" then
    fail("%s: generation_kwargs: until: expected a text or a list of texts, got %s", task.where,
      native.describe(o["until"]))
  end
  for i = #length_names, 1, -1 do
    local value = given[length_names[i]]
    if value ~= nil then o.max_gen_toks = value end
    if i > 1 then o[length_names[i]] = nil end
  end
  o.max_gen_toks = o.max_gen_toks or 256
  if type(o.max_gen_toks) ~= "number" or o.max_gen_toks < 1 or o.max_gen_toks % 1 ~= 0 then
    fail("%s: generation_kwargs: max_gen_toks: expected a whole number of at least 1, got %s",
      task.where, native.describe(o.max_gen_toks))
  end
  local temperature = given.temperature or 0
  if o.do_sample == nil then o.do_sample = temperature > 0 end
  if not o.do_sample or temperature == 0 then o.temperature = nil end
  return o
end

-- Each function returns { arguments, resps, found } for each of a task's documents: the requests,
-- the model's answers, and the values that metrics read.
local kinds = {}

function kinds.loglikelihood(task, documents, prompts, lm)
  local requests, list = {}, {}
  for i, document in ipairs(documents) do
    requests[i] = { prompts(document), task:right_texts(document)[1], task.documents.place(i) }
  end
  for i, found in ipairs(lm:loglikelihoods(requests, task.task)) do
    list[i] = { arguments = { { requests[i][1], requests[i][2] } },
      resps = { { found.logprob, found.is_greedy } }, found = found }
  end
  return list
end

function kinds.multiple_choice(task, documents, prompts, lm, is_chat)
  local requests, list = {}, {}
  local delimiter = is_chat and "" or task.target_delimiter
  for i, document in ipairs(documents) do
    local prompt, choices = prompts(document), task:choices(document)
    list[i] = { arguments = {}, resps = {}, found = { choices = choices, logprobs = {},
      greedy = {}, right = task:right_choices(document) } }
    local are_prompts = type(prompt) == "table"
    local target = are_prompts and task:right_texts(document)[1]
    for c, choice in ipairs(choices) do
      local asked = { are_prompts and prompt[c] or prompt, delimiter .. (target or choice) }
      list[i].arguments[c] = asked
      requests[#requests + 1] = { asked[1], asked[2], task.documents.place(i), i, c }
    end
  end
  for at, found in ipairs(lm:loglikelihoods(requests, task.task)) do
    local i, c = requests[at][4], requests[at][5]
    list[i].resps[c] = { found.logprob, found.is_greedy }
    list[i].found.logprobs[c], list[i].found.greedy[c] = found.logprob, found.is_greedy
  end
  return list
end

function kinds.loglikelihood_rolling(task, documents, _, lm)
  local texts, list = {}, {}
  for i, document in ipairs(documents) do texts[i] = task:right_texts(document)[1] end
  for i, logprob in ipairs(lm:rolling(texts, task.stride, task.task)) do
    local counted = task.doc_to_count and task:text_of("doc_to_count", documents[i]) or texts[i]
    list[i] = { arguments = { { texts[i] } }, resps = { logprob },
      found = { logprob = logprob, n_words = python_text.count_words(counted),
        n_bytes = #counted } }
  end
  return list
end

function kinds.generate_until(task, documents, prompts, lm)
  local requests, list, o = {}, {}, generation_options(task)
  for i, document in ipairs(documents) do
    local request = { prompts(document), task.documents.place(i) }
    for _ = 1, task.repeats do requests[#requests + 1] = request end
    list[i] = { arguments = { { request[1], o } }, resps = {},
      found = { right = task:right_texts(document) } }
  end
  for at, answer in ipairs(lm:generate(requests, o, task.task)) do
    table.insert(list[math.ceil(at / task.repeats)].resps, answer)
  end
  return list
end

local function limited(documents, limit)
  if not limit then return documents end
  local n, kept = limit < 1 and math.ceil(#documents * limit) or limit, {}
  for i = 1, math.min(n, #documents) do kept[i] = documents[i] end
  return kept
end

-- Returns the values that metrics read, and the answers after a pipeline of filters.
local function filtered(task, entry, filter)
  if task.output_type ~= "generate_until" then return entry.found, entry.resps end
  local answers = filter.apply(entry.resps)
  return { answer = answers[1], right = entry.found.right }, answers
end

-- Adds a task's scores by one pipeline of filters to `result`, and its samples to `samples`.
local function add_scores(task, documents, list, filter, result, samples, bootstrap_iters)
  local items = {}
  for _, metric in ipairs(task.metrics) do items[metric.name] = {} end
  for i, entry in ipairs(list) do
    local found, responses = filtered(task, entry, filter)
    local sample = { doc_id = i - 1, doc = documents[i], target = task:target(documents[i]),
      arguments = entry.arguments, resps = entry.resps, filtered_resps = responses,
      filter = filter.name, metrics = {} }
    for at, metric in ipairs(task.metrics) do
      local value = metric.value(found)
      items[metric.name][i], sample[metric.name] = value, value
      sample.metrics[at] = metric.name
    end
    samples[#samples + 1] = sample
  end
  for _, metric in ipairs(task.metrics) do
    local values = items[metric.name]
    result[metric.name .. "," .. filter.name] = metric.score(values)
    local has_error = metric.stderr and #values > 1 and bootstrap_iters > 0
    result[metric.name .. "_stderr," .. filter.name] = has_error
      and metric.stderr(values, bootstrap_iters) or "N/A"
  end
end

--- Returns the scores of a task, { ["acc,none"] = ..., ["acc_stderr,none"] = ... }, and its
--- samples. `o` has seed, limit, bootstrap_iters and chat(messages), or nil.
return function(task, lm, o)
  local documents = limited(task.documents.list, o.limit)
  local prompts = new_prompts(task, o.seed, o.chat)
  local list = kinds[task.output_type](task, documents, prompts, lm, o.chat ~= nil)
  local result, samples = { alias = task.task, name = task.task, sample_len = #documents }, {}
  for _, filter in ipairs(task.filters) do
    add_scores(task, documents, list, filter, result, samples, o.bootstrap_iters)
  end
  return result, samples
end
