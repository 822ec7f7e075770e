--- Model families in Lua, by their Hugging Face names.
local arguments = require "redco.arguments"
local complete_config = require "redco.models.config"
local fail = require "redco.fail"
local files = require "redco.models.files"
local native = require "redco.native"
local new_model = require "redco.models.model"
local registry = require "redco.registry"

local models = { new_cache = require "redco.models.cache" }

local families = {}
for _, name in ipairs {
  "gpt2",
  "gptj",
  "llama",
  "opt",
} do
  local family = require("redco.models." .. name)
  families[family.model_type] = family
end

local function family_of(config, where)
  local family = families[config.model_type]
  if family then return family end
  local names = {}
  for name in pairs(families) do names[#names + 1] = name end
  table.sort(names)
  fail("%s: %s; the families here are %s", where, config.model_type == nil
    and "model_type is missing" or ("unknown model_type '%s'"):format(tostring(config.model_type)),
    table.concat(names, ", "))
end

local new_options = arguments("models.from_config", { dtype = "float32" }, { "generator" })
models.from_config = registry.define("redco.models.from_config", [[
from_config(config, {generator, dtype = "float32"}) -> model
A model with new weights, as its family initialises them. `config` has the keys of Hugging Face's
configuration, `model_type` among them; what is left out has the family's defaults. A string is a
folder whose `config.json` is read.
`model.params` is a flat table by Hugging Face's names, `model.config` the whole configuration.
`model(params, inputs, {train = false, rng, cache})` gives the logits [batch, length, vocab_size];
inputs: input_ids [batch, length], attention_mask (1 for tokens, 0 for padding) and position_ids if
need be. `model.hidden_states` gives what the head sees. `model.loss(params, inputs, {train, rng,
ignore_index = -100, label_smoothing = 0})` is the mean cross-entropy of inputs.labels, which the
collate_fn has shifted, and their number, without holding all logits.]],
function(config, options)
  local o, is_file = new_options(options), type(config) == "string"
  local where = is_file and config .. "/config.json" or "models.from_config"
  local given = is_file and (files.json(config, "config.json")
    or fail("models.from_config: there is no %s/config.json", config)) or config
  local family = family_of(given, where)
  local c = complete_config(family, given, is_file)
  local params, new_parameter = {}, files.new_parameter(o.dtype)
  family.add_parameters(c, function(name, sizes, init)
    params[name] = init(new_parameter(sizes), o.generator)
  end)
  return new_model(family, c, params)
end)

local load_options = arguments("models.from_pretrained", { dtype = "float32", low_memory = false })
models.from_pretrained = registry.define("redco.models.from_pretrained", [[
from_pretrained(dir, {dtype = "float32", low_memory = false}) -> model
The model in a folder of Hugging Face's: `config.json` and `model.safetensors`, or the parts that
`model.safetensors.index.json` lists. `dtype`: of the parameters, "auto" for what the files have. Each
process reads its part. `low_memory`: weights that have that dtype stay in the mapped files, read
where they are used; the files must then stay as they are. Errors name an unknown family and
weights that are missing, have no place or another shape.]], function(dir, options)
  local o = load_options(options)
  local given = files.json(dir, "config.json")
    or fail("models.from_pretrained: there is no %s/config.json", tostring(dir))
  local family = family_of(given, dir .. "/config.json")
  local c = complete_config(family, given, true)
  local weights = (native.open_weights or require "redco.models.weights_shim")(dir)
  local params = files.load_params(family, c, weights, {
    dtype = o.dtype ~= "auto" and o.dtype or nil, low_memory = o.low_memory,
  })
  local model = new_model(family, c, params)
  model.generation_config = files.json(dir, "generation_config.json")
  return model
end)

return models
