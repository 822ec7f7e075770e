-- The named arguments that texts list are those which the functions in Lua take.
local taken = {}  -- by function, as errors name it: the defaults and the other names

-- Before anything else loads it.
local arguments = require "redco.arguments"
package.loaded["redco.arguments"] = function(where, defaults, optional)
  taken[#taken + 1] = { where = where, defaults = defaults, optional = optional or {} }
  return arguments(where, defaults, optional)
end

require "redco"
local registry = require "redco.registry"
local surface = require "redco.reference.surface"
local testing = require "testing"

-- Errors leave out "redco.", have the variable that an object is in, or stand for two functions.
local others = {
  ["nn.init.xavier"] = "redco.nn.init.xavier_uniform_",
  ["nn.init.kaiming"] = "redco.nn.init.kaiming_uniform_",
  ["model.resize_token_embeddings"] = "Model.resize_token_embeddings",
  model = "Model:__call", ["model.loss"] = "Model.loss",
  ["model.logprobs"] = "Model.logprobs", ["model.generate"] = "Model.generate",
  ["model.save_gguf"] = "Model.save_gguf",
  ["model.save_pretrained"] = "Model.save_pretrained",
  ["model.set_sentence_pooling"] = "Model.set_sentence_pooling",
  pipeline = "Pipeline:__call", ["pipeline.generate"] = "Pipeline.generate",
  ["pipeline.loss"] = "Pipeline.loss", ["pipeline.encode_text"] = "Pipeline.encode_text",
  ["pipeline.save_pretrained"] = "Pipeline.save_pretrained",
  ["pipeline.tokenize"] = "Pipeline.tokenize",
  unet = "Component:__call", transformer = "Component:__call", ["vae.encode"] = "Component.encode",
  ["vae.decode"] = "Component.decode", save_pretrained = "Component.save_pretrained",
}

-- Functions that others return: the texts of those describe the arguments.
local returned = { feature_extractor = "redco.data.feature_extractor",
  ["ctc_tokenizer.beam_search"] = "redco.data.ctc_tokenizer",
  ["model.generate with CTC"] = "Model.generate" }

-- What Whisper takes besides; the models whose loss takes less; what the task "features" takes; and
-- what some of the models that remove noise take.
local of_denoisers = { text_embeds = true, time_ids = true, encoder_attention_mask = true,
  class_labels = true, timestep_cond = true, pooled_projections = true, guidance = true,
  cache = true }
local of_some = { unet = of_denoisers, transformer = of_denoisers,
  ["model.generate"] = { task = true, language = true, return_timestamps = true },
  model = { pooling = true },
  ["model.loss"] = { label_smoothing = true, ignore_index = true, shift = true } }

local function full_name(where)
  for _, prefix in ipairs { "", "redco.", "redco.data.", "redco.metrics.", "redco.nn.init." } do
    if registry.text(prefix .. where) then return prefix .. where end
  end
  return others[where]
end

testing.test("each function's text lists its named arguments and their defaults", function()
  local wrong, n = {}, 0
  for _, each in ipairs(taken) do
    if returned[each.where] then
      local text = registry.text(returned[each.where])
      for key in pairs(each.defaults) do assert(text:find("`" .. key .. "`", 1, true), key) end
      for _, key in ipairs(each.optional) do assert(text:find("`" .. key .. "`", 1, true), key) end
      goto continue
    end
    local name = full_name(each.where)
    local listed = {}
    for _, argument in ipairs(name and surface.read(name).arguments or {}) do
      if argument.is_named then listed[argument.name] = argument end
    end
    if not name then wrong[#wrong + 1] = each.where .. ": no text has this name" end
    for key, default in pairs(each.defaults) do
      local shown = listed[key] and listed[key].default
      n = n + 1
      if type(default) ~= "table" and type(default) ~= "function" and (not shown
        or tostring(loadstring("return " .. shown)()) ~= tostring(default)) then
        wrong[#wrong + 1] = ("%s: %s = %s"):format(each.where, key, tostring(default))
      end
      listed[key] = nil
    end
    for _, key in ipairs(each.optional) do
      if not listed[key] then wrong[#wrong + 1] = ("%s: %s"):format(each.where, key) end
      listed[key] = nil
    end
    for key in pairs(listed) do
      if not (of_some[each.where] or {})[key] then
        wrong[#wrong + 1] = ("%s does not take %s"):format(each.where, key)
      end
    end
    ::continue::
  end
  assert(n > 40, n)
  assert(#wrong == 0, table.concat(wrong, "\n"))
end)

testing.finish()
