--- Prompts as a pipeline's text encoders see them: tokens, then hidden states.
local arguments = require "redco.arguments"
local blocks = require "redco.models.blocks"
local fail = require "redco.fail"
local torch = require "redco.torch"

local text = {}

-- Text encoders with their tokenizers and the names of their tokens in a batch.
local parts = {
  { encoder = "text_encoder", tokenizer = "tokenizer", ids = "input_ids" },
  { encoder = "text_encoder_2", tokenizer = "tokenizer_2", ids = "input_ids_2" },
}

-- Prints what does not fit into the text encoder, once for each prompt.
local function warn(pipeline, tokenizer, prompt, length)
  local ids = tokenizer:encode(prompt)
  if #ids <= length then return end
  local rest = {}
  for i = length, #ids - 1 do rest[#rest + 1] = ids[i] end
  pipeline.warn(("warning: the prompt has %d tokens, and the text encoder reads %d: this part is "
    .. "cut off: %s"):format(#ids, length, (tokenizer:decode(rest):gsub("</w>", " "))))
end

--- Returns {input_ids [B, length]} of a prompt or a list, and input_ids_2 of a second text encoder.
function text.tokenize(pipeline, prompts)
  if type(prompts) == "string" then prompts = { prompts } end
  if type(prompts) ~= "table" or type(prompts[1]) ~= "string" then
    fail("pipeline.tokenize: expected a prompt or a list of prompts, got %s",
      type(prompts) == "table" and "a table with " .. type(prompts[1]) or type(prompts))
  end
  local batch = {}
  for _, part in ipairs(parts) do
    local tokenizer = pipeline[part.tokenizer]
    if tokenizer then
      local length = tokenizer.model_max_length
      for _, prompt in ipairs(prompts) do warn(pipeline, tokenizer, prompt, length) end
      batch[part.ids] = tokenizer(prompts, { padding = "max_length", truncation = true,
        max_length = length }).input_ids
    end
  end
  return batch
end

local encode_options = arguments("pipeline.encode_text", { train = false, clip_skip = 0 },
  { "rng" })

-- Returns the hidden states [B, T, size] of the layer that a UNet sees, and features [B, size].
local function states_of(model, params, ids, skip, is_xl, o)
  local last, all, features = model.hidden_states(params, { input_ids = ids },
    { train = o.train, rng = o.rng })
  if not is_xl and skip == 0 then return last, features end
  local at = #all - skip - (is_xl and 1 or 0)
  if at < 1 then
    fail("pipeline.encode_text: clip_skip = %d is too large for %d layers", skip, #all - 1)
  end
  local states = all[at]
  if is_xl then return states, features end
  return blocks.layer_norm(params, "text_model.final_layer_norm", states,
    model.config.layer_norm_eps), features
end

--- Returns the hidden states [B, T, D] of prompts, and for SDXL the features [B, size] of the
--- second text encoder. `params` are those of the pipeline.
function text.encode(pipeline, params, batch, options)
  local o, states, pooled = encode_options(options), {}, nil
  local is_xl = pipeline.text_encoder_2 ~= nil
  for _, part in ipairs(parts) do
    local model = pipeline[part.encoder]
    if model then
      local ids = batch[part.ids]
      if not ids then fail("pipeline.encode_text: batch.%s is missing", part.ids) end
      local hidden, features = states_of(model, params[part.encoder], ids, o.clip_skip, is_xl, o)
      states[#states + 1] = hidden
      if is_xl then pooled = features end
    end
  end
  return #states == 1 and states[1] or torch.cat(states, -1), pooled
end

return text
