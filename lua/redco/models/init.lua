--- redco.models: opens and creates models of the families in this folder.
local arguments = require "redco.arguments"
local catalog = require "redco.models.catalog"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local families = require "redco.models.family_table"
local files = require "redco.models.files"
local gguf = require "redco.models.gguf"
local hub = require "redco.hub"
local native = require "redco.native"
local new_model = require "redco.models.model"
local packed = require "redco.models.packed"
local quantized_folder = require "redco.quant.folders"
local registry = require "redco.registry"
local sentence_pooling = require "redco.models.sentence_pooling"
local tasks = require "redco.models.tasks"
local text_part = require "redco.models.text_part"
local ties = require "redco.models.ties"
local strict = require "redco.strict"
local warn = require "redco.warn"

local models = {
  new_cache = require "redco.models.cache",
  generate = require "redco.generation",
  new_batch = require "redco.generation.batch",
  json_logits_processor = require "redco.generation.grammar".json_logits_processor,
  processor = require "redco.models.processor",
}

local model_types = native.embedded_modules "redco.models.families."

-- Whether only the text model of a folder is read: with a task, if it has no model of images or
-- sounds, or if the family of the whole is unknown.
local function reads_text_part(config, task)
  local family = families[config.model_type]
  local is_text = family and family.medium
    and (task or family.may_lack_images and not config.vision_config)
  return (not family or is_text) and text_part.has_family(config)
end

-- Returns the type with which an unknown name begins, or one that looks like it, or nil.
local function nearest_type(name)
  local found = ""
  for _, known in ipairs(model_types) do
    if #known > #found and name:sub(1, #known) == known then found = known end
  end
  if #found > 2 then return found end
  local near = native.nearest(name, model_types)
  return near and near:sub(1, 1) == name:sub(1, 1) and near or nil
end

-- Returns a hint for the error about an unknown type.
local function hint(name)
  local near = nearest_type(name)
  return near and (", did you mean '%s'? A folder of a model that is built so opens with config = "
    .. "{ model_type = '%s' }"):format(near, near) or ""
end

local function family_of(config, where)
  if type(config) ~= "table" then
    fail("%s: %s, expected a table", where, config)
  end
  local family = families[config.model_type]
  if family then return family end
  fail("%s: %s%s; the supported families are %s", where, config.model_type == nil
    and "model_type is missing" or ("unknown model_type '%s'"):format(tostring(config.model_type)),
    type(config.model_type) == "string" and hint(config.model_type) or "",
    table.concat(model_types, ", "))
end

local function config_of(dir, where)
  return files.json(dir, "config.json") or fail("%s: there is no %s/config.json", where, dir)
end

