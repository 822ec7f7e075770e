--- LongT5 (Guo et al., 2021), as Hugging Face's `LongT5ForConditionalGeneration`: T5 1.1 whose
--- encoder attends within blocks, and to sums of tokens.
local fail = require "redco.fail"
local new_attention = require "redco.models.layers.block_attention"
local new_family = require "redco.models.kinds.t5_like"
local t5 = require "redco.models.families.t5"

local defaults = { local_radius = 127, global_block_size = 16, encoder_attention_type = "local" }
for key, value in pairs(t5.defaults) do defaults[key] = value end

local kinds = { ["local"] = true, ["transient-global"] = true }

local longt5 = new_family {
  model_type = "longt5",
  models = "LongT5",
  remarks = "texts of 16,384 tokens",
  architecture = "LongT5ForConditionalGeneration",
  defaults = defaults,
  least = { local_radius = 1, global_block_size = 1 },
  near_attention = new_attention,
}
longt5.tasks = {}

local check = longt5.check
function longt5.check(c)
  check(c)
  if not kinds[c.encoder_attention_type] then
    fail("longt5: encoder_attention_type = '%s' is not supported, only local and transient-global",
      c.encoder_attention_type)
  end
end

return longt5
