--- A pipeline of diffusers: a folder of model_index.json with a sub-folder for each part.
local arguments = require "redco.arguments"
local component = require "redco.diffusion.component"
local fail = require "redco.fail"
local files = require "redco.models.files"
local losses = require "redco.diffusion.losses"
local models = require "redco.models"
local generate = require("redco.diffusion.sampling").generate
local native = require "redco.native"
local nulls = require "redco.models.nulls"
local ordered = require "redco.ordered"
local single_file = require "redco.diffusion.single_file"
local schedulers = require "redco.diffusion.schedulers.config"
local set_texts = require "redco.diffusion.pipeline_texts"
local text = require "redco.diffusion.text"

local pipeline = {}

local index_file = "model_index.json"

-- Parts of each pipeline class.
local sd = { "scheduler", "text_encoder", "tokenizer", "unet", "vae" }
local xl = { "scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "unet",
  "vae" }
local parts_of = {
  StableDiffusionPipeline = sd, StableDiffusionImg2ImgPipeline = sd,
  StableDiffusionInpaintPipeline = sd, StableDiffusionXLPipeline = xl,
  StableDiffusionXLImg2ImgPipeline = xl, StableDiffusionXLInpaintPipeline = xl,
}

-- Parts that are not read, because pictures are the same without them.
local ignored = { feature_extractor = true, image_encoder = true, safety_checker = true }

-- Settings of model_index.json that are kept.
local settings = { requires_safety_checker = true, force_zeros_for_empty_prompt = true,
  requires_aesthetics_score = true, add_watermarker = true }

local tasks = { CLIPTextModel = "features", CLIPTextModelWithProjection = "projection" }

local function load_text_encoder(dir, class, options, name)
  local task = tasks[class]
  if not task then
    fail("%s/%s: unknown class '%s' of a text encoder; the supported classes are CLIPTextModel, "
      .. "CLIPTextModelWithProjection", dir, index_file, class)
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
  if class ~= "CLIPTokenizer" and class ~= "CLIPTokenizerFast" then
    fail("%s/%s: unknown class '%s' of a tokenizer; the supported classes are CLIPTokenizer, "
      .. "CLIPTokenizerFast", dir, index_file, class)
  end
  return native.Tokenizer.from_pretrained
end

local function load_scheduler(_, class)
  return function(path)
    local config = schedulers.read(path .. "/scheduler_config.json")
    config._class_name = config._class_name or class
    return config
  end
end

-- Loads a UNet or an autoencoder; the class of the folder must be that of model_index.json.
local function load_model(dir, class, options)
  component.class(class, dir .. "/" .. index_file)
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
  tokenizer = load_tokenizer, tokenizer_2 = load_tokenizer, unet = load_model, vae = load_model,
}

local is_model = { text_encoder = true, text_encoder_2 = true, unet = true, vae = true }

-- Returns the parts of a pipeline by name: the class in diffusers or transformers.
local function classes_of(dir, index)
  local where, classes = dir .. "/" .. index_file, {}
  local class_name = index._class_name
  local expected = parts_of[class_name]
  if not expected then
    local names = {}
    for name in pairs(parts_of) do names[#names + 1] = name end
    table.sort(names)
    fail("%s: %s; the supported classes are %s", where, class_name == nil
      and "_class_name is missing" or ("unknown class '%s'"):format(tostring(class_name)),
      table.concat(names, ", "))
  end
  for _, name in ipairs(expected) do
    local entry = index[name]
    local class = type(entry) == "table" and entry[2]
    if type(class) ~= "string" then
      fail("%s: the %s has no part %s", where, class_name, name)
    end
    classes[name] = class
  end
  for key, entry in pairs(index) do
    local is_known = classes[key] or ignored[key] or settings[key] or key:sub(1, 1) == "_"
    local is_off = entry == false or type(entry) == "table" and entry[1] == nil
    if not is_known and not is_off then
      fail("%s: unknown part '%s' of the %s", where, key, class_name)
    end
  end
  return classes
end

local save_options = arguments("pipeline.save_pretrained", { max_shard_size = "10GB" },
  { "params" })

local function write_json(dir, name, value)
  native.write_texts(dir, { texts = { [name] = nulls.encode(name, value, 2) .. "\n" } })
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
  for name in pairs(settings) do index[name] = p.config[name] end
  for name, class in ordered.pairs(p.classes) do
    local library = (name == "scheduler" or name == "unet" or name == "vae") and "diffusers"
      or "transformers"
    if name == "scheduler" then class = p.scheduler_config._class_name end
    index[name] = { library, class }
    save_part(dir, p, name, params, o)
  end
  write_json(dir, index_file, index)
end

local Pipeline = { __name = "Pipeline" }
Pipeline.__index = Pipeline

Pipeline.__call = require "redco.diffusion.sampling.call"

function Pipeline:__tostring()
  return ("%s: %s"):format(self.class_name, tostring(self.unet))
end

--- Returns a pipeline of these parts, by name; `classes` has their classes. `config` is the table
--- of model_index.json.
function pipeline.new(class_name, classes, parts, config)
  local p = setmetatable({ class_name = class_name, classes = classes, config = config or {},
    params = {}, warn = print }, Pipeline)
  for name, part in pairs(parts) do
    p[name == "scheduler" and "scheduler_config" or name] = part
    if is_model[name] then p.params[name] = part.params end
  end
  p.scheduler_config = schedulers.corrected(class_name, p.scheduler_config)
  function p.tokenize(prompts) return text.tokenize(p, prompts) end
  function p.encode_text(params, batch, options) return text.encode(p, params, batch, options) end
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
  for name, class in ordered.pairs(classes) do
    parts[name] = loaders[name](dir, class, options, name)(dir .. "/" .. name)
  end
  if index.requires_safety_checker then index.requires_safety_checker = false end
  return pipeline.new(index._class_name, classes, parts, index)
end

return pipeline
