--- What the UNet is told: hidden states of prompts, also of the negative ones for guidance, and of
--- SDXL the sizes of the picture. With guidance, each example has two rows beside each other, the
--- negative prompt's and the prompt's: so a batch that is split over processes stays so.
local fail = require "redco.fail"
local torch = require "redco.torch"

local conditions = {}

--- Returns two tensors [B, ...] as one [2 B, ...].
function conditions.paired(negative, positive)
  return torch.stack({ negative, positive }, 1):flatten(0, 1)
end

local id_names = { "input_ids", "input_ids_2" }

-- The tokens of the negative prompts: those of the batch, else of the empty text.
local function negative_ids(pipeline, batch)
  local ids, has_own = {}, batch.negative_input_ids ~= nil
  local empty = not has_own and pipeline.tokenize ""
  for _, name in ipairs(id_names) do
    if batch[name] then
      local own = batch["negative_" .. name]
      if has_own and not own then
        fail("pipeline.generate: batch.negative_%s is missing", name)
      end
      ids[name] = own or torch.empty_like(batch[name]):copy_(empty[name]:to(batch[name].device))
    end
  end
  return ids, has_own
end

local function repeated(t, n) return n > 1 and t:repeat_interleave(n, 0) or t end

-- SDXL's original size, corner of the crop, and size, [B, 6].
local function sizes(pooled, height, width)
  local one = torch.tensor({ { height, width, 0, 0, height, width } },
    { dtype = pooled.dtype, device = pooled.device })
  return one:expand(pooled:size(0), 6)
end

--- Returns {states [rows, T, D], text_embeds, time_ids} for o.num_images_per_prompt pictures of
--- each prompt; rows are twice the pictures if `is_guided`.
function conditions.of(pipeline, params, batch, o, is_guided)
  local n = o.num_images_per_prompt
  local states, pooled = pipeline.encode_text(params, batch, { clip_skip = o.clip_skip })
  states, pooled = repeated(states, n), pooled and repeated(pooled, n)
  if is_guided then
    local ids, has_own = negative_ids(pipeline, batch)
    local other, other_pooled = pipeline.encode_text(params, ids, { clip_skip = o.clip_skip })
    if not has_own and pipeline.config.force_zeros_for_empty_prompt then
      other, other_pooled = torch.zeros_like(other), torch.zeros_like(other_pooled)
    end
    states = conditions.paired(repeated(other, n), states)
    pooled = pooled and conditions.paired(repeated(other_pooled, n), pooled)
  end
  return { states = states, text_embeds = pooled,
    time_ids = pooled and sizes(pooled, o.height, o.width) }
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
