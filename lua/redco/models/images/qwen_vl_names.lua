--- The names of weights in folders of Qwen2-VL and Qwen2.5-VL.
local names = {}

function names.same(name) return name end

--- Returns the current name of a weight in a file.
function names.current_name(name)
  if name:find "^visual%." then return "model." .. name end
  local rest = name:match "^model%.(.*)"
  if rest and not rest:find "^visual%." and not rest:find "^language_model%." then
    return "model.language_model." .. rest
  end
  return name
end

--- Returns the name that transformers writes into files.
function names.file_name(name)
  return (name:gsub("^model%.visual%.", "visual."):gsub("^model%.language_model%.", "model."))
end

return names
