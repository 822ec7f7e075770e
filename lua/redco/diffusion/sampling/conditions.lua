--- The conditions of the model: hidden states of prompts or classes, those of negative prompts for
--- guidance, and for SDXL the sizes of the picture. With guidance, each example has two adjacent
--- rows, first for the negative prompt, then for the prompt. A batch that is split over processes
--- therefore stays split.
local fail = require "redco.fail"
local new_cache = require "redco.models.cache"
local torch = require "redco.torch"

local conditions = {}

--- Returns two tensors [B, ...] as one [2 B, ...].
function conditions.paired(negative, positive)
  return torch.stack({ negative, positive }, 1):flatten(0, 1)
end

-- The inputs of the negative prompts: those of the batch, else of the empty text or of no class.
local function negative_of(pipeline, batch)
  local result, has_own = {}, batch.negative_input_ids ~= nil
  for name, empty in pairs(pipeline.kind.says.empty(pipeline, batch)) do
    local own = batch["negative_" .. name]
    if has_own and not own then fail("pipeline.generate: batch.negative_%s is missing", name) end
    result[name] = own or torch.empty_like(batch[name]):copy_(empty:to(batch[name].device))
  end
  return result, has_own
end

local function repeated(t, n) return n > 1 and t:repeat_interleave(n, 0) or t end

-- SDXL's original size, corner of the crop, and size, [B, 6].
local function sizes(pooled, height, width)
  local one = torch.tensor({ { height, width, 0, 0, height, width } },
    { dtype = pooled.dtype, device = pooled.device })
  return one:expand(pooled:size(0), 6)
end

--- Returns the options of the model's call. `guidance`: the scale that the model may be told.
function conditions.call(pipeline, pooled, time_ids, height, width, guidance)
  local kind = pipeline.kind
  return kind.call(pooled, kind.has_time_ids and (time_ids or sizes(pooled, height, width)) or nil,
    guidance)
end

--- Returns {states [rows, ...], options} for o.num_images_per_prompt pictures of each prompt; rows
--- are twice the pictures if `is_guided`.
function conditions.of(pipeline, params, batch, o, is_guided)
  local n, encode = o.num_images_per_prompt, pipeline.kind.says.encode
  local states, pooled = encode(pipeline, params, batch, { clip_skip = o.clip_skip })
  states, pooled = repeated(states, n), pooled and repeated(pooled, n)
  if is_guided then
    local negative, has_own = negative_of(pipeline, batch)
    -- As in diffusers, clip_skip does not apply to the negative prompt.
    local other, other_pooled = encode(pipeline, params, negative)
    if not has_own and pipeline.config.force_zeros_for_empty_prompt then
      other, other_pooled = torch.zeros_like(other), torch.zeros_like(other_pooled)
    end
    states = conditions.paired(repeated(other, n), states)
    pooled = pooled and conditions.paired(repeated(other_pooled, n), pooled)
  end
  local options = conditions.call(pipeline, pooled, nil, o.height, o.width, o.guidance_scale)
  -- All steps see the same text.
  if pipeline.denoiser.family.accepts_cache then options.cache = new_cache() end
  return { states = states, options = options }
end

--- Returns the output for the prompt, moved away from that for the negative prompt. `rescale` is
--- the share in which its deviation is that of the former again (arXiv 2305.08891).
function conditions.guided(output, scale, rescale)
  local both = output:unflatten(0, { -1, 2 })
  local negative, positive = both:select(1, 0), both:select(1, 1)
  local guided = negative + scale * (positive - negative)
  if rescale > 0 then
    local factor = positive:std({ 1, 2, 3 }, { keepdim = true })
      / guided:std({ 1, 2, 3 }, { keepdim = true })
    guided = guided * (rescale * factor + (1 - rescale))
  end
  return guided
end

return conditions
