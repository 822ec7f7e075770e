--- redco.data: data sets, readers of data files, preparation of images and sound.
local dataset = require "redco.data.dataset"
local numpy = require "redco.data.numpy"
local registry = require "redco.registry"
local strict = require "redco.strict"

local data = {
  dataset = dataset.dataset,
  concat = dataset.concat,
  conversations = require "redco.data.conversations",
  default_collate = require "redco.data.default_collate",
  pack = require "redco.data.pack",
  padding_collate = require "redco.data.padding_collate",
  preferences = require "redco.data.preferences",
  split = require "redco.data.split",
  npy = numpy.npy,
  npz = numpy.npz,
  image_folder = require "redco.data.image_folder",
  image_processor = require "redco.data.image_processor",
  ctc_tokenizer = require "redco.data.ctc_tokenizer",
  feature_extractor = require "redco.data.feature_extractor",
  parquet = require "redco.data.parquet",
  replay_buffer = require "redco.data.replay_buffer",
  stream = require "redco.data.stream",
  tar = require "redco.data.tar",
}

for _, part in ipairs { "readers", "audio", "image_grid", "sampling", "aspect_buckets" } do
  for name, value in pairs(require("redco.data." .. part)) do data[name] = value end
end

return registry.define("redco.data", [[
redco.data
Data sets, readers of data files, and preparation of images and sound. Examples are a list or a
`Dataset`, which makes each on access.]], strict("redco.data", data))
