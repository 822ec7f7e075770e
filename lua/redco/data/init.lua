--- Sets of examples, readers of data files, and what prepares images.
local dataset = require "redco.data.dataset"
local registry = require "redco.registry"

local data = {
  dataset = dataset.dataset,
  concat = dataset.concat,
  default_collate = require "redco.data.default_collate",
  pack = require "redco.data.pack",
  image_processor = require "redco.data.image_processor",
}

for name, value in pairs(require "redco.data.readers") do data[name] = value end

return registry.define("redco.data", [[
redco.data
Readers of data files, sets of examples, images. Examples are a list or a
`Dataset`, each read when it is asked for.]], data)
