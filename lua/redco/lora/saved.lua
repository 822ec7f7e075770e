--- The modules that are trained and saved whole beside the adapters, such as a new head: peft's
--- modules_to_save. Each layer of such a module has the plain value lora_saved = true; without that
--- value heads of tasks are such modules.
local fail = require "redco.fail"
local layers = require "redco.lora.layers"
local native = require "redco.native"
local torch = require "redco.torch"

local saved = {}

-- The types of tasks that peft knows, and whether their models have a head of the task.
local task_types = {
  CAUSAL_LM = false, FEATURE_EXTRACTION = false, QUESTION_ANS = true, SEQ_2_SEQ_LM = false,
  SEQ_CLS = true, TOKEN_CLS = true,
}

-- The first parts of the names of the parameters of such heads.
local heads = {
  classification_head = true, classifier = true, pre_classifier = true, qa_outputs = true,
  score = true,
}

--- Raises an error for a task_type that peft does not know.
function saved.check_task_type(where, task_type)
  if task_type == nil or task_types[task_type] ~= nil then return end
  local names = {}
  for name in pairs(task_types) do names[#names + 1] = name end
  table.sort(names)
  fail("%s: task_type = %s is not one of %s", where, tostring(task_type),
    table.concat(names, ", "))
end

local function is_head(name) return heads[name:match "^([^.]+)%."] == true end

--- Returns whether a tree has the head of a task.
function saved.has_head(params)
  for name in pairs(saved.parameters(params)) do
    if is_head(name) then return true end
  end
  return false
end

--- Returns whether a module on the way to the parameter has a name that ends in `ending`, as peft
--- compares them.
function saved.is_below(name, ending)
  local dot = name:find(".", 1, true)
  while dot do
    if name:sub(1, dot - 1):sub(-#ending) == ending then return true end
    dot = name:find(".", dot + 1, true)
  end
  return false
end

local function collect(node, path, found)
  for key, value in pairs(node) do
    local name = path == "" and tostring(key) or path .. "." .. key
    if type(value) == "table" then
      collect(value, name, found)
    elseif torch.is_tensor(value) and not layers.is_adapter(name) then
      found[name] = { node = node, key = key }
    end
  end
  return found
end

--- Returns the places of all parameters that do not belong to adapters: {[name] = {node, key}}.
function saved.parameters(params) return collect(params, "", {}) end

-- The key of the mark of the layer that has this parameter, or nil for a tensor without a layer.
local function mark_key(key)
  if type(key) ~= "string" then return nil end
  return (key:match "^.*%." or "") .. "lora_saved"
end

-- Returns the names of the parameters that the files of the base lack, and the names of those that
-- the files lack or hold differently; none if the base was not read from a file.
local function new_names(parameters)
  local lacking, others, has_file = {}, {}, false
  for name, place in pairs(parameters) do
    local _, tensor = native.source_of(place.node[place.key])
    if tensor == "" then lacking[name] = true end
    if tensor == nil or tensor == "" then others[name] = true else has_file = true end
  end
  return has_file and lacking or {}, has_file and others or {}
end

-- Whether the parameters of the trees that have been made here are saved whole, by name:
-- {[name] = {tensors = {...}, is_saved = {...}}}.
local noted = {}

local function note(parameters, chosen)
  for name, place in pairs(parameters) do
    local notes = noted[name]
    if not notes then
      notes = { n = 0, tensors = setmetatable({}, { __mode = "v" }), is_saved = {} }
      noted[name] = notes
    end
    notes.n = notes.n + 1
    notes.tensors[notes.n], notes.is_saved[notes.n] = place.node[place.key], chosen[name] == true
  end
end

-- Returns whether the parameter is saved whole if a noted tree has this tensor, else nil; and the
-- answer of all noted trees with the name: true, false or "both". A tree may be a part of another.
local function by_notes(name, parameter)
  while not noted[name] and name:find(".", 1, true) do name = name:gsub("^[^.]*%.", "") end
  local notes, of_tensor, of_all = noted[name] or { n = 0 }, nil, nil
  for i = 1, notes.n do
    local tensor, is_saved = notes.tensors[i], notes.is_saved[i]
    if tensor and parameter and native.is_same(tensor, parameter) then
      of_tensor = is_saved or of_tensor == true
    end
    if tensor and of_all == nil then of_all = is_saved end
    if tensor and of_all ~= is_saved then of_all = "both" end
  end
  return of_tensor, of_all
end

--- Marks these parameters of the tree, {[name] = true}, as saved whole, beside those that are
--- marked.
function saved.mark(params, chosen)
  local parameters = saved.parameters(params)
  for name, place in pairs(parameters) do
    local key = mark_key(place.key)
    if key and place.node[key] == true then chosen[name] = true end
    if chosen[name] and not (key and name:find(".", 1, true)) then
      fail("lora: the parameter %s belongs to no module, and only modules can be saved whole", name)
    end
    if key and (chosen[name] or is_head(name)) then place.node[key] = chosen[name] == true end
    -- A separate tensor object, which other trees with the same base do not share.
    if chosen[name] then place.node[place.key] = place.node[place.key]:detach() end
  end
  note(parameters, chosen)
end

--- Returns the parameters to save whole, {[name] = true}, by the options of lora.add.
function saved.choose(params, o)
  local parameters, chosen = saved.parameters(params), {}
  local endings = o.modules_to_save
  for _, ending in ipairs(endings or {}) do
    local is_found = false
    for name in pairs(parameters) do
      if saved.is_below(name, ending) then chosen[name], is_found = true, true end
    end
    if not is_found then
      fail("lora.add: modules_to_save: there is no module whose name ends in '%s'", ending)
    end
  end
  local has_heads = o.task_type and task_types[o.task_type]
  if o.task_type == nil then has_heads = endings == nil end
  for name in pairs(parameters) do
    if has_heads and is_head(name) then chosen[name] = true end
  end
  if endings == nil and o.task_type == nil then
    for name in pairs((new_names(parameters))) do chosen[name] = true end
  end
  return chosen
end

--- Returns the parameters of a tree that are saved whole: {[name] = true}.
function saved.of(params)
  local parameters, chosen = saved.parameters(params), {}
  for name, place in pairs(parameters) do
    local key = mark_key(place.key)
    local mark = key and place.node[key]
    if mark == nil then mark = is_head(name) end
    if mark then chosen[name] = true end
  end
  return chosen, parameters
end

--- Returns the parameters that are saved whole and those that were trained, as `of` does.
function saved.trained(params)
  local chosen, parameters = saved.of(params)
  for name, place in pairs(parameters) do
    if place.node[place.key].requires_grad then chosen[name] = true end
  end
  return chosen, parameters
end

--- Returns what a folder of adapters must have besides them: also the parameters that the files of
--- the base do not have as they are.
function saved.to_write(params)
  local chosen, parameters = saved.trained(params)
  for name in pairs((select(2, new_names(parameters)))) do
    local place = parameters[name]
    local stem = type(place.key) == "string" and (place.key:match "^(.*)weight$"
      or place.key:match "^(.*)weight_input_scale$")
    -- A folder cannot hold quantized weights, and the adapter has a part of some weights.
    local is_base = stem and (place.node[stem .. "weight_type"] or place.node[stem .. "lora_init"])
    if not is_base then chosen[name] = true end
  end
  return chosen, parameters
end

--- Returns whether the parameter of this name is neither of an adapter nor saved whole. A tensor of
--- a tree that was made here is as that tree says, any other, such as one of a checkpoint, as all
--- trees with the name say. `decided` keeps what was said of a name.
function saved.is_frozen(name, parameter, decided)
  if layers.is_adapter(name) then return false end
  local is_saved, of_all = by_notes(name, parameter)
  if is_saved == nil then is_saved = decided[name] end
  if is_saved == nil then is_saved = of_all end
  if is_saved == "both" then
    fail("lora.freeze_base: %s is saved whole in one tree of this program and not in another; give "
      .. "the tree too: redco.lora.freeze_base(optimizer, params)", name)
  end
  if is_saved == nil then is_saved = is_head(name) end
  decided[name] = is_saved
  return not is_saved
end

--- Returns the names of the modules of these parameters, as peft writes modules_to_save: the first
--- part for heads, the last part if it stands for these parameters alone, else the whole name.
function saved.module_names(chosen, parameters)
  local stands_for_them, names, seen = {}, {}, {}
  local function is_enough(ending)
    if stands_for_them[ending] == nil then
      stands_for_them[ending] = true
      for name in pairs(parameters) do
        local is_other = saved.is_below(name, ending) and not chosen[name]
        if is_other then stands_for_them[ending] = false end
      end
    end
    return stands_for_them[ending]
  end
  for name in pairs(chosen) do
    local module = name:match "^(.*)%.[^.]*$"
    local last = module:match "[^.]*$"
    local short = is_head(name) and name:match "^[^.]+" or is_enough(last) and last or module
    if not seen[short] then names[#names + 1] = short end
    seen[short] = true
  end
  table.sort(names)
  return names
end

return saved
