--- redco.diffusion: models that make pictures of noise, in diffusers' folders.
local arguments = require "redco.arguments"
local component = require "redco.diffusion.component"
local fail = require "redco.fail"
local files = require "redco.models.files"
local pipeline = require "redco.diffusion.pipeline"
local registry = require "redco.registry"

local diffusion = {}

-- "auto" keeps the dtype of the files.
local function reading(o)
  return { dtype = o.dtype ~= "auto" and o.dtype or nil, low_memory = o.low_memory }
end

local function check_dir(where, dir)
  if type(dir) ~= "string" then fail("%s: expected a folder, got %s", where, tostring(dir)) end
end

local pipeline_options = arguments("diffusion.from_pretrained",
  { dtype = "float32", low_memory = false })
diffusion.from_pretrained = registry.define("redco.diffusion.from_pretrained", [[
from_pretrained(dir, {dtype = "float32", low_memory = false}) -> pipeline
Opens a folder of diffusers: `model_index.json` and a sub-folder for each part. The result has the
parts `unet`, `vae`, `text_encoder` and `tokenizer` (for SDXL also `text_encoder_2` and
`tokenizer_2`), the table `scheduler_config`, and `params`, a tree with the parameters of all parts:
params.unet and so on. The safety checker and the feature extractor are not read.

The classes are StableDiffusionPipeline and StableDiffusionXLPipeline, also those for images to
images and inpainting; UNet2DConditionModel; AutoencoderKL; CLIPTextModel and
CLIPTextModelWithProjection; CLIPTokenizer. Options as in `redco.models.from_pretrained`. Raises an
error that names a missing part, an unknown class or setting, or a weight that is missing, unknown
or of a wrong shape.]], function(dir, options)
  check_dir("diffusion.from_pretrained", dir)
  return pipeline.load(dir, reading(pipeline_options(options)))
end)

local load_options = arguments("diffusion.load", { dtype = "float32", low_memory = false })
diffusion.load = registry.define("redco.diffusion.load", [[
load(dir, {dtype = "float32", low_memory = false}) -> model
Opens the folder of one part, a UNet or an autoencoder: `config.json` with
`diffusion_pytorch_model.safetensors`. Options as in `redco.models.from_pretrained`.]],
function(dir, options)
  check_dir("diffusion.load", dir)
  return component.load(dir, reading(load_options(options)))
end)

local new_options = arguments("diffusion.from_config", { dtype = "float32" }, { "generator" })
diffusion.from_config = registry.define("redco.diffusion.from_config", [[
from_config(config: table or string, {dtype = "float32", generator = nil}) -> model
Returns a UNet or an autoencoder with new weights, initialised as in diffusers. `config` has
diffusers' keys, `_class_name` among them; missing keys get diffusers' defaults. A string is a folder
whose `config.json` is read.]], function(config, options)
  local o = new_options(options)
  if type(config) == "string" then
    local path = config .. "/config.json"
    local given = files.json(config, "config.json") or fail("there is no %s", path)
    return component.from_config(given, path, o)
  end
  return component.from_config(config, "diffusion.from_config", o)
end)

return registry.define("redco.diffusion", [[
redco.diffusion
Models that make pictures of noise, in the folders of diffusers.]], diffusion)
