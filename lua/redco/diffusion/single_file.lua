--- A checkpoint of the original layout, all parts in one file, with the configurations and the
--- tokenizers of a folder of diffusers.
local component = require "redco.diffusion.component"
local fail = require "redco.fail"
local files = require "redco.models.files"
local models = require "redco.models"
local names = require "redco.diffusion.original_names"

local single_file = {}

-- Returns the weights of a part, an object like that of native.open_weights: `name_of` returns the
-- name in the file for that of a parameter, and how the file holds it.
local function part_of(whole, own_names, prefix, name_of)
  local part, sources = { path = whole.path }, {}
  local keys, in_file = {}, {}
  for _, key in ipairs(whole:keys()) do in_file[key] = true end
  for _, name in ipairs(own_names) do
    local original, form = name_of(name)
    local source = original and prefix .. original
    if source and in_file[source] then
      keys[#keys + 1], sources[name] = name, { source, form }
    end
  end

  local function tensor(name)
    local source, form = unpack(sources[name])
    local t = whole:tensor(source)
    if form == "conv" and t:dim() == 4 then return t:flatten(1) end
    if form == "transposed" then return t:t() end
    if type(form) == "number" then
      local size = t:size(0) / 3
      return t:narrow(0, form * size, size)
    end
    return t
  end

  function part.keys() return keys end
  function part.shape(_, name) return tensor(name).shape end
  function part.tensor(_, name) return tensor(name) end
  return part
end

local function names_of(family, c)
  local list = {}
  family.add_parameters(c, function(name) list[#list + 1] = name end)
  return list
end

local function has_prefix(weights, prefix)
  for _, key in ipairs(weights:keys()) do
    if key:sub(1, #prefix) == prefix then return true end
  end
end

local function same(name) return name end

-- Where files hold text encoders: {prefix, names}.
local places = {
  text_encoder = { { "cond_stage_model.transformer.", same },
    { "conditioner.embedders.0.transformer.", same },
    { "cond_stage_model.model.", names.open_clip },
    { "conditioner.embedders.0.model.", names.open_clip } },
  text_encoder_2 = { { "conditioner.embedders.1.model.", names.open_clip } },
}

local model_places = {
  UNet2DConditionModel = { "model.diffusion_model.", names.unet },
  AutoencoderKL = { "first_stage_model.", names.vae },
}

--- Returns a UNet or an autoencoder with the weights of the file and the configuration of `dir`.
function single_file.model(weights, dir, options)
  local where = dir .. "/config.json"
  local given = files.json(dir, "config.json") or fail("there is no %s", where)
  local class = component.class(given._class_name, where)
  local prefix, name_of = unpack(model_places[class.class_name])
  local c = component.complete(class, given, where)
  return component.from_weights(given, where,
    part_of(weights, names_of(class, c), prefix, name_of(c)), options)
end

--- Returns a text encoder.
function single_file.text_encoder(weights, name, dir, task, options)
  local model = models.from_config(dir, { task = task })
  for _, place in ipairs(places[name]) do
    if has_prefix(weights, place[1]) then
      local own = names_of(model.family, model.config)
      model.params = files.load_params(model.family, model.config,
        part_of(weights, own, place[1], place[2]), options)
      return model
    end
  end
  fail("%s: no weights of the %s in this file: no names begin with %s", weights.path, name,
    places[name][1][1])
end

return single_file
