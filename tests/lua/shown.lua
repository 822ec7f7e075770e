--- The output that a script in the documents shows: the texts after `-->`. "..." stands for
--- anything there, and blanks are all the same.
local shown = {}

--- Returns all of these texts, or nil if the script shows none.
function shown.by(lua)
  local lines = {}
  for line in lua:gmatch "%-%->([^\n]*)" do lines[#lines + 1] = line end
  return #lines > 0 and table.concat(lines, "\n") or nil
end

local function without_blanks(text)
  return (text:gsub("[ \t]+", " "):gsub(" ?\n ?", "\n"):match "^%s*(.-)%s*$")
end

--- Fails unless the output is what is shown.
function shown.expect(output, text)
  local pattern = without_blanks(text):gsub("%p", "%%%0"):gsub("%%%.%%%.%%%.", ".-")
  if not without_blanks(output):find("^" .. pattern .. "$") then
    error(("the documents show\n%s\nbut there is\n%s"):format(text, output), 0)
  end
end

return shown
