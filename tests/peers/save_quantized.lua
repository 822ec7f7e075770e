-- save_quantized.lua FOLDER TYPE...: quantizes the model of the folder and writes FOLDER.TYPE of
-- each type, with its own logits beside it. The type as_it_is is that of a quantized folder.
local redco = require "redco"
local torch = redco.torch

local folder, ids = arg[1], torch.arange(2, 26):view(2, 12)
for i = 2, #arg do
  local out = folder .. "." .. arg[i]
  local model = redco.models.from_pretrained(folder,
    { quantize = arg[i] ~= "as_it_is" and arg[i] or nil })
  model.save_pretrained(out)
  local logits = model(model.params, { input_ids = ids })
  local again = redco.models.from_pretrained(out)
  for name, value in pairs(model.params) do
    local same = torch.is_tensor(value) and value:equal(again.params[name])
      or value == again.params[name]
    assert(same, out .. ": " .. name)
  end
  torch.save({ logits = logits }, out .. "/logits.safetensors")
end
