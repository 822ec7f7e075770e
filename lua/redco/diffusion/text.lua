--- Prompts as a pipeline's text encoders see them: tokens, then hidden states.
local added_tokens = require "redco.diffusion.added_tokens"
local arguments = require "redco.arguments"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"

local text = {}

-- Warns once for each prompt about the part that does not fit into the text encoder.
local function warn(pipeline, tokenizer, ids, length)
  if #ids <= length then return end
  local rest = {}
  for i = length, #ids - 1 do rest[#rest + 1] = ids[i] end
  pipeline.warn(("warning: the prompt has %d tokens, and the text encoder reads %d: this part is "
    .. "cut off: %s"):format(#ids, length, (tokenizer:decode(rest):gsub("</w>", " "))))
end

local tokenize_options = arguments("pipeline.tokenize", {}, { "max_sequence_length" })

--- Returns {input_ids [B, length]} of a prompt or a list, and input_ids_2 and input_ids_3 of other
--- text encoders. T5 reads max_sequence_length tokens, as many as one wants.
function text.tokenize(pipeline, prompts, options)
  local t5_length = tokenize_options(options).max_sequence_length
    or pipeline.kind.max_sequence_length
  if type(prompts) == "string" then prompts = { prompts } end
  if type(prompts) ~= "table" or type(prompts[1]) ~= "string" then
    fail("pipeline.tokenize: expected a prompt or a list of prompts, got %s",
      type(prompts) == "table" and "a table with " .. type(prompts[1]) or type(prompts))
  end
  local batch = {}
  for _, part in ipairs(pipeline.kind.texts) do
    local tokenizer = pipeline[part.tokenizer]
    if tokenizer then
      local length = part.is_t5 and t5_length or tokenizer.model_max_length
      local all = {}
      if part.is_t5 or #pipeline.added_tokens == 0 then
        for i, prompt in ipairs(prompts) do all[i] = tokenizer:encode(prompt) end
        batch[part.ids] = tokenizer(prompts, { padding = "max_length", truncation = true,
          max_length = length }).input_ids
      else
        batch[part.ids], all = added_tokens.tokenize(pipeline, part, prompts, length)
      end
      for _, ids in ipairs(all) do warn(pipeline, tokenizer, ids, length) end
    end
  end
  return batch
end

--- The tokens of the empty prompt, as long as those of `batch`.
function text.empty(pipeline, batch)
  local ids
  for _, part in ipairs(pipeline.kind.texts) do ids = part.is_t5 and batch[part.ids] or ids end
  return text.tokenize(pipeline, "", { max_sequence_length = ids and ids:size(1) })
end

local encode_options = arguments("pipeline.encode_text", { train = false, clip_skip = 0 },
  { "rng" })

-- Returns the hidden states [B, T, size] of the layer that is read, and features [B, size].
local function states_of(model, params, ids, skip, last_layers, o)
  local last, all, features = model.hidden_states(params, { input_ids = ids },
    { train = o.train, rng = o.rng })
  if not all then return last end  -- of T5
  if last_layers == 0 and skip == 0 then return last, features end
  local at = #all - skip - last_layers
  if at < 1 then
    fail("pipeline.encode_text: clip_skip = %d is too large for %d layers", skip, #all - 1)
  end
  if last_layers > 0 then return all[at], features end
  return blocks.layer_norm(params, "text_model.final_layer_norm", all[at],
    model.config.layer_norm_eps), features
end

--- Returns the hidden states [B, T, D] of prompts, and features of the text [B, size]: for SDXL of
--- the second text encoder, for SD3 and Flux of those of CLIP. `params` are those of the pipeline.
function text.encode(pipeline, params, batch, options)
  local o, kind, states, features = encode_options(options), pipeline.kind, {}, {}
  for i, part in ipairs(kind.texts) do
    local model = pipeline[part.encoder]
    if model then
      local ids = batch[part.ids]
      if not ids then fail("pipeline.encode_text: batch.%s is missing", part.ids) end
      added_tokens.check(pipeline, part, params, ids)
      states[i], features[i] = states_of(model, params[part.encoder], ids, o.clip_skip,
        kind.last_layers, o)
    end
  end
  return kind.join(pipeline, states, features)
end

return text
