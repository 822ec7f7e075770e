--- redco.diffusion: models that make pictures of noise, in diffusers' folders.
local arguments = require "redco.arguments"
local component = require "redco.diffusion.component"
local fail = require "redco.fail"
local files = require "redco.models.files"
local lora = require "redco.diffusion.lora"
local native = require "redco.native"
local pipeline = require "redco.diffusion.pipeline"
local registry = require "redco.registry"

local diffusion = { scheduler = require "redco.diffusion.schedulers" }

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

local single_options = arguments("diffusion.from_single_file",
  { dtype = "float32", low_memory = false })
diffusion.from_single_file = registry.define("redco.diffusion.from_single_file", [[
from_single_file(path, dir, {dtype = "float32", low_memory = false}) -> pipeline
Opens a checkpoint of the original layout, one file with the weights of all parts. Such a file has
no configurations and no tokenizers: those of `dir` are taken, a folder of diffusers whose weights
may be missing. Options as in `redco.models.from_pretrained`.]], function(path, dir, options)
  check_dir("diffusion.from_single_file", path)
  check_dir("diffusion.from_single_file", dir)
  local o = reading(single_options(options))
  o.single_file = native.open_weights(path)
  return pipeline.load(dir, o)
end)

local lora_options = arguments("diffusion.load_lora", {}, { "params" })
diffusion.load_lora = registry.define("redco.diffusion.load_lora", [[
load_lora(pipeline, path, {params = pipeline.params}) -> params
Returns the tree of parameters with the adapters of a file, or of a folder with
`pytorch_lora_weights.safetensors`: names of diffusers (unet.X.lora_A.weight, or .lora.down.weight)
or of kohya's scripts (lora_unet_X.lora_down.weight with alpha). Only linear layers may have one. A
name without a layer raises an error.]], function(p, path, options)
  check_dir("diffusion.load_lora", path)
  return lora.load(p, path, lora_options(options).params or p.params)
end)

local save_lora_options = arguments("diffusion.save_lora", { format = "diffusers" })
diffusion.save_lora = registry.define("redco.diffusion.save_lora", [[
save_lora(dir, params, {format: string = "diffusers"})
Writes the adapters of a pipeline's parameters as `pytorch_lora_weights.safetensors` in the folder.
`format` is "diffusers" or "kohya". Files of diffusers have no scaling: it is multiplied into
lora_B.]], function(dir, params, options)
  check_dir("diffusion.save_lora", dir)
  lora.save(dir, params, save_lora_options(options).format)
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

local part_options = arguments("diffusion.pipeline", {},
  { "unet", "vae", "text_encoder", "tokenizer", "scheduler" })
diffusion.pipeline = registry.define("redco.diffusion.pipeline", [[
pipeline{unet: table, vae: table, text_encoder, tokenizer, scheduler: table} -> pipeline
Returns a StableDiffusionPipeline of these parts: a UNet2DConditionModel, an AutoencoderKL, a CLIP
text model with the task "features", its tokenizer, and the table of a scheduler_config.json.]],
function(options)
  local o = part_options(options)
  local classes = { unet = "UNet2DConditionModel", vae = "AutoencoderKL",
    text_encoder = "CLIPTextModel", tokenizer = "CLIPTokenizer" }
  for _, name in ipairs { "unet", "vae", "text_encoder", "tokenizer", "scheduler" } do
    if not o[name] then fail("diffusion.pipeline: the part %s is missing", name) end
  end
  classes.scheduler = diffusion.scheduler(o.scheduler).name
  return pipeline.new("StableDiffusionPipeline", classes, o, {})
end)

return registry.define("redco.diffusion", [[
redco.diffusion
Models that make pictures of noise, in the folders of diffusers.]], diffusion)
