--- Tasks: what a file says about its documents, prompts and scores. The names of the fields are
--- those of lm-evaluation-harness.
local documents = require "redco.evaluate.documents"
local fail = require "redco.fail"
local metrics = require "redco.evaluate.metrics"
local names_of = require "redco.names_of"
local native = require "redco.native"
local new_filters = require "redco.evaluate.filters"
local without_position = require "redco.without_position"

local output_types = { generate_until = true, loglikelihood = true, loglikelihood_rolling = true,
  multiple_choice = true }

-- The fields of a task, with the types of their values.
local fields = {
  data = "string table userdata",
  description = "string function",
  doc_to_choice = "string table function",
  doc_to_count = "string function",
  doc_to_target = "string number table function",
  doc_to_text = "string function",
  fewshot_config = "table",
  fewshot_data = "string table userdata",
  fewshot_delimiter = "string",
  filter_list = "table",
  generation_kwargs = "table",
  metadata = "table",
  metric_list = "table",
  num_fewshot = "number",
  output_type = "string",
  process_doc = "function",
  repeats = "number",
  stride = "number",
  target_delimiter = "string",
  task = "string",
}

local defaults = { description = "", doc_to_text = "", fewshot_config = {},
  fewshot_delimiter = "\n\n", num_fewshot = 0, output_type = "generate_until", repeats = 1,
  target_delimiter = " " }

-- Returns the table of a file .toml or .lua.
local function read(path)
  if not path:find "%.toml$" and not path:find "%.lua$" then
    fail("tasks: expected files .toml or .lua, like those of examples/evaluation, got %s", path)
  end
  if not native.file_exists(path) then fail("tasks: there is no file %s", path) end
  if path:find "%.toml$" then return native.toml_decode(path) end
  local chunk, message = loadfile(path)
  if not chunk then fail("%s", message) end
  local row = chunk()
  if type(row) ~= "table" then
    fail("%s: expected a table that the file returns, got %s", path, native.describe(row))
  end
  return row
end

-- Raises an error if a field of `row` is not among `known`, which has the types of their values.
local function check_fields(where, row, known)
  local names = names_of(known)
  for name, value in pairs(row) do
    local types = known[name]
    if not types then
      local near = native.nearest(tostring(name), names)
      fail("%s: unknown field '%s'; %s", where, tostring(name), near
        and ("did you mean '%s'?"):format(near) or "expected one of " .. table.concat(names, ", "))
    end
    if not (" " .. types .. " "):find(" " .. type(value) .. " ", 1, true) then
      fail("%s: %s: expected a %s, got %s", where, name, types:gsub(" ", " or a "),
        native.describe(value))
    end
  end
end

local function absolute(dir, source)
  if type(source) ~= "string" or source:sub(1, 1) == "/" then return source end
  return dir .. source
end

local Task = {}
Task.__index = Task

-- Raises an error about a document.
local function refuse(self, document, field, message, ...)
  fail("%s: %s: %s (%s)", self.where, field, message:format(...), self:place(document))
end

local function render(template, document)
  return native.render_template(template, document)
end

-- Returns the list or number that a Python literal denotes, like `ast.literal_eval`.
local function literal(text)
  return native.json_decode("a value",
    render("{{ (" .. text .. ") | tojson }}", {}))
end

--- Returns the value of a field of the task for a document: of a column, a template or a function.
function Task:value(field, document)
  local source = self[field]
  if type(source) == "function" then
    local ok, value = pcall(source, document)
    if not ok then refuse(self, document, field, "%s", tostring(value)) end
    return value
  end
  if type(source) ~= "string" then return source end
  local names = self.names
  if names[source] then
    if document[source] == nil then
      refuse(self, document, field, "there is no '%s'", source)
    end
    return document[source]
  end
  if field:find "^doc_to" and source:find "^[%a_][%w_]*$" then
    refuse(self, document, field, "there is no '%s' in the documents, which have %s", source,
      table.concat(names_of(names), ", "))
  end
  local ok, text = pcall(render, source, document)
  if not ok then
    refuse(self, document, field, "%s; the document has %s", without_position(text),
      table.concat(names_of(document), ", "))
  end
  return text
