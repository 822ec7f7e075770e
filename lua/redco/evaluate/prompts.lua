--- Prompts: the description, examples with their answers, and the document.
local fail = require "redco.fail"
local new_random = require "redco.evaluate.python_random"

local function are_equal(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  if rawequal(a, b) then return true end
  for name, value in pairs(a) do
    if not are_equal(value, b[name]) then return false end
  end
  for name in pairs(b) do
    if a[name] == nil then return false end
  end
  return true
end

-- Returns the first n of the list that do not equal `document`.
local function others(list, document, n)
  local found = {}
  for _, each in ipairs(list) do
    if #found == n then break end
    if document == nil or not are_equal(each, document) then found[#found + 1] = each end
  end
  return found
end

-- Each returns a function that chooses n examples of the list. `document` is not among them; it is
-- nil if it cannot be in the list.
local samplers = {
  -- The harness's default: a sample for each document, in the order of the documents.
  default = function(seed)
    local random = new_random(seed)
    local function sample(list, n)
      local chosen = {}
      for i, number in ipairs(random.sample(#list, n)) do chosen[i] = list[number] end
      return chosen
    end
    return function(list, n, document)
      if not document then return sample(list, n) end
      if n + 1 > #list then return {} end
      local chosen = others(sample(list, n + 1), document, n)
      if #chosen == n then return chosen end
      local rest = others(list, document, #list)
      return n <= #rest and sample(rest, n) or {}
    end
  end,
  first_n = function()
    return function(list, n, document) return others(list, document, n) end
  end,
}

-- Returns a turn's question and answer as messages, each with what follows it in a plain text.
local function add_turn(messages, question, answer, task)
  local has_answer = answer and answer ~= ""
  messages[#messages + 1] = { role = "user", content = question,
    after = has_answer and task.target_delimiter or "" }
  if has_answer then
    messages[#messages + 1] = { role = "assistant", content = answer,
      after = task.fewshot_delimiter }
  end
end

local function answer_of(task, document) return task:right_texts(document)[1] end

local function joined(messages)
  local parts = {}
  for i, message in ipairs(messages) do parts[i] = message.content .. message.after end
  return table.concat(parts)
end

-- Returns the question of a document in an example.
local function question_of(task, document)
  local number = task:choice_of_prompt(document)
  return number and task:choices(document)[number] or task:text_of("doc_to_text", document)
end

--- Returns prompt(document), which makes the prompts of a task's documents in their order: a text,
--- or a list of texts if each choice has its prompt. `chat`, or nil, makes the text of a list of
--- messages.
return function(task, seed, chat)
  local n, name = task.num_fewshot, task.fewshot_config.sampler or "default"
  for key in pairs(task.fewshot_config) do
    if key ~= "sampler" then
      fail("%s: fewshot_config: %s is not supported, only sampler", task.where, tostring(key))
    end
  end
  if not samplers[name] then
    fail("%s: fewshot_config: sampler: expected \"default\" or \"first_n\", got '%s'", task.where,
      tostring(name))
  end
  if n < 0 or n % 1 ~= 0 then
    fail("%s: num_fewshot: expected a whole number from 0 on, got %g", task.where, n)
  end
  local list, is_own = task.fewshot.list, task.fewshot == task.documents
  local choose = samplers[name](seed)
  return function(document)
    local messages = {}
    local description = task:text_of("description", document)
    if description ~= "" then
      messages[1] = { role = "system", content = description, after = "" }
    end
    if n > 0 then
      local chosen = n <= #list and choose(list, n, is_own and document or nil) or {}
      if #chosen < n then
        fail("%s: num_fewshot is %d, but there are only %d documents to choose from%s", task.where,
          n, #list, is_own and ", and a document is no example of itself" or "")
      end
      for _, example in ipairs(chosen) do
        add_turn(messages, question_of(task, example), answer_of(task, example), task)
      end
    end
    local function prompt_of(question)
      local all = { unpack(messages) }
      add_turn(all, question, nil, task)
      if not chat then return joined(all) end
      local plain = {}
      for i, message in ipairs(all) do
        plain[i] = { role = message.role, content = message.content }
      end
      return chat(plain)
    end
    if not task:choice_of_prompt(document) then
      return prompt_of(task:text_of("doc_to_text", document))
    end
    local prompts = {}
    for i, choice in ipairs(task:choices(document)) do prompts[i] = prompt_of(choice) end
    return prompts
  end
end
