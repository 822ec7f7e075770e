--- A pipeline of diffusers: a folder of model_index.json with a sub-folder for each part.
local arguments = require "redco.arguments"
local component = require "redco.diffusion.component"
local fail = require "redco.fail"
local files = require "redco.models.files"
local losses = require "redco.diffusion.losses"
local models = require "redco.models"
local generate = require("redco.diffusion.sampling").generate
local native = require "redco.native"
local json = require "redco.models.json"
local kinds = require "redco.diffusion.kinds"
local names_of = require "redco.names_of"
local single_file = require "redco.diffusion.single_file"
local schedulers = require "redco.diffusion.schedulers.config"
local set_texts = require "redco.diffusion.pipeline_texts"
local text = require "redco.diffusion.text"

local pipeline = {}

local index_file = "model_index.json"

-- Parts that are not read, because pictures are the same without them.
local ignored = { feature_extractor = true, image_encoder = true, safety_checker = true }

local tasks = { CLIPTextModel = "features", CLIPTextModelWithProjection = "projection",
  T5EncoderModel = "features" }

local tokenizers = { CLIPTokenizer = true, CLIPTokenizerFast = true, T5Tokenizer = true,
  T5TokenizerFast = true }

local function listed(t) return table.concat(names_of(t), ", ") end

local function load_text_encoder(dir, class, options, name)
  local task = tasks[class]
  if not task then
    fail("%s/%s: unknown class '%s' of a text encoder; the supported classes are %s", dir,
      index_file, class, listed(tasks))
  end
  return function(path)
    local model = options.single_file
      and single_file.text_encoder(options.single_file, name, path, task, options)
      or models.from_pretrained(path, { task = task, dtype = options.dtype or "auto",
        low_memory = options.low_memory })
    if model.config.use_attention_mask then
      fail("%s/config.json: use_attention_mask is not supported", path)
    end
    return model
  end
end

local function load_tokenizer(dir, class)
  if not tokenizers[class] then
    fail("%s/%s: unknown class '%s' of a tokenizer; the supported classes are %s", dir, index_file,
      class, listed(tokenizers))
  end
  return native.read_tokenizer
end

local function load_scheduler(_, class)
  return function(path)
    local config = schedulers.read(path .. "/scheduler_config.json")
    config._class_name = config._class_name or class
    return config
  end
end

-- Loads a UNet, a transformer or an autoencoder; the class of the folder must be that of
-- model_index.json.
local function load_model(dir, class, options)
  class = component.class(class, dir .. "/" .. index_file).class_name
  return function(path)
    local model = options.single_file and single_file.model(options.single_file, path, options)
      or component.load(path, options)
    if model.family.class_name ~= class then
      fail("%s/config.json: the class is %s, expected %s by %s", path, model.family.class_name,
        class, index_file)
    end
    return model
  end
end

local loaders = {
  scheduler = load_scheduler, text_encoder = load_text_encoder, text_encoder_2 = load_text_encoder,
  text_encoder_3 = load_text_encoder, tokenizer = load_tokenizer, tokenizer_2 = load_tokenizer,
  tokenizer_3 = load_tokenizer, transformer = load_model, unet = load_model, vae = load_model,
}

local is_model = { text_encoder = true, text_encoder_2 = true, text_encoder_3 = true,
  transformer = true, unet = true, vae = true }

-- Returns the parts of a pipeline by name: the class in diffusers or transformers.
local function classes_of(dir, index)
  local where, classes = dir .. "/" .. index_file, {}
  local class_name = index._class_name
  local kind = kinds[class_name]
  if not kind then
    fail("%s: %s; the supported classes are %s", where, class_name == nil
      and "_class_name is missing" or ("unknown class '%s'"):format(tostring(class_name)),
      listed(kinds))
  end
  for _, name in ipairs(kind.parts) do
    local entry = index[name]
    local class = type(entry) == "table" and entry[2]
    if type(class) == "string" then
      classes[name] = class
    elseif not (kind.optional or {})[name] then
      fail("%s: the %s has no part %s", where, class_name, name)
    end
  end
  local is_setting = {}
  for _, name in ipairs(kind.settings) do is_setting[name] = true end
  for key, entry in pairs(index) do
    local is_known = classes[key] or ignored[key] or is_setting[key] or key:sub(1, 1) == "_"
    local is_off = entry == false
      or type(entry) == "table" and (entry[1] == nil or entry[1] == native.null)
    if not is_known and not is_off then
      fail("%s: unknown part '%s' of the %s", where, key, class_name)
    end
  end
  return classes
