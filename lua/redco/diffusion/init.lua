--- redco.diffusion: models that make pictures of noise, in diffusers' folders.
local arguments = require "redco.arguments"
local component = require "redco.diffusion.component"
local fail = require "redco.fail"
local files = require "redco.models.files"
local hub = require "redco.hub"
local kinds = require "redco.diffusion.kinds"
local lora = require "redco.diffusion.lora"
local native = require "redco.native"
local pipeline = require "redco.diffusion.pipeline"
local registry = require "redco.registry"
local textual_inversion = require "redco.diffusion.textual_inversion"
local strict = require "redco.strict"

local diffusion = { scheduler = require "redco.diffusion.schedulers" }

-- "auto" keeps the dtype of the files.
local function reading(o)
  return { dtype = o.dtype ~= "auto" and o.dtype or nil, low_memory = o.low_memory }
end

local function check_dir(where, dir)
  if type(dir) ~= "string" then fail("%s: expected a folder, got %s", where, dir) end
end

-- Returns the path of a folder or a file that is read, of a kind of redco.hub.needed.
local function source_path(where, dir, kind, o)
  check_dir(where, dir)
  return hub.path(where, dir, kind, o)
end

local pipeline_options = arguments("diffusion.from_pretrained",
  { dtype = "float32", low_memory = false }, { "revision", "download" })
diffusion.from_pretrained = registry.define("redco.diffusion.from_pretrained", [[
from_pretrained(dir, {dtype = "float32", low_memory = false, revision: string = nil,
  download: boolean = nil}) -> pipeline
Opens a folder of diffusers: `model_index.json` and a sub-folder for each part. The result has the
parts of model_index.json, such as `unet`, `vae`, `text_encoder` and `tokenizer`, the table
`scheduler_config`, and `params`, a tree with the parameters of all parts: params.unet and so on.
The safety checker and the feature extractor are not read.

The classes are StableDiffusionPipeline and StableDiffusionXLPipeline, also those for images to
images and inpainting; StableDiffusion3Pipeline, also for images to images, whose T5 may be null;
FluxPipeline; DiTPipeline; UNet2DConditionModel; SD3Transformer2DModel; FluxTransformer2DModel;
DiTTransformer2DModel; AutoencoderKL; CLIPTextModel and CLIPTextModelWithProjection;
T5EncoderModel; CLIPTokenizer and T5TokenizerFast.
Options as in `redco.models.from_pretrained`. Raises an error that names a missing part, an unknown
class or setting, or a weight that is missing, unknown or of a wrong shape.]],
function(dir, options)
  local o = pipeline_options(options)
  return pipeline.load(source_path("diffusion.from_pretrained", dir, "pipeline", o), reading(o))
end)

local single_options = arguments("diffusion.from_single_file",
  { dtype = "float32", low_memory = false })
diffusion.from_single_file = registry.define("redco.diffusion.from_single_file", [[
from_single_file(path, dir, {dtype = "float32", low_memory = false}) -> pipeline
Opens a checkpoint of the original layout, one file with the weights of all parts: of Stable
Diffusion 1, 2, XL and 3, or the transformer of a DiT. Such a file has no configurations and no
tokenizers: those of `dir` are taken, a folder of diffusers, which needs weights only of text
encoders and an autoencoder that the file lacks. To do without T5, model_index.json of `dir` has
"text_encoder_3": [null, null] and the same for tokenizer_3. Options as in
`redco.models.from_pretrained`.]], function(path, dir, options)
  path = source_path("diffusion.from_single_file", path, "component")
  dir = source_path("diffusion.from_single_file", dir, "pipeline")
  local o = reading(single_options(options))
  o.single_file = native.open_weights(path)
  return pipeline.load(dir, o)
end)

