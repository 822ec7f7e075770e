--- Data sets that consist of several files: lists of paths, folders, names of the Hugging Face Hub.
local hub = require "redco.hub"

local from_files = { options = { "split", "name", "revision", "download" } }

--- Returns a list of open(path) for each file of a path or a list of them. `endings` are those of
--- the files that are read in folders and on the Hub, `o` has the options above, or is nil if the
--- function `where` takes only files.
function from_files.open(where, paths, endings, o, open)
  if paths == nil then return { open(nil) } end  -- which raises the error
  local sets = {}
  for _, path in ipairs(type(paths) == "table" and paths or { paths }) do
    local files = o and hub.data_files(where, path, endings, o) or { path }
    for _, file in ipairs(files) do sets[#sets + 1] = open(file) end
  end
  return sets
end

return from_files
