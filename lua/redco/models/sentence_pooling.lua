--- How a model makes vectors of texts, as folders of sentence-transformers say it.
local arguments = require "redco.arguments"
local check_integer = require "redco.check_integer"
local dense = require "redco.models.sentence_dense"
local fail = require "redco.fail"
local files = require "redco.models.files"
local json = require "redco.models.json"
local names_of = require "redco.names_of"
local native = require "redco.native"
local pooling = require "redco.models.tasks.pooling"
local warn = require "redco.warn"

-- Names that differ in pooling.lua, and the keys of older folders, in the order in which several
-- vectors are joined.
local renamed = { lasttoken = "last" }
local older_keys = {
  { "pooling_mode_cls_token", "cls" },
  { "pooling_mode_max_tokens", "max" },
  { "pooling_mode_mean_tokens", "mean" },
  { "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens" },
  { "pooling_mode_weightedmean_tokens", "weightedmean" },
  { "pooling_mode_lasttoken", "last" },
}

-- Returns the kinds of pooling of a configuration.
local function kinds_of(config, path)
  local kinds, given = {}, config.pooling_mode
  if given == nil then
    for _, row in ipairs(older_keys) do
      if config[row[1]] == true then kinds[#kinds + 1] = row[2] end
    end
    return #kinds > 0 and kinds or { "mean" }
  end
  for i, kind in ipairs(type(given) == "table" and given or { given }) do
    kinds[i] = renamed[kind] or kind
    if not pooling[kinds[i]] then fail("%s: unknown pooling_mode '%s'", path, kind) end
  end
  return kinds
end

local function text_of(name, value) return json.encode(name, value, 2) .. "\n" end

local texts_file, prompts_file = "sentence_bert_config.json", "config_sentence_transformers.json"

-- Adds the length of the longest text, in tokens, and the prompts to put before texts.
local function add_settings(found, dir)
  local texts, prompts = files.json(dir, texts_file), files.json(dir, prompts_file)
  found.max_seq_length = texts and texts.max_seq_length or nil
  found.prompts = prompts and prompts.prompts or {}
  found.default_prompt_name = prompts and prompts.default_prompt_name or nil
  if not found.files then return end
  found.files[texts_file] = texts and text_of(texts_file, texts)
  found.files[prompts_file] = prompts and text_of(prompts_file, prompts)
end

-- Adds the files of the modules.
local function add_files(found, modules)
  if not found.files then return end
  found.files["modules.json"] = modules and text_of("modules.json", modules)
  for _, step in ipairs(found.steps) do
    local name = step.folder and step.folder .. "/config.json"
    if name then found.files[name] = text_of(name, step.config) end
  end
end

-- Returns the settings of ColBERT's own class: a vector of length 1 for each token.
local function of_colbert(weights)
  return { kinds = {}, steps = { dense.of_colbert(weights), "normalize" }, prompts = {} }
end

-- Returns the settings of a folder, or nil if it has none: { kinds, steps, prompts,
-- default_prompt_name, max_seq_length, files }. `kinds` lists the vectors to join; without any,
-- each token has a vector. `steps` lists what follows: "normalize", or a layer of
-- sentence_dense.lua. `prompts` are by name, and so are `files`, the texts of the files with these
-- settings.
local function read(dir)
  local modules = files.json(dir, "modules.json")
  local found = { steps = {}, files = {} }
  local path = not modules and "1_Pooling"
  for _, module in ipairs(modules or {}) do
    local kind = type(module) == "table" and tostring(module.type):match "[^.]*$"
    if kind == "Pooling" then
      path = module.path or ""
    elseif kind == "Normalize" then
      table.insert(found.steps, "normalize")
    elseif kind == "Dense" then
      table.insert(found.steps, dense.read(dir, module.path))
    elseif kind ~= "Transformer" then
      found.files = nil
      warn("%s/modules.json: what %s does to the vectors is not done", dir, tostring(kind))
    end
  end
  if not path and type(found.steps[1]) == "table" then
    -- Without pooling, each token has a vector. Programs compare such vectors by direction.
    table.insert(found.steps, "normalize")
    found.kinds = {}
    add_files(found, modules)
    add_settings(found, dir)
    return found
  end
  if not path then return nil end
  if not tostring(path):find "^[%w_]+$" then
    fail("%s/modules.json: the path of Pooling is '%s', expected one as 1_Pooling", dir, path)
  end
  local name = path .. "/config.json"
  local config = files.json(dir, name)
  if not config then return nil end
  found.kinds = kinds_of(config, dir .. "/" .. name)
  if config.include_prompt == false then
    warn("%s/%s: include_prompt is false, but the tokens of a prompt count in vectors", dir, name)
  end
  if found.files then found.files[name] = text_of(name, config) end
  add_files(found, modules)
  add_settings(found, dir)
  return found
end

local options = arguments("model.set_sentence_pooling",
  { pooling = "mean", normalize = true, prompts = {} }, { "default_prompt_name", "max_seq_length" })

-- Returns the configuration of a kind of pooling, as sentence-transformers writes it.
local function pooling_config(kind, size)
  local config = { word_embedding_dimension = size, include_prompt = true }
  for _, row in ipairs(older_keys) do config[row[1]] = row[2] == kind end
  return config
end

local function modules_of(steps)
  local rows, list = { { "Transformer", "" }, { "Pooling", "1_Pooling" } }, {}
  for i, step in ipairs(steps) do
    rows[i + 2] = step == "normalize" and { "Normalize", ("%d_Normalize"):format(i + 1) }
      or { "Dense", step.folder }
  end
  for i, row in ipairs(rows) do
    list[i] = { idx = i - 1, name = tostring(i - 1), path = row[2],
      type = "sentence_transformers.models." .. row[1] }
  end
  return list
end

local function check(o)
  local kinds = {}
  for _, row in ipairs(older_keys) do kinds[row[2]] = true end
  local where = "model.set_sentence_pooling"
  if not kinds[o.pooling] then
    fail("%s: pooling: expected one of %s, got %s", where, table.concat(names_of(kinds), ", "),
      native.describe(o.pooling))
  end
  if type(o.prompts) ~= "table" or o.prompts[1] ~= nil then
    fail("%s: prompts: expected texts by name, got %s", where, native.describe(o.prompts))
  end
  for name, prompt in pairs(o.prompts) do
    if type(prompt) ~= "string" then
      fail("%s: prompts: %s: expected a text, got %s", where, name, native.describe(prompt))
    end
  end
  if o.default_prompt_name and not o.prompts[o.default_prompt_name] then
    fail("%s: default_prompt_name: '%s' is none of the prompts", where, o.default_prompt_name)
  end
  if o.max_seq_length then check_integer(where, "max_seq_length", o.max_seq_length, 1) end
end

local sentence_pooling = {}

--- Returns the folder's settings for sentences, the family with the layers that they add, and the
--- weights (or nil) with the weights of these layers.
function sentence_pooling.open(family, weights, dir)
  local found = read(dir)
  if not found and weights and family.is_colbert then found = of_colbert(weights) end
  if not found then return nil, family, weights end
  return found, dense.family(family, found.steps),
    weights and dense.weights(weights, dir, found.steps)
end

--- Returns what a model says after a call with these options. `size` is that of the vectors; of
--- `before`, what it said, the layers stay.
function sentence_pooling.of(given, size, before)
  local o = options(given)
  check(o)
  local prompts = next(o.prompts) and o.prompts or native.ordered_table()
  local steps = {}
  for _, step in ipairs(before and before.steps or {}) do
    if type(step) == "table" then table.insert(steps, step) end
  end
  if o.normalize then table.insert(steps, "normalize") end
  local found = {
    kinds = { o.pooling }, steps = steps, prompts = o.prompts,
    default_prompt_name = o.default_prompt_name, max_seq_length = o.max_seq_length,
    files = {
      ["1_Pooling/config.json"] = text_of("1_Pooling/config.json",
        pooling_config(o.pooling, size)),
      [texts_file] = text_of(texts_file,
        { max_seq_length = o.max_seq_length, do_lower_case = false }),
      [prompts_file] = text_of(prompts_file, { prompts = prompts,
        default_prompt_name = o.default_prompt_name, similarity_fn_name = "cosine" }),
    },
  }
  add_files(found, modules_of(steps))
  return found
end

return sentence_pooling