end

local save_options = arguments("pipeline.save_pretrained", { max_shard_size = "10GB" },
  { "params" })

local function write_json(dir, name, value)
  native.write_texts(dir, { texts = { [name] = json.encode(name, value, 2) .. "\n" } })
end

local function save_part(dir, p, name, params, o)
  local path = dir .. "/" .. name
  if is_model[name] then
    p[name].save_pretrained(path, { params = params[name], max_shard_size = o.max_shard_size })
  elseif name == "scheduler" then
    write_json(path, "scheduler_config.json", p.scheduler_config)
  else
    p[name]:save_pretrained(path)
  end
end

local function save(p, dir, options)
  local o = save_options(options)
  local params = o.params or p.params
  local index = { _class_name = p.class_name, _diffusers_version = "0.35.2" }
  for _, name in ipairs(p.kind.settings) do index[name] = p.config[name] end
  for name in pairs(p.kind.optional or {}) do
    index[name] = {}
    for i = 1, 2 do json.set_null(index[name], i) end
  end
  for name, class in pairs(p.classes) do
    local is_of_text = name:find "^text_encoder" or name:find "^tokenizer"
    if name == "scheduler" then class = p.scheduler_config._class_name end
    if name == p.kind.model then class = p.denoiser.family.class_name end
    index[name] = { is_of_text and "transformers" or "diffusers", class }
    save_part(dir, p, name, params, o)
  end
  write_json(dir, index_file, index)
end

local Pipeline = { __name = "Pipeline" }
Pipeline.__index = Pipeline

Pipeline.__call = require "redco.diffusion.sampling.call"

function Pipeline:__tostring()
  return ("%s: %s"):format(self.class_name, tostring(self.denoiser))
end

--- Returns a pipeline of these parts, by name; `classes` has their classes. `config` is the table
--- of model_index.json.
function pipeline.new(class_name, classes, parts, config)
  local kind = kinds[class_name]
  local p = setmetatable({ class_name = class_name, classes = classes, config = config or {},
    params = {}, added_tokens = {}, warn = print, kind = kind,
    denoiser = parts[kind.model] }, Pipeline)
  for name, part in pairs(parts) do
    p[name == "scheduler" and "scheduler_config" or name] = part
    if is_model[name] then p.params[name] = part.params end
  end
  p.scheduler_config = schedulers.corrected(class_name, p.scheduler_config)
  local rules_of = p.denoiser.family.sharding_rules
  p.params_sharding_rules = rules_of and rules_of(p.denoiser.params, kind.model .. ".") or {}
  function p.tokenize(prompts, options) return kind.says.tokenize(p, prompts, options) end
  if kind.texts then
    function p.encode_text(params, batch, options) return text.encode(p, params, batch, options) end
  end
  function p.save_pretrained(dir, options) save(p, dir, options) end
  function p.loss(params, batch, options) return losses.loss(p, params, batch, options) end
  function p.encode_images(params, images) return losses.encode_images(p, params, images) end
  function p.generate(params, batch, options) return generate(p, params, batch, options) end
  set_texts(p)
  return p
end

--- Opens a folder. options: dtype (nil: as stored), low_memory, single_file (weights of all models,
--- in place of those of the folder).
function pipeline.load(dir, options)
  local index = files.json(dir, index_file)
  if not index then fail("diffusion.from_pretrained: there is no %s/%s", dir, index_file) end
  local classes, parts = classes_of(dir, index), {}
  for name, class in pairs(classes) do
    parts[name] = loaders[name](dir, class, options, name)(dir .. "/" .. name)
  end
  if index.requires_safety_checker then index.requires_safety_checker = false end
  return pipeline.new(index._class_name, classes, parts, index)
end

return pipeline
