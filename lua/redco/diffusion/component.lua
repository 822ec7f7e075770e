--- A model in diffusers' form, a UNet, a transformer or an autoencoder: a folder with config.json
--- and diffusion_pytorch_model.safetensors. A class is a table of facts: those of config.lua, of
--- models.files, new_functions(config) -> functions by name, and older_class_name, or nil.
local arguments = require "redco.arguments"
local config = require "redco.diffusion.config"
local fail = require "redco.fail"
local files = require "redco.models.files"
local json = require "redco.models.json"
local names_of = require "redco.names_of"
local native = require "redco.native"
local set_texts = require "redco.diffusion.component_texts"
local torch = require "redco.torch"

local component = {}

local stem = "diffusion_pytorch_model"

local classes = {}
local older_classes = {}
for _, name in ipairs { "unet", "autoencoder_kl", "dit_transformer", "flux_transformer",
  "sd3_transformer" } do
  local class = require("redco.diffusion." .. name)
  classes[class.class_name] = class
  if class.older_class_name then older_classes[class.older_class_name] = class end
end

--- Returns the facts of a class; `where` is its file, for errors.
function component.class(name, where)
  local class = classes[name] or older_classes[name]
  if class then return class end
  fail("%s: %s; the supported classes are %s", where, name == nil and "_class_name is missing"
    or ("unknown class '%s'"):format(tostring(name)), table.concat(names_of(classes), ", "))
end

local Component = { __name = "Component" }
Component.__index = Component

local save_options = arguments("save_pretrained", { max_shard_size = "10GB" }, { "params" })

-- Returns the configuration without the empty lists of a script, which JSON would write as objects.
-- An empty list is the default of every key that may have one.
local function written(c)
  local copy = json.copy(c)
  for key, value in pairs(c) do
    if type(value) == "table" and next(value) == nil and not getmetatable(value) then
      copy[key] = nil
    end
  end
  return copy
end

local function save(model, dir, options)
  local o = save_options(options)
  local params = o.params or model.params
  files.check_names(model.family, model.config, params)
  native.save_weights(dir, params, { stem = stem, max_shard_size = o.max_shard_size,
    texts = { ["config.json"] = json.encode("config.json", written(model.config), 2) .. "\n" } })
end

local function new(class, c, params)
  local model = setmetatable({ family = class, config = c, params = params }, Component)
  for name, f in pairs(class.new_functions(c)) do model[name] = f end
  function model.save_pretrained(dir, options) save(model, dir, options) end
  for name, f in pairs(model) do
    if type(f) == "function" then
      model[name] = function(first, ...)
        if rawequal(first, model) then
          fail("%s is called with a dot, not a colon: model.%s(...)", name, name)
        end
        return f(first, ...)
      end
    end
  end
  set_texts(model)
  return model
end

function Component:__call(...)
  if not self.forward then
    fail("an %s has no call, only encode(params, images) and decode(params, latents)",
      self.family.class_name)
  end
  return self.forward(...)
end

function Component:__tostring()
  local n_params, n_tensors = 0, 0
  for _, leaf in pairs(self.params) do
    if torch.is_tensor(leaf) then n_params, n_tensors = n_params + leaf:numel(), n_tensors + 1 end
  end
  return ("%s: %.0f parameters in %d tensors"):format(self.family.class_name, n_params, n_tensors)
end

--- Returns the complete configuration of a class.
function component.complete(class, given, where)
  local c = config.complete(class, given, where)
  class.check(c, where)
  return c
end

--- Returns a model with new weights. options: dtype, generator.
function component.from_config(given, where, options)
  if type(given) ~= "table" then
    fail("%s: expected a configuration, got %s", where, type(given))
  end
  local class = component.class(given._class_name, where)
  local c = component.complete(class, given, where)
  return new(class, c, files.add_new({}, class, c, options.dtype, options.generator))
end

-- Opens the weights of a folder; like diffusers, prefers safetensors.
local function open_weights(dir)
  local names = {}
  for _, ending in ipairs { ".safetensors", ".safetensors.index.json", ".bin" } do
    local path = dir .. "/" .. stem .. ending
    if native.file_exists(path) then return native.open_weights(path) end
    names[#names + 1] = stem .. ending
  end
  fail("%s: no weights in this folder, expected one of %s", dir, table.concat(names, ", "))
end

--- Loads a model with given weights, an object like that of native.open_weights. options: dtype
--- (nil: as stored), low_memory.
function component.from_weights(given, where, weights, options)
  local class = component.class(given._class_name, where)
  local c = component.complete(class, given, where)
  return new(class, c, files.load_params(class, c, weights, options))
end

--- Opens a folder.
function component.load(dir, options)
  local given = files.json(dir, "config.json")
  if not given then fail("there is no %s/config.json", dir) end
  component.class(given._class_name, dir .. "/config.json")
  return component.from_weights(given, dir .. "/config.json", open_weights(dir), options)
end

return component