local lora_options = arguments("diffusion.load_lora", {}, { "params" })
diffusion.load_lora = registry.define("redco.diffusion.load_lora", [[
load_lora(pipeline, path, {params = pipeline.params}) -> params
Returns the tree of parameters with the adapters of a file, or of a folder with
`pytorch_lora_weights.safetensors`: names of diffusers (unet.X.lora_A.weight, or .lora.down.weight)
or of kohya's scripts (lora_unet_X.lora_down.weight with alpha), which may have one adapter for q, k
and v of Stable Diffusion 3. Only linear layers may have one. A name without a layer raises an
error.]], function(p, path, options)
  path = source_path("diffusion.load_lora", path, "picture_adapters")
  return lora.load(p, path, lora_options(options).params or p.params)
end)

local save_lora_options = arguments("diffusion.save_lora", { format = "diffusers" })
diffusion.save_lora = registry.define("redco.diffusion.save_lora", [[
save_lora(dir, params, {format: string = "diffusers"})
Writes the adapters of a pipeline's parameters as `pytorch_lora_weights.safetensors` in the folder.
`format` is "diffusers" or "kohya". Files of diffusers have no scaling: it is multiplied into lora_B.
Files of kohya have one adapter for q, k and v of a transformer, with the ranks of all three.]],
function(dir, params, options)
  check_dir("diffusion.save_lora", dir)
  lora.save(dir, params, save_lora_options(options).format)
end)

local token_options = arguments("diffusion.add_token", { n_vectors = 1 },
  { "initializer", "params" })
diffusion.add_token = registry.define("redco.diffusion.add_token", [[
add_token(pipeline, token: string, {initializer: string, n_vectors: integer = 1,
  params = pipeline.params}) -> params
Adds a token, such as "<cat>", to the tokenizers of CLIP of a pipeline, for textual inversion (arXiv
2208.01618). Returns the tree of parameters with a new one for each text encoder of CLIP,
text_model.embeddings.added_tokens.weight [vectors, size]. Its rows begin as the vector of the word
`initializer`, which must be one token. Train it alone:

  redco.optim.freeze(optimizer, function(name) return not name:find "added_tokens" end)

Where a prompt has the token, the text encoder reads its n_vectors vectors. The last parameters that
add_token or load_textual_inversion returned have those of all added tokens.]],
function(p, token, options)
  local o = token_options(options)
  if type(o.initializer) ~= "string" then
    fail("diffusion.add_token: initializer: expected a word whose vector the token begins with, "
      .. "got %s", o.initializer)
  end
  return textual_inversion.add(p, token, o.initializer, o.n_vectors, o.params or p.params)
end)

local load_token_options = arguments("diffusion.load_textual_inversion", {}, { "params", "token" })
diffusion.load_textual_inversion = registry.define("redco.diffusion.load_textual_inversion", [[
load_textual_inversion(pipeline, path, {token: string = nil, params = pipeline.params}) -> params
Adds the token of a file, or of a folder with `learned_embeds.safetensors` or `.bin`, as
`redco.diffusion.add_token` does, with its vectors. Files are those of diffusers, {token = vectors};
with clip_l and clip_g, for two text encoders; and of the web UI, with emb_params or string_to_param.
`token` is another name for it, needed if the file has none.]], function(p, path, options)
  path = source_path("diffusion.load_textual_inversion", path, "embeddings")
  local o = load_token_options(options)
  return textual_inversion.load(p, path, o.token, o.params or p.params)
end)

local save_token_options = arguments("diffusion.save_textual_inversion", {}, { "token" })
diffusion.save_textual_inversion = registry.define("redco.diffusion.save_textual_inversion", [[
save_textual_inversion(pipeline, dir, params, {token: string = nil})
Writes the vectors of an added token as `learned_embeds.safetensors` in the folder, which diffusers'
load_textual_inversion reads: {token = vectors}, and with two text encoders of CLIP clip_l and clip_g.
`token` may be left out if only one was added. Every process must call it.]],
function(p, dir, params, options)
  check_dir("diffusion.save_textual_inversion", dir)
  textual_inversion.save(p, dir, params, save_token_options(options).token)
end)

