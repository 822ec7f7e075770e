--- A checkpoint of the original layout, all parts in one file, with the configurations and the
--- tokenizers of a folder of diffusers.
local component = require "redco.diffusion.component"
local fail = require "redco.fail"
local files = require "redco.models.files"
local models = require "redco.models"
local names = require "redco.diffusion.original_names"
local torch = require "redco.torch"

local single_file = {}

-- Returns the weights of a part as an object like that of native.open_weights. `name_of` maps the
-- name of a parameter to its name and its form in the file. `made` has tensors that replace those
-- of the file.
local function part_of(whole, own_names, prefix, name_of, made)
  local part, sources = { path = whole.path }, {}
  local keys, in_file = {}, {}
  for _, key in ipairs(whole:keys()) do in_file[key] = true end
  for _, name in ipairs(own_names) do
    local original, form = name_of(name)
    local source = original and prefix .. original
    if made[name] or source and in_file[source] then
      keys[#keys + 1], sources[name] = name, { source, form }
    end
  end

  local function tensor(name)
    if made[name] then return made[name] end
    local source, form = unpack(sources[name])
    return names.from_original(whole:tensor(source), form)
  end

  function part.keys() return keys end
  function part.shape(_, name) return tensor(name).shape end
  function part.tensor(_, name) return tensor(name) end
  return part
end

local function names_of(family, c)
  local list, set = {}, {}
  family.add_parameters(c, function(name) list[#list + 1], set[name] = name, true end)
  return list, set
end

local function has_prefix(weights, prefix)
  for _, key in ipairs(weights:keys()) do
    if key:sub(1, #prefix) == prefix then return true end
  end
end

local function same(name) return name end

-- As in diffusers, SD3 reads the features of its first text encoder without a projection.
local function without_projection(c)
  return { ["text_projection.weight"] = torch.eye(c.hidden_size, { dtype = "float32" }) }
end

local function nothing() return {} end

-- Where files hold text encoders: {prefix, names, tensors that are not read}.
local places = {
  text_encoder = { { "cond_stage_model.transformer.", same, nothing },
    { "conditioner.embedders.0.transformer.", same, nothing },
    { "text_encoders.clip_l.transformer.", same, without_projection },
    { "cond_stage_model.model.", names.open_clip, nothing },
    { "conditioner.embedders.0.model.", names.open_clip, nothing } },
  text_encoder_2 = { { "conditioner.embedders.1.model.", names.open_clip, nothing },
    { "text_encoders.clip_g.transformer.", same, nothing } },
  text_encoder_3 = { { "text_encoders.t5xxl.transformer.", same, nothing } },
}

-- Where they hold models: {prefix, names, whether a file may be without it}.
local model_places = {
  UNet2DConditionModel = { "model.diffusion_model.", names.unet },
  SD3Transformer2DModel = { "model.diffusion_model.", names.sd3 },
  DiTTransformer2DModel = { "", names.dit },
  AutoencoderKL = { "first_stage_model.", names.vae, true },
}

--- Returns a UNet, a transformer or an autoencoder with the weights of the file and the
--- configuration of `dir`, or nil if the file has no weights of an autoencoder.
function single_file.model(weights, dir, options)
  local where = dir .. "/config.json"
  local given = files.json(dir, "config.json") or fail("there is no %s", where)
  local class = component.class(given._class_name, where)
  if not model_places[class.class_name] then
    fail("%s: single files with a %s are not supported", weights.path, class.class_name)
  end
  local prefix, name_of, is_optional = unpack(model_places[class.class_name])
  if not has_prefix(weights, prefix) then
    if is_optional then return nil end
    fail("%s: no weights of the %s in this file: no names begin with %s", weights.path,
      class.class_name, prefix)
  end
  local c = component.complete(class, given, where)
  local list, set = names_of(class, c)
  return component.from_weights(given, where,
    part_of(weights, list, prefix, name_of(c, set), {}), options)
end

--- Returns a text encoder, or nil if the file has no weights of it.
function single_file.text_encoder(weights, name, dir, task, options)
  for _, place in ipairs(places[name]) do
    local prefix, name_of, made = unpack(place)
    if has_prefix(weights, prefix) then
      local model = models.from_config(dir, { task = task })
      model.params = files.load_params(model.family, model.config,
        part_of(weights, names_of(model.family, model.config), prefix, name_of,
          made(model.config)), options)
      return model
    end
  end
end

return single_file