-- Returns a hint for errors about too little memory: the sizes that the configuration leaves to the
-- family's defaults.
local function default_sizes(family, given)
  local names = {}
  for name, default in pairs(family.defaults) do
    local is_given = given[name] ~= nil
    for alias, full in pairs(family.aliases or {}) do
      is_given = is_given or full == name and given[alias] ~= nil
    end
    local is_size = type(default) == "number" and default >= 8 and not name:find "theta"
    if is_size and not is_given then
      names[#names + 1] = ("%s = %.0f"):format(name, default)
    end
  end
  return #names > 0 and "; the configuration does not give " .. table.concat(names, ", ") or ""
end

-- Makes backward recompute the layers of a model, as `how` says.
local function with_recompute(model, how, where)
  native.check_recompute(how, where)
  if how == "none" then return model end
  for name, f in pairs(model) do
    if type(f) == "function" then
      model[name] = function(...) return native.with_recomputed_blocks(how, f, ...) end
    end
  end
  return model
end

local new_options = arguments("models.from_config", { dtype = "float32", recompute = "none" },
  { "generator", "task" })
models.from_config = registry.define("redco.models.from_config", [[
from_config(config: table or string, {task = nil, generator = nil, dtype = "float32",
  recompute = "none"}) -> model
Returns a model with new weights, initialised as its family does. `config` has the keys of Hugging
Face's configuration, `model_type` among them; missing keys get the family's defaults. A string is a
folder whose `config.json` is read, or a name of the Hub. `task` and `recompute` as in
`redco.models.from_pretrained`.]],
function(config, options)
  local o, is_file = new_options(options), type(config) == "string"
  config = hub.path("models.from_config", config, "config")
  local where = is_file and config .. "/config.json" or "models.from_config"
  local given = is_file and config_of(config, "models.from_config") or config
  local family = tasks.choose(family_of(given, where), o.task, given)
  local c, n_parameters = complete_config(family, given, is_file)
  files.check_memory(family, n_parameters, o.dtype, default_sizes(family, given))
  local model = new_model(family, c, (files.add_new({}, family, c, o.dtype, o.generator)))
  return with_recompute(model, o.recompute, "models.from_config")
end)

-- Returns the configuration with these keys replaced.
local function with_changes(given, changes)
  if changes == nil then return given end
  if type(changes) ~= "table" then
    fail("models.from_pretrained: config: expected a table, got %s", type(changes))
  end
  for key, value in pairs(changes) do given[key] = value end
  if changes.num_labels and not changes.id2label then given.id2label, given.label2id = nil, nil end
  return given
end

local load_options = arguments("models.from_pretrained",
  { dtype = "float32", low_memory = false, recompute = "none" },
  { "task", "config", "generator", "quantize", "revision", "download" })
models.from_pretrained = registry.define("redco.models.from_pretrained", [[
from_pretrained(dir, {task = nil, config = nil, dtype = "float32", low_memory = false,
  generator = nil, recompute = "none", quantize: string or boolean = nil, revision: string = nil,
  download: boolean = nil}) -> model
Opens a model folder of Hugging Face: `config.json` with `model.safetensors`, or with the files that
`model.safetensors.index.json` lists, or else with `pytorch_model.bin` or the files of
`pytorch_model.bin.index.json`, of which no code is ever run. Each process reads only its part of the
weights. `dtype` is the type of the parameters; "auto" keeps that of the files.

With `low_memory`, weights that are already of that dtype are not copied: they stay in memory-mapped
files and are read on use, so a process that trains a part of the model needs memory only for that
part. Do not change the files meanwhile.

With `recompute = "blocks"`, training keeps only the inputs of the layers, and backward computes them
again: less memory, about a third more time; "selective" keeps the results of products, too. The
Trainer has the same option.

Raises an error that names an unknown family, an unsupported setting, or a weight that is missing,
unknown, of a wrong shape or not floating-point. NaN and infinity raise an error too, except in
weights that stay in the mapped files.

`task` chooses the head: "causal_lm" (a decoder's own), "masked_lm" (an encoder's default),
"sequence_classification" (also regression and several labels), "token_classification",
"question_answering", "multiple_choice" or "replaced_token_detection", where transformers has it for
the family, or "features", the model without a head: encoders, decoders, and of T5 its encoder alone;
of images and texts "image_classification", "similarity", "features" or "projection" (projected
features); of sound "audio_classification". By default it is that of the architecture in
`config.json`: BertModel and LlamaModel are "features". Where the folder of a sentence encoder has
`1_Pooling/config.json`, calls of "features" return the vectors that it describes. Weights of a head
that the folder lacks are new, drawn from `generator`; a line on standard error names them. `config`
has keys that replace those of the folder: {num_labels = 3}.
Of a model that also reads images or sound and has its text model in `text_config`, only that is read
if there is a `task`, or if the family of the whole is not known.

`quantize` rounds the weights of linear layers to a type of `redco.quant.types`, "q4_0" or "nf4",
while they are read: the model is never whole in floats. Embeddings, heads and experts stay floats.
Such weights are not trained; adapters train on top of them (`redco.lora.add`).

`dir` can also be a GGUF file of llama.cpp (`model.gguf`) with an architecture that
`redco.models.families` lists. Its quantized weights stay as they are in the file, but those of
experts and of GPT-2's layers; with `quantize = false` all become numbers of `dtype`.
`redco.Tokenizer.from_pretrained` reads its tokenizer.

If there is no such path, `dir` is a name of the Hugging Face Hub, "org/name", "org/name/folder" or
"org/name/file.gguf", in the cache of huggingface_hub (HF_HOME). `revision` is a branch, a tag or a
commit; "org/name@revision" says the same, also to functions without this option. What is not in the
cache is downloaded only if that is asked for: with download = true, with `redco-lua --download`, or
with HF_HUB_OFFLINE=0 in the environment. HF_HUB_OFFLINE=1 forbids it. The tokenizer and the settings
of images and sound come along.]],
function(dir, options)
  local o = load_options(options)
  if type(dir) ~= "string" then
    fail("models.from_pretrained: expected a model's folder, got %s", dir)
  end
  dir = hub.path("models.from_pretrained", dir, native.is_planning() and "config" or "model", o)
  local given, weights
  if gguf.is_named(dir) then
    given, weights = gguf.open(dir)
  else
    given = config_of(dir, "models.from_pretrained")
  end
  given = text_part.with_parts(given)
  local whole_type, reads_part = given.model_type, reads_text_part(given, o.task)
  if reads_part then given = text_part.config(given) end
  given = with_changes(given, o.config)
  local family = tasks.choose(family_of(given, dir .. "/config.json"), o.task, given)
  local is_planning = native.is_planning()
  weights = weights or not is_planning and native.open_weights(dir)
  local stored_types, sentences
  weights, stored_types = quantized_folder(given, weights, dir .. "/config.json")
  if weights and reads_part then weights = text_part.weights(weights, whole_type) end
  if family.task == "features" and not family.new_functions then
    sentences, family, weights = sentence_pooling.open(family, weights, dir)
  end
  if weights and family.complete_by_weights then family:complete_by_weights(given, weights) end
  local c, _, assumed = complete_config(family, given, true)
  local unties = weights and (ties.version(given) or 0) >= 5
  if unties and files.has_separate_head(family, c, weights) then
    warn("%s: tie_word_embeddings is true, but the head of the file has other values than the "
      .. "embedding: it is used, as by version 5 of transformers, which wrote the folder", dir)
    given.tie_word_embeddings = false
    if given.text_config then given.text_config.tie_word_embeddings = false end
    c, _, assumed = complete_config(family, given, true)
  end
  if is_planning then
    -- Only the shapes count: weights are not read.
    local dtype = o.dtype ~= "auto" and o.dtype or "float32"
    local params = files.add_new({}, family, c, dtype, o.generator)
    if o.quantize ~= false then
      if o.quantize then stored_types.linear = o.quantize end
      packed.plan(family, c, params, weights, stored_types)
    end
    local model = new_model(family, c, params)
    return with_recompute(model, o.recompute, "models.from_pretrained")
  end
  local model = new_model(family, c, files.load_params(family, c, weights, {
    dtype = o.dtype ~= "auto" and o.dtype or nil, low_memory = o.low_memory,
    generator = o.generator, quantize = o.quantize, assumed = assumed,
  }))
  model.generation_config, model.source = files.generation_config(dir), dir
  model.sentence_pooling = sentences
  return with_recompute(model, o.recompute, "models.from_pretrained")
end)

local part_options = arguments("models.from_encoder_decoder_pretrained", { dtype = "float32" },
  { "generator" })
models.from_encoder_decoder_pretrained =
registry.define("redco.models.from_encoder_decoder_pretrained", [[
from_encoder_decoder_pretrained(encoder_dir, decoder_dir, {dtype = "float32", generator = nil}) -> model
Returns a vision-encoder-decoder, a model that writes text about images, from a ViT folder and a
GPT-2 folder. The cross-attention layers, which neither folder has, are new and drawn from
`generator`. `model.config` gets eos_token_id and pad_token_id of the decoder, and its bos_token_id as
decoder_start_token_id. Without a padding token, eos_token_id serves as pad_token_id.]],
function(encoder_dir, decoder_dir, options)
  local o, params = part_options(options), {}
  local given = { model_type = "vision-encoder-decoder" }
  local family = families[given.model_type]
  local dirs = { encoder = encoder_dir, decoder = decoder_dir }
  for _, kind in ipairs { "encoder", "decoder" } do
    local dir = hub.path("models.from_encoder_decoder_pretrained", dirs[kind], "model")
    given[kind] = config_of(dir, "models.from_encoder_decoder_pretrained")
    local part = family.part(kind, given[kind])
    local loaded = files.load_params(part, complete_config(part, given[kind], true),
      native.open_weights(dir), { dtype = o.dtype })
    for name, tensor in pairs(loaded) do params[kind .. "." .. name] = tensor end
  end
  local c = complete_config(family, given, true)
  local source = encoder_dir .. ", " .. decoder_dir
  return new_model(family, c, files.add_new(params, family, c, o.dtype, o.generator, source))
end)

models.detections = require("redco.models.tasks.detection").detections

models.families = registry.define("redco.models.families", [[
families() -> table
Lists the families, sorted by model_type. Each row has `model_type`; `aliases`, other types that open
and are saved as this one; `models`, the names that people know; `kind`: "decoder",
"encoder-decoder", "encoder", "images" or "sound"; `tasks`, the default first; `gguf`, the
architectures of GGUF files that open as it; and `remarks` or nil.]],
function() return catalog(model_types, families) end)

return registry.define("redco.models", ([[
redco.models
Models in Hugging Face's folders. The model types are
%s.]]):format(table.concat(model_types, ", ")),
  strict("redco.models", models))