local load_options = arguments("diffusion.load", { dtype = "float32", low_memory = false },
  { "revision", "download" })
diffusion.load = registry.define("redco.diffusion.load", [[
load(dir, {dtype = "float32", low_memory = false, revision: string = nil,
  download: boolean = nil}) -> model
Opens the folder of one part, a UNet, a transformer or an autoencoder: `config.json` with
`diffusion_pytorch_model.safetensors`. Options as in `redco.models.from_pretrained`.]],
function(dir, options)
  local o = load_options(options)
  return component.load(source_path("diffusion.load", dir, "component", o), reading(o))
end)

local new_options = arguments("diffusion.from_config", { dtype = "float32" }, { "generator" })
diffusion.from_config = registry.define("redco.diffusion.from_config", [[
from_config(config: table or string, {dtype = "float32", generator = nil}) -> model
Returns a UNet, a transformer or an autoencoder with new weights, initialised as in diffusers.
`config` has diffusers' keys, `_class_name` among them; missing keys get diffusers' defaults. A
string is a folder whose `config.json` is read.]], function(config, options)
  local o = new_options(options)
  if type(config) == "string" then
    config = hub.path("diffusion.from_config", config, "config")
    local path = config .. "/config.json"
    local given = files.json(config, "config.json") or fail("there is no %s", path)
    return component.from_config(given, path, o)
  end
  return component.from_config(config, "diffusion.from_config", o)
end)

local part_options = arguments("diffusion.pipeline", {}, { "unet", "transformer", "vae",
  "text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer", "tokenizer_2", "tokenizer_3",
  "scheduler" })

-- The class of a part of a pipeline in diffusers or transformers.
local function class_of(kind, name, part)
  if name == "scheduler" then return diffusion.scheduler(part).name end
  for _, row in ipairs(kind.texts or {}) do
    if row.tokenizer == name then return row.is_t5 and "T5TokenizerFast" or "CLIPTokenizer" end
  end
  return part.family.class_name or part.family.architecture
end

local of_transformers = { SD3Transformer2DModel = "StableDiffusion3Pipeline",
  FluxTransformer2DModel = "FluxPipeline", DiTTransformer2DModel = "DiTPipeline" }

diffusion.pipeline = registry.define("redco.diffusion.pipeline", [[
pipeline{scheduler: table, vae: table, unet: table = nil, transformer: table = nil,
  text_encoder = nil, text_encoder_2 = nil, text_encoder_3 = nil, tokenizer = nil,
  tokenizer_2 = nil, tokenizer_3 = nil} -> pipeline
Returns a pipeline of parts. With a `unet` it is a StableDiffusionPipeline, and if there is a
text_encoder_2 a StableDiffusionXLPipeline; with a `transformer` by its class a
StableDiffusion3Pipeline, FluxPipeline or DiTPipeline. Models are those of `redco.diffusion.from_config` or `load`;
text encoders are CLIP text models with the task "features" or "projection" and a T5 with the task
"features"; `scheduler` is the table of a scheduler_config.json.]],
function(options)
  local o, classes = part_options(options), {}
  local class_name = o.transformer and of_transformers[o.transformer.family.class_name]
    or o.text_encoder_2 and "StableDiffusionXLPipeline" or "StableDiffusionPipeline"
  for _, name in ipairs(kinds[class_name].parts) do
    if o[name] then
      classes[name] = class_of(kinds[class_name], name, o[name])
    elseif not (kinds[class_name].optional or {})[name] then
      fail("diffusion.pipeline: the part %s of a %s is missing", name, class_name)
    end
  end
  return pipeline.new(class_name, classes, o, {})
end)

return registry.define("redco.diffusion", [[
redco.diffusion
Models that make pictures of noise, in the folders of diffusers.]],
strict("redco.diffusion", diffusion))
