-- image_processors.lua FOLDER: prepares the images of each case, as redco-lua does.
local redco = require "redco"

local torch, data = redco.torch, redco.data
local folder = arg[1]

local cases = redco.data.json(folder .. "/cases.json")

for i = 1, cases.n do
  local case = ("%s/%d"):format(folder, i)
  local given, images = torch.load(case .. "/given.safetensors"), {}
  for k = 1, 9 do images[k] = given["image" .. k] end
  local maps
  if given.map1 then
    maps = {}
    for k = 1, #images do maps[k] = given["map" .. k] end
  end
  local pixels, infos, labels = data.image_processor(case, { pillow = cases.pillow })(images, maps)
  local found = torch.is_tensor(pixels) and { pixel_values = pixels, labels = labels } or pixels
  if infos[1].num_soft_tokens_per_image then
    local counts = {}
    for k, info in ipairs(infos) do counts[k] = info.num_soft_tokens_per_image end
    found.num_soft_tokens_per_image = torch.tensor(counts)
  end
  torch.save(found, case .. "/found.safetensors")
end