end

--- Returns a field's value as the text that Python writes for it.
function Task:text_of(field, document)
  local value = self:value(field, document)
  if type(value) == "string" then return value end
  if type(value) == "number" or type(value) == "boolean" then
    return render("{{ value }}", { value = value })
  end
  refuse(self, document, field, "expected a text, got %s", native.describe(value))
end

--- Returns the choices of a document, two texts or more.
function Task:choices(document)
  local list = self:value("doc_to_choice", document)
  if type(list) == "string" then
    local ok, found = pcall(literal, list)
    list = ok and found or list
  end
  if type(list) ~= "table" then
    refuse(self, document, "doc_to_choice", "expected a list of texts, got %s",
      native.describe(list))
  end
  if #list < 2 then
    refuse(self, document, "doc_to_choice", "expected two choices or more, got %d", #list)
  end
  for i, choice in ipairs(list) do
    if type(choice) ~= "string" or choice == "" then
      refuse(self, document, "doc_to_choice", "choice %d: expected a text, got %s", i,
        choice == "" and "an empty one" or native.describe(choice))
    end
  end
  return list
end

--- Returns what doc_to_target says: a text, a list, or a number, which counts choices from 0.
function Task:target(document)
  local target = self:value("doc_to_target", document)
  local is_column = type(self.doc_to_target) == "string" and self.names[self.doc_to_target]
  if type(target) ~= "string" or is_column or type(self.doc_to_target) == "function" then
    return target
  end
  if self.doc_to_choice and target:find "^%d+$" then return tonumber(target) end
  if target:find "^%[.*%]$" then
    local ok, list = pcall(literal, target)
    if ok then return list end
  end
  return target
end

-- Returns the number of a choice, from 1.
local function number_of(self, document, target, choices, field)
  if type(target) == "string" then
    for i, choice in ipairs(choices) do
      if choice == target then return i end
    end
    refuse(self, document, field, "'%s' is none of the choices", target)
  end
  if type(target) ~= "number" then
    refuse(self, document, field, "expected a number or one of the choices, got %s",
      native.describe(target))
  end
  if target % 1 ~= 0 or target < 0 or target >= #choices then
    refuse(self, document, field, "there is no choice %g: the %d choices count from 0",
      target, #choices)
  end
  return target + 1
end

--- Returns the number, from 1, of the right choice if a document has its choices as prompts. Then
--- doc_to_text is this number, from 0, and the target is a text that follows each prompt.
function Task:choice_of_prompt(document)
  if self.output_type ~= "multiple_choice" then return end
  local value, source = self:value("doc_to_text", document), self.doc_to_text
  local is_template = type(source) == "string" and not self.names[source]
  if is_template and value:find "^%d+$" then value = tonumber(value) end
  if type(value) ~= "number" then return end
  return number_of(self, document, value, self:choices(document), "doc_to_text")
end

--- Returns the list of the numbers, from 1, of the choices that are right.
function Task:right_choices(document)
  local in_prompt = self:choice_of_prompt(document)
  if in_prompt then return { in_prompt } end
  local target, choices = self:target(document), self:choices(document)
  local list = type(target) == "table" and target or { target }
  if #list == 0 then refuse(self, document, "doc_to_target", "no choice is right") end
  local numbers = {}
  for i, each in ipairs(list) do
    numbers[i] = number_of(self, document, each, choices, "doc_to_target")
  end
  return numbers
end

local function as_text(self, document, value)
  if type(value) == "table" or value == nil then
    refuse(self, document, "doc_to_target", "expected a text, got %s", native.describe(value))
  end
  return type(value) == "string" and value or render("{{ value }}", { value = value })
end

--- Returns the texts that are right, of which the first is shown in prompts.
function Task:right_texts(document)
  local target = self:target(document)
  if self.doc_to_choice and not self:choice_of_prompt(document) then
    local texts, choices = {}, self:choices(document)
    for i, number in ipairs(self:right_choices(document)) do texts[i] = choices[number] end
    return texts
  end
  local list = type(target) == "table" and target or { target }
  if #list == 0 then refuse(self, document, "doc_to_target", "the list is empty") end
  local texts = {}
  for i, each in ipairs(list) do texts[i] = as_text(self, document, each) end
  return texts
end

--- Returns where a document comes from.
function Task:place(document)
  for _, set in ipairs { self.documents, self.fewshot } do
    for i, each in ipairs(set.list) do
      if each == document then return set.place(i) end
    end
  end
  return "a document"
end

local function check_row(where, row)
  check_fields(where, row, fields)
  if not row.data then fail("%s: data is missing: the path of a file with the documents", where) end
  local kind = row.output_type
  if kind and not output_types[kind] then
    fail("%s: output_type: expected %s, got '%s'", where,
      table.concat(names_of(output_types), ", "), kind)
  end
  if row.doc_to_target == nil then fail("%s: doc_to_target is missing", where) end
  if kind == "multiple_choice" and row.doc_to_choice == nil then
    fail("%s: doc_to_choice is missing: multiple_choice needs the choices", where)
  end
  if row.filter_list and (kind or defaults.output_type) ~= "generate_until" then
    fail("%s: filter_list: filters are for output_type = \"generate_until\"", where)
  end
  if row.repeats and (row.repeats < 1 or row.repeats % 1 ~= 0) then
    fail("%s: repeats: expected a whole number of at least 1, got %g", where, row.repeats)
  end
  if row.stride and kind ~= "loglikelihood_rolling" then
    fail("%s: stride is for output_type = \"loglikelihood_rolling\"", where)
  end
end

-- Returns the plain values of a row, for the file of results.
local function plain(row)
  local copy = {}
  for name, value in pairs(row) do
    if type(value) == "function" then
      copy[name] = "a function"
    elseif type(value) ~= "userdata" and name ~= "data" and name ~= "fewshot_data"
      or type(value) == "string" then
      copy[name] = value
    end
  end
  return copy
end

--- Returns the fields of a task or a group, a path or a table, and the path.
local function read_given(given)
  local path = type(given) == "string" and given or nil
  if not path and type(given) ~= "table" then
    fail("evaluate: tasks: expected paths or tables of fields, got %s", native.describe(given))
  end
  return path and read(path) or given, path
end

--- Returns a task from its fields and its path, which may be nil. `o.num_fewshot`, if given,
--- replaces the task's.
local function new_task(row, path, o)
  local where = path or "evaluate: task " .. tostring(row.task or "without a name")
  check_row(where, row)
  local self = setmetatable({ where = where }, Task)
  for name, value in pairs(defaults) do self[name] = value end
  for name, value in pairs(row) do self[name] = value end
  self.num_fewshot = o.num_fewshot or self.num_fewshot
  self.task = row.task or path and path:match "([^/]+)%.%w+$"
    or fail("%s: task is missing: the name of the task", where)
  local dir = path and path:match "^.*/" or ""
  self.documents = documents(where .. ": data", absolute(dir, self.data), row.process_doc)
  self.names = self.documents.names
  local is_own = row.fewshot_data == nil or row.fewshot_data == row.data
  self.fewshot = is_own and self.documents
    or documents(where .. ": fewshot_data", absolute(dir, row.fewshot_data), row.process_doc)
  self.metrics = metrics.of(where, self.output_type, row.metric_list)
  self.filters = new_filters(where, row.filter_list)
  self.config = plain(row)
  self.config.task, self.config.num_fewshot = self.task, self.num_fewshot
  self.config.output_type = self.output_type
  return self
end

return { read = read_given, new = new_task, absolute = absolute, check_fields = check_fields }
