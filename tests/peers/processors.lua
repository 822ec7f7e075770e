-- Writes what redco.models.processor makes of the texts and images of folders.
local redco = require "redco"

for _, folder in ipairs(arg) do
  local case = redco.data.json(folder .. "/case.json")
  local arrays, images = redco.torch.load(folder .. "/images.safetensors"), {}
  local n = 0
  for _, count in ipairs(case.counts) do
    local own = {}
    for i = 1, count do
      own[i], n = arrays[tostring(n)], n + 1
    end
    if case.is_listed then
      images[#images + 1] = own
    else
      for _, image in ipairs(own) do images[#images + 1] = image end
    end
  end
  local process = redco.models.processor(folder)
  redco.torch.save(process(case.texts, images, case.options), folder .. "/result.safetensors")
end
