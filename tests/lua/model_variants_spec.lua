-- Configurations that the cases of tests/cases lack, against transformers (model_variants.json and
-- .safetensors, made by tests/tools/make_model_variants.py).
local redco = require "redco"
local testing = require "testing"

local stored = redco.torch.load "model_variants.safetensors"

local function named(prefix)
  local found = {}
  for name, tensor in pairs(stored) do
    if name:sub(1, #prefix) == prefix then found[name:sub(#prefix + 1)] = tensor end
  end
  return found
end

for i, config in ipairs(redco.data.json "model_variants.json") do
  local params = named(("%d.p."):format(i - 1))
  testing.test(("variant %d, %s"):format(i, config.model_type), function()
    local model = redco.models.from_config(config)
    for name in pairs(model.params) do assert(params[name], "transformers has no " .. name) end
    for name in pairs(params) do assert(model.params[name], "there is no parameter " .. name) end
    for _, kind in ipairs { "plain", "left" } do
      local inputs = named(("%d.%s."):format(i - 1, kind))
      local logits, expected = model(params, inputs), inputs.logits
      if inputs.attention_mask then
        local kept = inputs.attention_mask:ne(0)
        logits, expected = logits[kept], expected[kept]
      end
      testing.expect_close(logits, expected, 1e-4, 1e-4)
    end
  end)
end

testing.finish()
