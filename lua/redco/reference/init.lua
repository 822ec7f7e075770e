--- Generates files from the help texts: editor stubs ("stubs") and the pages of docs/reference
--- ("pages").
local reference = {}

--- Returns all files of a kind, text by path.
function reference.files(kind)
  return require("redco.reference." .. kind).files()
end

--- Writes them below a folder, whose sub-folders must exist.
function reference.write(kind, folder)
  for path, text in pairs(reference.files(kind)) do
    local file = assert(io.open(folder .. "/" .. path, "wb"))
    assert(file:write(text))
    assert(file:close())
  end
end

return reference
