--- Folders of images: with classes as sub-folders, or with a metadata.jsonl.
local dataset = require "redco.data.dataset"
local fail = require "redco.fail"
local native = require "redco.native"
local readers = require "redco.data.readers"
local registry = require "redco.registry"

-- The images that a metadata.jsonl lists, each with its other columns.
local function listed(folder)
  local path = folder .. "/metadata.jsonl"
  local rows = readers.jsonl(path)
  if #rows == 0 then fail("image_folder: %s has no lines", path) end
  return dataset.new(#rows, function(i)
    local row, example = rows[i], {}
    local name = type(row) == "table" and row.file_name
    if type(name) ~= "string" then
      fail("image_folder: %s: line %d has no file_name", path, i)
    end
    for key, value in pairs(row) do example[key] = value end
    example.path = folder .. "/" .. name
    example.image = readers.image(example.path)
    return example
  end)
end

local is_image = { png = true, jpg = true, jpeg = true, webp = true, gif = true, bmp = true,
  tif = true, tiff = true }

return registry.define("redco.data.image_folder", [[
image_folder(folder) -> Dataset
Returns the image files below a folder (png, jpg, jpeg, webp, gif, bmp, tif, tiff), sorted by path,
without hidden ones. An example is a table {path, image}; the pixels are read on access as by `redco.data.image`. If the files are in
sub-folders, each sub-folder is a class: an example also has its number from 0 as `label`, and the
data set has the sorted list of class names as `classes`.

If the folder has a metadata.jsonl, as the imagefolder of Hugging Face's datasets, its lines are the
examples, in their order: {"file_name": "a.png", "text": "a taxi"} gives {path, image, file_name,
text}.]],
function(folder)
  if type(folder) ~= "string" then
    fail("image_folder: expected a path, got %s", native.describe(folder))
  end
  if native.file_exists(folder .. "/metadata.jsonl") then return listed(folder) end
  local paths, classes, label_of = {}, {}, {}
  for _, path in ipairs(native.list_files(folder)) do
    local ending = path:lower():match "%.(%w+)$"
    if is_image[ending] and not ("/" .. path):find "/%." then
      paths[#paths + 1] = path
      local class = path:match "^(.-)/"
      if class and not label_of[class] then
        classes[#classes + 1], label_of[class] = class, true
      end
    end
  end
  -- Sorted again: a longer name may come first among paths, as "cat-big/" before "cat/".
  table.sort(classes)
  for i, class in ipairs(classes) do label_of[class] = i - 1 end
  if #paths == 0 then fail("image_folder: there are no image files in %s", folder) end
  return dataset.new(#paths, function(i)
    local path = folder .. "/" .. paths[i]
    return { path = path, image = readers.image(path), label = label_of[paths[i]:match "^(.-)/"] }
  end, { classes = classes })
end)
