-- open_quantized.lua FOLDER: writes the logits of a quantized folder, computed with its packed
-- weights and with floats, and how many weights are of each type.
local native = require "redco.native"
local redco = require "redco"
local torch = redco.torch

local folder = arg[1]
local ids, logits, types = torch.arange(2, 26):view(2, 12), {}, {}
for way, quantize in pairs { packed = "", floats = false } do
  local model = redco.models.from_pretrained(folder, quantize == false and { quantize = false }
    or nil)
  logits[way] = model(model.params, { input_ids = ids })
  for name, value in pairs(model.params) do
    if torch.is_tensor(model.params[name:match "^(.*)_type$"]) then
      types[value] = (types[value] or 0) + 1
    end
  end
end
torch.save(logits, folder .. "/logits.safetensors")
assert(native.write_file(folder .. "/types.json", native.json_encode("types", types, 0)))
