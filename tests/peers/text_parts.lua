-- text_parts.lua FOLDER...: what redco-lua computes of the text models in folders of models that
-- also read images or sound.
local redco = require "redco"

local torch = redco.torch

for _, folder in ipairs(arg) do
  local inputs, result = torch.load(folder .. "/inputs.safetensors"), {}
  local ok, message = pcall(function()
    local task = not inputs.attention_mask and "features" or nil
    local model = redco.models.from_pretrained(folder, { task = task })
    torch.no_grad(function()
      result.logits = model(model.params, { input_ids = inputs.input_ids })
      if inputs.attention_mask then
        result.tokens = model.generate(model.params, inputs, { max_new_tokens = 5 })
      end
    end)
    torch.save(result, folder .. "/result.safetensors")
  end)
  if not ok then
    local file = assert(io.open(folder .. "/error.txt", "w"))
    file:write(tostring(message))
    file:close()
  end
end
